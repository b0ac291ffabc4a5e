"""The client's surface: options, operating, what is inherited, and the twin without a loop."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import gangline
from gangline import errors
from gangline.bus.port.bus import RequestTimeout
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.calls.call import CallOptions, ClientOptions, SubmitOptions
from gangline.dispatcher.client.client import Client, connect
from gangline.dispatcher.client.sync import SyncClient, SyncGang, SyncJob, SyncLease, connect_sync
from gangline.dispatcher.gangs.gang import Gang, GangOptions
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.leases.lease import Lease
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.names import public_id
from gangline.schemas.wire.frames import RequestOp
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...support.deadlines import deadline
from ...support.dispatcher.fakes import Rig, silent, turns
from ...support.rows import in_rows
from ...waiting import loop_time

# -- options ------------------------------------------------------------------------------------------------------


async def test_options_make_a_copy_and_add_up(rig: Rig) -> None:
    worker = await rig.worker(labels={"gpu": "yes"}, max_models=1)
    bound = rig.client.options(timeout_s=5, key="k").options(model="m", labels={"gpu": "yes"})
    await bound.call("images.echo")
    await rig.client.call("images.echo")
    first, second = worker.heard_of(RequestOp.TASK)
    assert first[5] is not None and first[9] == {"key": "k", "model": "m"}
    assert second[5] is None and second[9] is None


async def test_a_model_is_refused_where_no_worker_has_any(rig: Rig) -> None:
    worker = await rig.worker("w1")
    with pytest.raises(errors.InvalidRequest, match="'images' has no models"):
        await rig.client.options(model="m").call("images.echo")
    assert worker.heard_of(RequestOp.TASK) == []
    await rig.worker("w2", max_models=1)
    await turns()
    await rig.client.options(model="m").call("images.echo")


def test_a_client_that_was_never_connected_says_how() -> None:
    connecting = connect("nats://127.0.0.1:1")
    for name in ("call", "close", "workers"):
        with pytest.raises(AttributeError, match=f"no '{name}' yet: .*async with gangline.connect"):
            getattr(connecting, name)
    assert not hasattr(connecting, "__wrapped__")


async def test_bad_options_and_names_are_refused_at_once(rig: Rig) -> None:
    with pytest.raises(errors.InvalidSettings):
        rig.client.options(timeout_s=-1)
    for target in ("", "images", "images.", "images.a.b", "im ages.echo", "images.*"):
        with pytest.raises(errors.InvalidName):
            await rig.client.call(target)
    for pool in ("", "a b", "a.b.c", ">"):
        with pytest.raises(errors.InvalidName):
            rig.client.choose_worker(pool)


async def test_what_only_submit_heeds_is_refused_with_a_call(rig: Rig) -> None:
    worker = await rig.known_worker()
    client = rig.client.options(priority=9, delay_s=1.0)
    async with rig.client.choose_worker("images") as selection:
        for send in (
            lambda: client.call("images.echo"),
            lambda: anext(client.stream("images.echo")),
            lambda: client.dispatch(selection, "echo"),
        ):
            with pytest.raises(errors.InvalidRequest, match="^priority, delay_s: such options apply to submit only"):
                await send()
        for hold in (client.choose_worker, client.lease):
            with pytest.raises(errors.InvalidRequest, match="^priority, delay_s: such options apply to submit only"):
                hold("images")
    assert len(worker.heard_of(RequestOp.TASK)) == 1


async def test_arguments_of_the_task_may_have_any_name(rig: Rig) -> None:
    worker = await rig.worker()
    await rig.client.call("images.echo", self=1, target=2, method=3, options=4, timeout_s=5)
    assert worker.heard_of(RequestOp.TASK)[0][4] == {"self": 1, "target": 2, "method": 3, "options": 4, "timeout_s": 5}
    async with rig.client.choose_worker("images") as selection:
        await rig.client.dispatch(selection, "echo", selection=1, method=2)
    async with rig.client.lease("images") as lease:
        await lease.call("echo", self=1, method=2)


# -- inherited deadline -------------------------------------------------------------------------------------------


async def test_the_deadline_of_the_surrounding_task_is_inherited(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    with deadline(loop_time() + 2), pytest.raises(errors.DeadlineExceeded):
        await rig.client.options(timeout_s=60).call("images.echo")
    assert worker.heard_of(RequestOp.TASK)[0][5] <= 2000


@pytest.mark.router(default_timeout_s=9)
async def test_the_default_timeout_is_the_deadline_of_calls_without_one(rig: Rig) -> None:
    worker = await rig.known_worker()
    assert 8900 < worker.heard_of(RequestOp.TASK)[0][5] <= 9000


# -- operating, on a real worker ----------------------------------------------------------------------------------


def pool_of(slots: int = 2) -> Pool:
    pool = Pool("images", slots=slots)

    @pool.task
    async def echo(value: Any = None) -> Any:
        return value

    @pool.task
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return pool


async def test_operators_see_and_steer_workers(rig: Rig) -> None:
    bus = rig.hub.connect("worker")
    async with Worker(pool_of(), bus=bus, names=rig.names, settings=WorkerSettings(id="w1")) as worker:
        [info] = await rig.client.workers()
        assert (info.name, info.registration.slots, info.ongoing) == ("images.w1", 2, 0)
        assert await rig.client.workers("sounds") == []
        async with rig.client.lease("images", slots=2) as lease:
            await asyncio.sleep(0.1)
            [record] = await rig.client.leases()
            assert (record.token, record.slots, record.owner) == (public_id(lease.token), 2, "client")
            assert (await rig.client.stats("images.w1")).leases[0].token == public_id(lease.token)
        await asyncio.sleep(0.1)
        assert await rig.client.leases() == []
        reply = await rig.client.resize("images.w1", 5)
        assert reply.slots == 5 and reply.load.total == 5
        assert (await rig.client.drain("images.w1")).draining
        await worker.wait_closed()
        assert await rig.client.workers() == []
        with pytest.raises(errors.NoWorkers):
            await rig.client.stats("images.w1")


async def test_operating_mistakes_have_clear_errors(rig: Rig) -> None:
    await rig.worker("w1")  # speaks frames only
    with pytest.raises(errors.InvalidName, match="is not POOL.WORKER"):
        await rig.client.drain("w1")
    for slots in (-1, 99_999_999_999):
        with pytest.raises(errors.InvalidRequest, match=rf"^slots: .*, given {slots}$"):
            await rig.client.resize("images.w1", slots)
    with pytest.raises(errors.InvalidRequest, match=r"^grace_s: .*, given -1$"):
        await rig.client.drain("images.w1", grace_s=-1)
    with pytest.raises(RequestTimeout, match="worker .*: no answer within"):
        await rig.client.options(timeout_s=1).stats("images.w1")
    await rig.client.close()
    with pytest.raises(errors.ClosedError):
        await rig.client.workers()
    with pytest.raises(errors.ClosedError):
        await rig.client.drain("images.w1")


# -- connect ------------------------------------------------------------------------------------------------------


@pytest.mark.realtime
async def test_connecting_to_nobody_is_an_error_that_says_where() -> None:
    nobody = ConnectionSettings(urls=("nats://127.0.0.1:1",), connect_timeout_s=0.2)
    with pytest.raises(errors.ServerUnreachable, match="127.0.0.1:1"):
        async with connect(nobody):
            pass
    with pytest.raises(errors.ServerUnreachable):
        await connect(nobody)


def test_connecting_to_nobody_from_plain_code() -> None:
    with pytest.raises(errors.ServerUnreachable):
        connect_sync(ConnectionSettings(urls=("nats://127.0.0.1:1",), connect_timeout_s=0.2))


# -- what options are called --------------------------------------------------------------------------------------


def test_options_are_called_and_typed_as_the_fields_that_they_set() -> None:
    taken = get_type_hints(CallOptions) | get_type_hints(SubmitOptions)
    names = {each.name for kind in (CallOptions, SubmitOptions) for each in fields(kind) if each.init} - {"submit"}
    assert get_type_hints(ClientOptions) == {name: taken[name] for name in names}


async def test_an_option_of_another_name_is_refused(rig: Rig) -> None:
    with pytest.raises(TypeError, match=r"options\(\) got an unexpected keyword argument 'timeout'"):
        rig.client.options(timeout=5)
    with pytest.raises(TypeError, match=r"'timout_s'; did you mean 'timeout_s'\?$"):
        rig.client.options(timout_s=5)
    with pytest.raises(TypeError, match=r"gang\(\) got an unexpected keyword argument 'id'$"):
        rig.client.gang(pool="images", id="g1")


def test_what_a_gang_takes_is_what_its_request_has() -> None:
    short = {"pool", "size", "slots", "labels"}
    assert short < GangOptions.__annotations__.keys()
    assert GangOptions.__annotations__.keys() - short < AcquireRequest.model_fields.keys()


# -- the twin -----------------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@in_rows("kind, twin", [(Client, SyncClient), (Lease, SyncLease), (Gang, SyncGang), (Job, SyncJob)])
def test_both_clients_have_the_same_names_and_signatures(kind: type, twin: type) -> None:
    ours, its = public(kind), public(twin)
    ours.pop("router", None)
    assert set(ours) == set(its)
    for name, member in ours.items():
        if isinstance(member, property):
            assert isinstance(its[name], property), name
        else:
            assert shape(member) == shape(its[name]), name
            assert its[name].__doc__, name


def test_both_ways_to_connect_take_the_same() -> None:
    ours = [item for item in shape(connect) if item[0] != "ambient"]
    assert ours == shape(connect_sync)


def test_the_facade_has_every_name_it_lists() -> None:
    for name in gangline.__all__:
        assert getattr(gangline, name) is not None
    with pytest.raises(AttributeError):
        gangline.nothing  # noqa: B018
    assert set(gangline.__all__) <= set(dir(gangline))
