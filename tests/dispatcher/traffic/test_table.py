"""Routes as one process knows them, over a bucket in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.key_value.wire import stream_configuration
from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.bus.port.bus import BucketSettings, KeyValue, Message, Storage
from gangline.dispatcher.traffic.table import FIRST_PULL_S, RouteTable
from gangline.schemas.errors.base import Disconnected, Unavailable
from gangline.schemas.names import Names
from gangline.schemas.records.routes import RouteEvent, RouteRecord
from gangline.schemas.wire import codec

from ...support.bus.buckets import pass_unstored, store_unseen
from ...waiting import loop_time

NAMES = Names("test")


class FollowedTable:
    """A hub, an operator who writes routes, and a table that follows them."""

    def __init__(self, **settings: Any) -> None:
        self.hub = MemoryServer()
        self.operator = self.hub.connect("operator")
        self.bus: MemoryBus = self.hub.connect("router")
        self.table = RouteTable(self.bus, NAMES, **settings)
        self.told: list[tuple[str, RouteRecord | None]] = []
        self.table.listen(lambda endpoint, record: self.told.append((endpoint, record)))
        self.events: list[RouteEvent] = []

    async def bucket(self) -> KeyValue:
        return await self.operator.bucket(NAMES.routes_bucket, BucketSettings(storage=Storage.FILE))

    async def put(self, endpoint: str, route: object) -> None:
        body = route if isinstance(route, bytes) else codec.to_json(route)
        await (await self.bucket()).put(endpoint, body)

    async def change(self, endpoint: str, route: object) -> None:
        """Put it, and wait well within a second."""
        await self.put(endpoint, route)
        await self.soon()

    async def listen_to_events(self) -> None:
        def heard(message: Message) -> None:
            self.events.append(RouteEvent.model_validate_json(message.data))

        await self.operator.subscribe(NAMES.events, heard)

    async def soon(self) -> None:
        """Well within a second."""
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def rig_of(**settings: Any) -> AsyncIterator[FollowedTable]:
    rig = FollowedTable(**settings)
    try:
        yield rig
    finally:
        await rig.table.stop()


@pytest.fixture
async def rig(opened: contextlib.AsyncExitStack) -> FollowedTable:
    return await opened.enter_async_context(rig_of())


async def test_who_is_told_to_makes_the_bucket_so_that_the_stock_cli_finds_it() -> None:
    async with rig_of(make=True) as rig:
        await rig.table.ready()
        assert rig.hub.store(NAMES.routes_bucket) is not None


async def test_routes_that_stand_are_pulled_at_the_start(rig: FollowedTable) -> None:
    await rig.put("resize", {"to": {"v1": 90, "v2": 10}, "queue": {"per_key": 3}})
    await rig.table.ready()
    assert rig.table.pools("resize") == {"v1": 90.0, "v2": 10.0}
    assert rig.table.rules("resize").per_key == 3
    assert list(rig.table.known) == ["resize"]


async def test_changes_are_followed_live_also_in_a_bucket_that_is_made_later(rig: FollowedTable) -> None:
    await rig.table.ready()
    await rig.change("resize", {"to": {"v1": 1}})
    await rig.change("resize", {"to": {"v2": 1}})
    await (await rig.bucket()).delete("resize")
    await rig.soon()
    assert rig.told == [("resize", RouteRecord(to={"v1": 1})), ("resize", RouteRecord(to={"v2": 1})), ("resize", None)]
    assert rig.table.pools("resize") == {"resize": 1.0}


@pytest.mark.parametrize(
    "value, says",
    [
        (b"{not json", "JSON"),
        (b"[1, 2]", "write an object"),
        ({"to": {"v1": 0, "v2": 0}}, "add up to 0"),
        ({"to": {"v1": -1}}, "greater than or equal to 0"),
        ({"two": {"v1": 1}}, "no field 'two'"),
        ({"to": {"no.name": 1}}, "no.name"),
        ({"to": {"v1": 1}, "shadow": {"v1": 5}}, "cannot shadow itself"),
        ({"to": {"v1": 1}, "queue": {"rate_per_s": "fast"}}, "queue.rate_per_s"),
        ({"v": 99}, "newer"),
    ],
)
async def test_a_value_that_cannot_be_followed_changes_nothing(rig: FollowedTable, value: object, says: str) -> None:
    await rig.listen_to_events()
    await rig.put("resize", {"to": {"v1": 90, "v2": 10}})
    await rig.table.ready()
    await rig.change("resize", value)
    assert rig.table.pools("resize") == {"v1": 90.0, "v2": 10.0}
    assert says in rig.table.statistics()["refused"]["resize"]
    [event] = rig.events
    assert (event.endpoint, event.kind, event.kept, event.by) == ("resize", "invalid", True, "router")
    assert says in event.error
    await asyncio.sleep(30)  # reconciled several times: said once
    assert len(rig.events) == 1
    await rig.change("resize", {"to": {"v2": 1}})
    assert rig.table.pools("resize") == {"v2": 1.0}
    assert rig.table.statistics()["refused"] == {}


async def test_an_invalid_first_value_leaves_the_endpoint_without_a_route(rig: FollowedTable) -> None:
    await rig.listen_to_events()
    await rig.put("resize", {"to": {}, "shadow": {"x": 500}})
    await rig.put("a.b", {"to": {"v1": 1}})
    await rig.table.ready()
    await rig.soon()
    assert rig.table.pools("resize") == {"resize": 1.0}
    assert set(rig.table.refused) == {"resize", "a.b"}
    assert {event.kept for event in rig.events} == {False}
    await (await rig.bucket()).delete("a.b")
    await rig.soon()
    assert set(rig.table.refused) == {"resize"}


async def test_a_change_that_was_missed_is_found_within_the_interval_of_reconciliation(rig: FollowedTable) -> None:
    await rig.table.ready()
    rig.hub.disconnect(rig.bus)
    await rig.put("resize", {"to": {"v1": 1}})
    await asyncio.sleep(60)
    assert rig.table.get("resize") is None
    rig.hub.reconnect(rig.bus)
    await rig.soon()  # at once after the reconnect, not at the next interval
    assert rig.table.pools("resize") == {"v1": 1.0}


async def test_without_storage_the_routes_that_are_known_stay(rig: FollowedTable) -> None:
    await rig.put("resize", {"to": {"v1": 1}})
    await rig.table.ready()
    rig.hub.storage_down()
    await asyncio.sleep(60)
    assert rig.table.pools("resize") == {"v1": 1.0}
    rig.hub.storage_back()
    await rig.change("resize", {"to": {"v2": 1}})
    assert rig.table.pools("resize") == {"v2": 1.0}


async def test_without_storage_the_first_request_goes_on_after_a_while(rig: FollowedTable) -> None:
    await rig.put("resize", {"to": {"v1": 1}})
    rig.hub.storage_down()
    began_at = loop_time()
    await rig.table.ready()
    assert FIRST_PULL_S <= loop_time() - began_at < FIRST_PULL_S + 6
    assert not rig.table.statistics()["pulled"]
    rig.hub.storage_back()
    await asyncio.sleep(1.5)
    assert rig.table.pools("resize") == {"v1": 1.0}


async def test_a_dispatchers_table_waits_for_the_routes_for_as_long_as_it_takes() -> None:
    async with rig_of(first_pull_s=None) as rig:
        await rig.put("resize", {"to": {"v1": 1}})
        rig.hub.storage_down()
        reading = asyncio.create_task(rig.table.ready())
        await asyncio.sleep(60)
        assert not reading.done()
        rig.hub.storage_back()
        await reading
        assert rig.table.pools("resize") == {"v1": 1.0}


async def test_waiting_for_the_first_pull_ends_at_the_deadline(rig: FollowedTable) -> None:
    rig.hub.storage_down()
    with pytest.raises(Unavailable, match="routes"):
        await rig.table.ready(loop_time() + 0.5)
    rig.hub.disconnect(rig.bus)
    with pytest.raises(Disconnected):
        await rig.table.ready(loop_time() + 60)


async def test_a_bucket_that_was_made_again_is_followed_though_its_revisions_are_lower(rig: FollowedTable) -> None:
    for number in range(5):
        await rig.put("resize", {"to": {f"v{number}": 1}})
    await rig.table.ready()
    made = stream_configuration(NAMES.routes_bucket, BucketSettings())
    await rig.bus.api.call(f"STREAM.DELETE.{made['name']}", what="delete")
    await rig.bus.api.call(f"STREAM.CREATE.{made['name']}", made, what="create")
    await rig.put("other", {"to": {"x": 1}})
    await asyncio.sleep(6)
    assert rig.told[-2:] == [("other", RouteRecord(to={"x": 1})), ("resize", None)]


async def test_a_listener_that_raises_does_not_keep_others_from_hearing(rig: FollowedTable) -> None:
    end = rig.table.listen(lambda _endpoint, _record: 1 / 0)  # type: ignore[arg-type,return-value]
    late: list[str] = []
    rig.table.listen(lambda endpoint, _record: late.append(endpoint))
    await rig.table.ready()
    await rig.change("a", {"to": {"x": 1}})
    assert late == ["a"]
    end()
    end()


async def test_a_write_that_passes_before_storage_has_it_is_looked_for_until_it_is_there(rig: FollowedTable) -> None:
    await rig.put("resize", {"to": {"v1": 1}})
    await rig.table.ready()
    # Observers see it now; the leader answers with the revision before for a while.
    pass_unstored(rig.hub, rig.operator, NAMES.routes_bucket, "resize", codec.to_json({"to": {"v2": 1}}))
    await rig.soon()
    assert rig.table.pools("resize") == {"v1": 1.0}
    store_unseen(rig.hub, NAMES.routes_bucket, "resize", codec.to_json({"to": {"v2": 1}}))
    await rig.soon()
    assert rig.table.pools("resize") == {"v2": 1.0}
    assert rig.table._informer._lookups == {}
