"""Standing sets, declared and changed by a client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import gangline
from gangline.cli.views.gangs import status_lines
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.gangs.declarations import is_led, read_set
from gangline.errors import InvalidName, InvalidRequest, UnknownGang
from gangline.schemas.records.gangs import GangSetRecord, SetState
from gangline.testing import cluster, cluster_sync
from gangline.testing.in_memory import Cluster

from ...support.rows import in_rows
from ...waiting import until

pool = gangline.Pool("gpu", slots=1)
TWO: dict[str, Any] = {"gangs": 2, "gang": {"pool": "gpu", "size": 2}}


@pool.task
async def where() -> str:
    gang = gangline.current_task().gang
    return gang.id if gang is not None else ""


def running() -> Cluster:
    return cluster(pool, workers=4, coordinator=True)


async def state_of(client: gangline.Client, name: str) -> tuple[SetState, int] | None:
    status = await client.gangset_status(name)
    return None if status is None else (status.state, status.ready)


async def test_a_declared_set_serves_calls_is_scaled_and_deleted() -> None:
    async with running() as client:
        record = await client.set_gangset("llama", TWO)
        assert (record.gangs, record.gang.size) == (2, 2)
        assert await client.gangsets() == {"llama": record}
        await until(lambda: _is(client, (SetState.STEADY, 2)))
        assert await client.call("llama.where")
        assert await client.scale_gangset("llama", 1) == 2
        assert (await client.gangsets())["llama"].gangs == 1
        await until(lambda: _is(client, (SetState.STEADY, 1)))
        await client.delete_gangset("llama")
        await client.delete_gangset("llama")
        assert await client.gangsets() == {}
        with pytest.raises(UnknownGang, match="there is no set 'llama'"):
            await client.gangset_status("llama")


async def _is(client: gangline.Client, wanted: tuple[SetState, int]) -> bool:
    return await state_of(client, "llama") == wanted


async def test_declaring_the_same_again_writes_nothing() -> None:
    async with running() as client:
        await client.set_gangset("llama", TWO)
        ledger = await client.router.ledger()
        first = await ledger.get("gangset.llama")
        await client.set_gangset("llama", GangSetRecord.model_validate(TWO))
        again = await ledger.get("gangset.llama")
        assert first is not None and again is not None and first.revision == again.revision


@in_rows(
    "name, declaration, error, text",
    [
        ("llama", {"gangs": 2, "gang": {"pool": "gpu", "sise": 2}}, InvalidRequest, "set llama: no field 'gang.sise'"),
        ("llama", {"gang": {"pool": "gpu"}}, InvalidRequest, "set llama: gangs: missing"),
        ("llama", {"gangs": -1, "gang": {"pool": "gpu"}}, InvalidRequest, "set llama: gangs: "),
        ("a b", TWO, InvalidName, "a b"),
    ],
)
async def test_an_invalid_declaration_names_the_field(
    name: str, declaration: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with running() as client:
        with pytest.raises(error, match=text):
            await client.set_gangset(name, declaration)
        assert await client.gangsets() == {}


async def test_a_set_is_not_scaled_out_of_bounds() -> None:
    async with running() as client:
        with pytest.raises(UnknownGang):
            await client.scale_gangset("llama", 1)
        await client.set_gangset("llama", TWO)
        with pytest.raises(InvalidRequest, match="set llama: gangs: "):
            await client.scale_gangset("llama", 10_001)
        assert (await client.gangsets())["llama"].gangs == 2


async def test_two_that_scale_at_once_both_take_effect_one_after_the_other() -> None:
    async with running() as client:
        await client.set_gangset("llama", TWO)
        before = await asyncio.gather(client.scale_gangset("llama", 3), client.scale_gangset("llama", 4))
        assert (await client.gangsets())["llama"].gangs in (3, 4) and 2 in before and set(before) < {2, 3, 4}


def test_code_without_async_declares_sets_too() -> None:
    with cluster_sync(pool, workers=2, coordinator=True) as client:
        client.set_gangset("llama", {"gangs": 1, "gang": {"pool": "gpu", "size": 2}})
        assert client.scale_gangset("llama", 0) == 1
        assert list(client.gangsets()) == ["llama"]
        client.delete_gangset("llama")
        assert client.gangsets() == {}


async def test_a_status_that_the_last_coordinator_has_left_behind_says_so() -> None:
    """It may be told as steady long after the last of its gangs has gone."""
    system = cluster(pool, workers=4)
    async with system as client:
        bus = system.hub.connect("coordinator")
        ledger = await client.router.ledger()
        async with Coordinator(bus=bus):
            await client.set_gangset("llama", TWO)
            await asyncio.sleep(10)
            _, record, status = await read_set(ledger, "llama")
            assert await is_led(ledger)
            assert status_lines("llama", record, status, led=True)[0] == "llama is steady"
        await asyncio.sleep(5)
        _, record, status = await read_set(ledger, "llama")
        assert status is not None and not await is_led(ledger)
        assert status_lines("llama", record, status, led=False)[:2] == [
            "no coordinator leads: this is what the last one reported",
            "llama is steady",
        ]
        await bus.close()
