"""Shortages of storage, as requests report them."""

from __future__ import annotations

import asyncio

from gangline.bus.jetstream.api import ApiError, StorageShortage

FULL = ApiError("store", {"code": 503, "err_code": 10023, "description": "insufficient resources"})
LIMIT = ApiError("store", {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"})
CONFLICT = ApiError("store", {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"})


def actions(caplog) -> list[str]:
    return [record.__dict__["action"] for record in caplog.records]


async def test_a_shortage_ends_when_nothing_was_refused_for_a_while_and_something_was_stored(caplog):
    shortage = StorageShortage()
    shortage.refused("the bucket A", CONFLICT)
    assert not shortage.reasons()
    for error in (FULL, LIMIT, LIMIT):
        shortage.refused("the bucket A", error)
        shortage.stored("the bucket A")  # which is smaller
        await asyncio.sleep(5)
    assert shortage.reasons() == ["no room in the bucket A (maximum bytes exceeded)"]
    await asyncio.sleep(2)
    assert not shortage.reasons()
    assert actions(caplog) == ["bus.storage_full", "bus.storage_room"]


async def test_while_the_server_is_full_no_stream_has_room(caplog):
    shortage = StorageShortage()
    shortage.refused("the stream A", FULL)
    shortage.refused("the bucket C", LIMIT)
    for _ in range(3):
        shortage.refused("the bucket B", FULL)
        await asyncio.sleep(5)
    full = [reason.partition(" (")[0] for reason in shortage.reasons()]
    assert full == [f"no room in the {place}" for place in ("stream A", "bucket C", "bucket B")]
    await asyncio.sleep(2)
    assert not shortage.reasons()
    assert actions(caplog) == ["bus.storage_full"] * 3, "nothing says that there is room"


async def test_nothing_is_logged_after_the_connection_was_closed(caplog):
    shortage = StorageShortage()
    shortage.refused("the stream A", FULL)
    shortage.stop()
    await asyncio.sleep(60)
    assert len(caplog.records) == 1


def test_a_stream_at_its_own_limit_is_no_full_disk():
    disk = ApiError("store", {"code": 503, "err_code": 10077, "description": "no space left on device"})
    assert (LIMIT.at_limit, FULL.at_limit, disk.at_limit) == (True, False, False)
