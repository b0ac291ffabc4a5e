"""Serving those who wait when there are very many classes of them: each session key is one."""

from __future__ import annotations

import math

from gangline.dispatcher.routing.policy import Candidates, Requirements, Sticky
from gangline.dispatcher.routing.pool_core import RoutedRequest, RoutingCore
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.dispatcher.routing.worker_table import WorkerEntry
from gangline.schemas.records.workers import MethodInfo, Registration


class Counting(Sticky):
    def __init__(self) -> None:
        self.asked = 0

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        self.asked += 1
        return super().choose(candidates, request)


def make(workers: int) -> tuple[RoutingCore, Counting]:
    policy = Counting()
    core = RoutingCore("images", RouterSettings(node="", zone=""), policy, lambda: 0.5)
    for number in range(workers):
        name = f"w{number}"
        record = Registration(
            pool="images", worker=name, instance=name, epoch=1, slots=1, methods={"echo": MethodInfo()}
        )
        core.registered(record, 1, 0.0)
    return core, policy


def admit(core: RoutingCore, key: str) -> RoutedRequest:
    routed_request = RoutedRequest(method="echo", key=key, deadline=math.inf)
    core.admit(routed_request, 0.0)
    return routed_request


def test_an_answer_costs_no_look_at_those_who_wait_for_other_workers() -> None:
    core, policy = make(1)
    routed_requests = [admit(core, f"user-{number}") for number in range(1000)]
    running = routed_requests[0]
    worker = running.worker
    assert worker is not None and core.waiting == 999
    for expected in routed_requests[1:50]:
        core.settle(running)
        policy.asked = 0
        (placed,) = core.pump(0.0, worker)
        assert placed.routed_request is expected and policy.asked == 1
        running = placed.routed_request


def test_a_worker_with_room_that_nobody_waits_for_costs_nothing_at_the_answers_of_others() -> None:
    core, policy = make(2)
    keys = [f"user-{number}" for number in range(1000)]
    busy = admit(core, keys[0]).worker
    assert busy is not None
    for routed_request in [admit(core, key) for key in keys[1:]]:
        if core._candidates.of(routed_request).home(str(routed_request.key)) is not busy:
            core.withdraw(routed_request)
    assert core.waiting > 300 and core.view.has_room and not busy.has_room
    policy.asked = 0
    assert core.pump(0.0, busy) == [] and policy.asked == 0
