"""Plain calls go the short way, and come to the same as by the general one."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.routing.policy import Sticky
from gangline.dispatcher.routing.pool_core import RoutedRequest, RoutingCore
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import InvalidRequest, PayloadTooLarge
from gangline.schemas.records.workers import MethodInfo, Registration
from gangline.schemas.wire.frames import Reason, RequestOp

from ...support.dispatcher.fakes import Rig, rejects, turns


def pool_of(loads: list[int], *, seed: int, policy=None, slots_of_task: int = 1) -> RoutingCore:
    core = RoutingCore("p", RouterSettings(node="n0"), policy or Sticky(), random.Random(seed).random)
    for number, load in enumerate(loads):
        record = Registration(
            pool="p",
            worker=f"w{number}",
            epoch=1,
            instance=f"i{number}",
            slots=4,
            methods={"echo": MethodInfo(slots=slots_of_task)},
            node=f"n{number % 3}",
        )
        core.registered(record, number + 1, 0.0)
        core.view.charge(core.view.workers[f"w{number}"], load)
    return core


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 999), st.integers(1, 6))
def test_the_short_way_chooses_as_the_general_one_does(loads, seed, requests):
    short, general = pool_of(loads, seed=seed), pool_of(loads, seed=seed)
    for _ in range(requests):
        worker, other = short.place_plain("echo"), RoutedRequest(method="echo", max_attempts=7)
        placed = general.admit(other, 1.0)
        assert (worker is not None) == placed
        if worker is None:
            break
        assert worker.id == other.worker.id and loads_of(short) == loads_of(general)
        assert short.placed == general.placed == 1
        short.check()
        short.end_plain(worker)
        general.settle(other)
        assert loads_of(short) == loads_of(general)
        # Tried again, it is to the pool as any other.
        routed_request = short.tried_plain(RoutedRequest(method="echo", max_attempts=7), worker, other.number, 1.0)
        assert all_of(routed_request) == all_of(other)
    assert short.placed == 0


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(0, 999),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=20),
)
def test_with_a_key_it_does_as_well(loads, seed, keys):
    short, general = pool_of(loads, seed=seed), pool_of(loads, seed=seed)
    for key in keys:
        other = RoutedRequest(method="echo", key=key, max_attempts=7)
        placed = general.admit(other, 1.0)
        worker = short.place_keyed("echo", key)
        assert (worker is not None) == placed
        if worker is None:
            general.withdraw(other)
            continue
        assert worker.id == other.worker.id and loads_of(short) == loads_of(general)
        short.check()
        short.end_plain(worker)
        general.settle(other)
        asked = RoutedRequest(method="echo", key=key, max_attempts=7)
        assert all_of(short.tried_plain(asked, worker, other.number, 1.0)) == all_of(other)
    assert short.placed == general.placed == 0


def all_of(routed_request: RoutedRequest) -> dict[str, object]:
    return {name: getattr(routed_request, name) for name in dir(routed_request) if not name.startswith("__")}


def loads_of(core: RoutingCore) -> list[tuple[int, int, int]]:
    return [(worker.own, worker.ongoing, worker.chosen) for worker in core.view.workers.values()]


def test_nobody_is_overtaken_by_the_short_way():
    core = pool_of([4], seed=1)
    waiting = RoutedRequest(method="echo")
    assert not core.admit(waiting, 1.0)
    core.view.discharge(core.view.workers["w0"], 2)
    assert core.place_plain("echo") is None
    assert [effect.routed_request for effect in core.pump(2.0)] == [waiting]
    assert core.place_plain("echo") is not None


# -- the same fates as by the general way, after a first call that opens the pool --------------------------------------


def counts(rig: Rig) -> tuple[int, int]:
    numbers = rig.router.metrics.statistics()
    return numbers["requests"], numbers["errors"]


async def test_a_refusal_is_followed_by_a_try_elsewhere(rig: Rig) -> None:
    first = await rig.known_worker("w1")
    second = await rig.worker("w2", behave=rejects(Reason.FULL))
    first.behave = rejects(Reason.FULL, 1)
    assert await rig.client.call("images.echo", 1) == ["w1", "echo"]
    tries = [frame for worker in (first, second) for frame in worker.heard[-2:] if frame[3] == [1]]
    assert max(frame[9]["attempt"] for frame in tries if frame[9]) >= 2
    assert counts(rig) == (2, 0)


async def test_cancelled_in_its_own_turn_it_is_not_sent_at_all(rig: Rig) -> None:
    worker = await rig.known_worker()
    await turns()  # else it were sent at once, see the last test
    fast_path = rig.router._fast_path
    flight = fast_path.launch("images.echo", (1,), {}, CallOptions(), 0)
    fast_path.failed(flight, asyncio.CancelledError())
    await turns()
    assert len(worker.heard) == 1
    assert counts(rig) == (2, 1)


async def test_arguments_that_cannot_be_sent_are_refused_as_by_the_general_way(rig: Rig) -> None:
    await rig.known_worker()
    with pytest.raises(InvalidRequest):
        await rig.client.call("images.echo", object())
    with pytest.raises(PayloadTooLarge):
        await rig.client.call("images.echo", b"x" * rig.hub.max_payload)
    assert counts(rig) == (3, 2)


async def test_a_key_goes_along_to_its_home_and_is_retried_there(rig: Rig) -> None:
    workers = [await rig.worker(name) for name in ("w1", "w2", "w3")]
    await rig.client.call("images.echo", 0)
    for worker in workers:
        worker.heard.clear()
    keyed = rig.client.options(key="k")
    sent = {"key": "k"}
    before = rig.router.order
    rig.router.order = None  # type: ignore[assignment]
    try:
        home, *_ = await keyed.call("images.echo", 1)
        assert (await keyed.call("images.echo", 2))[0] == home
        async with rig.client.lease("images") as lease:
            assert lease.worker
    finally:
        rig.router.order = before  # type: ignore[method-assign]
    (at_home,) = [worker for worker in workers if worker.heard_of(RequestOp.TASK)]
    assert [frame[9] for frame in at_home.heard_of(RequestOp.TASK)] == [sent, sent]
    at_home.behave = rejects(Reason.FULL, 1)
    assert (await keyed.call("images.echo", 3))[0] == home
    assert at_home.heard_of(RequestOp.TASK)[-1][9] == {**sent, "attempt": 2}
