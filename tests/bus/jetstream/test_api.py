"""Shortages of storage, as requests report them."""

from __future__ import annotations

import asyncio

from gangline.bus.jetstream.api import ApiError, StorageShortage

FULL = ApiError("store", {"code": 503, "err_code": 10023, "description": "insufficient resources"})
LIMIT = ApiError("store", {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"})
CONFLICT = ApiError("store", {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"})


async def test_a_shortage_is_logged_when_it_begins_and_when_nothing_was_refused_for_a_while(caplog):
    shortage = StorageShortage()
    shortage.refused("the bucket A", CONFLICT)
    assert not shortage.reasons()
    for error in (FULL, LIMIT, LIMIT):
        shortage.refused("the bucket A", error)
        await asyncio.sleep(5)
    assert shortage.reasons() == ["no room in the bucket A (maximum bytes exceeded)"]
    await asyncio.sleep(2)
    assert not shortage.reasons()
    assert [record.__dict__["action"] for record in caplog.records] == ["bus.storage_full", "bus.storage_room"]


async def test_nothing_is_logged_after_the_connection_was_closed(caplog):
    shortage = StorageShortage()
    shortage.refused("the stream A", FULL)
    shortage.stop()
    await asyncio.sleep(60)
    assert len(caplog.records) == 1


def test_a_stream_at_its_own_limit_is_no_full_disk():
    disk = ApiError("store", {"code": 503, "err_code": 10077, "description": "no space left on device"})
    assert (LIMIT.at_limit, FULL.at_limit, disk.at_limit) == (True, False, False)
