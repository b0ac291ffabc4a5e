"""The routing core in single steps; see test_core_machine for random histories."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.policy import Sticky
from gangline.dispatcher.routing.pool_core import Placed, PlacementRefused, RoutedRequest, RoutingCore
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.permissions.quotas import Quotas, parse_quotas
from gangline.schemas.records.workers import MethodInfo, Registration
from gangline.schemas.wire.frames import Load

from ...support.rows import in_rows

METHODS = {"echo": MethodInfo(), "again": MethodInfo(idempotent=True)}


def core_of(*, quotas: Quotas | None = None, **workers: int) -> RoutingCore:
    """A core that knows these workers with so many slots."""
    core = RoutingCore(
        "p", RouterSettings(node="", zone="", quotas=quotas or Quotas()), Sticky(), random.Random(1).random
    )
    for number, (name, slots) in enumerate(workers.items(), start=1):
        record = Registration(pool="p", worker=name, epoch=1, instance="i", slots=slots, methods=METHODS)
        core.registered(record, number, 0.0)
    return core


def routed_request(**facts: Any) -> RoutedRequest:
    return RoutedRequest(method="echo", **facts)


def of_tenants(core: RoutingCore, *tenants: str) -> tuple[list[RoutedRequest], list[bool]]:
    """A request of each, and which of them were placed at once."""
    requests = [routed_request(tenant=tenant) for tenant in tenants]
    return requests, [core.admit(request, 0.0) for request in requests]


def test_calls_above_a_tenants_quota_wait_and_delay_nobody() -> None:
    core = core_of(a=8, quotas=parse_quotas(["lab:slots=2"]))
    requests, placed = of_tenants(core, "lab", "lab", "lab", "lab", "shop", "", "lab")
    assert placed == [True, True, False, False, True, True, False]
    assert core.pump(0.0) == []
    core.settle(requests[0])
    assert core.pump(0.0, core.view.workers["a"]) == [Placed(requests[2])]
    core.check()


def test_a_call_that_waited_too_long_for_its_quota_is_told_so() -> None:
    core = core_of(a=8, quotas=parse_quotas(["slots=1"]))
    requests, _ = of_tenants(core, "lab", "lab")
    error = core.give_up(requests[1], "for 30 s")
    assert isinstance(error, errors.QuotaExceeded)
    assert error.details == {"tenant": "lab", "quota": "slots", "limit": 1, "used": 1}
    with pytest.raises(errors.NotEntitled, match="2 slots"):
        core.admit(routed_request(tenant="lab", slots=2), 0.0)
    for request in requests:
        core.withdraw(request)
    assert core._slots == {} and core.waiting == 0


def fill(core: RoutingCore, name: str, *, own: bool = False) -> None:
    worker = core.view.workers[name]
    core.loaded(worker, Load(worker.total, 0, worker.total), 1, 0.0)
    if own:
        core.view.charge(worker, worker.total)


def test_the_error_of_a_request_that_was_lost_and_found_no_room_afterwards_names_where_it_was_lost() -> None:
    core = core_of(a=1, b=1)
    request = RoutedRequest(method="again", idempotent=True)
    assert core.admit(request, 0.0)
    lost = request.last
    core.settle(request)
    fill(core, str(lost).removeprefix("p."))
    assert core.again(request, TryOutcome.LOST, 0.0) and request.last != lost
    core.settle(request)
    for name in ("a", "b"):
        fill(core, name)
    assert not core.again(request, TryOutcome.FULL, 0.1)
    error = core.give_up(request, "for 1 s")
    assert isinstance(error, errors.WorkerLost) and error.details["worker"] == str(lost)
    core.check()


@in_rows("fate", [None, TryOutcome.FULL, TryOutcome.UNHEARD])
def test_that_no_worker_can_be_reached_is_not_called_a_lack_of_room(fate: TryOutcome | None) -> None:
    core = core_of(a=1, b=1)
    waiting = routed_request()
    waiting.fate = fate
    core.view.unreachable(core.view.workers["a"])
    assert isinstance(core.give_up(waiting, "for 1 s"), errors.Saturated)
    core.view.unreachable(core.view.workers["b"])
    error = core.give_up(waiting, "for 1 s")
    assert isinstance(error, errors.NoWorkers) and "can be reached" in error.message


def test_whoever_waits_is_told_when_the_method_is_gone() -> None:
    core = core_of(a=1)
    fill(core, "a")
    waiting = routed_request()
    assert not core.admit(waiting, 0.0)
    record = Registration(pool="p", worker="a", epoch=1, instance="i", slots=1, methods={"again": MethodInfo()})
    core.registered(record, 5, 1.0)
    [effect] = core.wake(1.0)
    assert isinstance(effect, PlacementRefused) and isinstance(effect.error, errors.UnknownMethod)
    with pytest.raises(errors.UnknownMethod, match="again"):
        core.admit(routed_request(), 1.0)


def test_progress_of_its_class_makes_a_request_wait_longer() -> None:
    core = core_of(a=1)
    fill(core, "a", own=True)
    first, second = routed_request(), routed_request()
    assert not core.admit(first, 0.0) and not core.admit(second, 0.0)
    core.accepted(first, 50.0)
    core.next_wake_s(0.0)
    assert core.wake(61.0) == []
    core.next_wake_s(61.0)
    refused = core.wake(110.1)
    assert [type(effect.error) for effect in refused if isinstance(effect, PlacementRefused)] == [
        errors.Saturated,
        errors.Saturated,
    ]


def slots_of(number: int) -> RoutedRequest:
    return RoutedRequest(method=None, slots=number)


def test_more_slots_than_any_worker_has_are_refused_at_once_and_when_a_larger_one_is_there_granted() -> None:
    core = core_of(a=1, b=3)
    fill(core, "b")
    with pytest.raises(errors.Saturated, match="99 slots were asked for and the largest worker of pool 'p' has 3"):
        core.admit(slots_of(99), 0.0)
    busy = slots_of(3)
    assert not core.admit(busy, 0.0), "b may be free again"
    core.withdraw(busy)
    core.registered(Registration(pool="p", worker="c", epoch=1, instance="i", slots=99), 9, 1.0)
    large = slots_of(99)
    assert core.admit(large, 1.0) and large.worker is core.view.workers["c"]
    core.check()


def test_who_waits_for_a_large_worker_has_the_time_of_its_restart() -> None:
    core = core_of(a=1, b=3)
    fill(core, "b")
    waiting = slots_of(3)
    assert not core.admit(waiting, 0.0)
    core.gone(core.view.workers["b"], 10.0)
    assert core.wake(10.9) == []
    [refused] = core.wake(11.0)
    assert (
        refused.routed_request is waiting
        and isinstance(refused, PlacementRefused)
        and isinstance(refused.error, errors.Saturated)
    )
    core.check()


def waiting_with_deadlines(core: RoutingCore, *deadlines: float | None) -> list[RoutedRequest]:
    """Requests that wait since 0.0; the first one has the only slot."""
    requests = [routed_request(), *(routed_request(deadline=deadline) for deadline in deadlines)]
    for request in requests:
        request.asked_at = 0.0
    assert [core.admit(request, 0.0) for request in requests] == [True] + [False] * len(deadlines)
    return requests


def test_what_has_less_time_left_than_its_task_needs_is_refused_and_the_next_one_gets_the_slot() -> None:
    core = core_of(a=1)
    core.usual.ended("echo", 2.0)
    first, late, fits, endless = waiting_with_deadlines(core, 5.0, 9.0, None)
    core.settle(first)
    refused, placed = core.pump(4.0)
    assert isinstance(refused, PlacementRefused) and refused.routed_request is late
    assert isinstance(refused.error, errors.Saturated) and "1 s are left, and echo usually takes up to 3 s" in str(
        refused.error
    )
    assert refused.error.may_have_started is False
    assert placed == Placed(fits)
    core.settle(fits)
    assert core.pump(4.0) == [Placed(endless)]
    core.check()


def test_what_would_wait_twice_as_long_as_it_can_is_refused_at_once() -> None:
    core = core_of(a=1)
    first, *waiting = waiting_with_deadlines(core, *[1000.0] * 60)
    last = first
    for second in range(1, 21):
        core.settle(last)
        [effect] = core.pump(float(second))
        last = effect.routed_request
    assert core.waiting == 40
    with pytest.raises(errors.QueueFull, match="40 requests will take about .* s, and this one has 5 s"):
        core.admit(routed_request(deadline=25.0), 20.0)
    assert not core.admit(routed_request(deadline=60.0), 20.0)
    assert not core.admit(routed_request(), 20.0)
    core.check()
