"""The routing core under random histories: its laws hold after every event."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from gangline import errors
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.policy import Sticky
from gangline.dispatcher.routing.pool_core import Placed, PlacementRefused, RoutedRequest, RoutingCore
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.dispatcher.routing.worker_table import WorkerEntry
from gangline.schemas.permissions.quotas import Quota, Quotas
from gangline.schemas.records.workers import MethodInfo, Registration
from gangline.schemas.wire.frames import Load, LoadFlag

from ...scale import repetitions

METHODS = {"one": MethodInfo(), "two": MethodInfo(slots=2), "again": MethodInfo(idempotent=True)}


class Counting(Sticky):
    def __init__(self) -> None:
        self.routed_count: Counter[str] = Counter()
        self.completed_count: Counter[str] = Counter()

    def routed(self, worker: WorkerEntry, request: Any) -> None:
        self.routed_count[str(worker.id)] += 1

    def completed(self, worker: WorkerEntry, request: Any) -> None:
        self.completed_count[str(worker.id)] += 1


class CoreMachine(RuleBasedStateMachine):
    routed_requests = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.policy = Counting()
        quotas = Quotas(named={"lab": Quota(slots=3)})
        self.settings = RouterSettings(node="n0", zone="z0", max_queued=5, max_attempts=6, quotas=quotas)
        self.core = RoutingCore("pool", self.settings, self.policy, random.Random(1).random)
        self.alive: list[RoutedRequest] = []
        self.placed_order: list[tuple[Any, int]] = []
        self.instances: Counter[str] = Counter()
        self.revision = 0

    # -- what may happen ------------------------------------------------------------------------------------------

    @rule(
        target=routed_requests,
        method=st.sampled_from(["one", "two", "again"]),
        key=st.sampled_from([None, None, "a", "b"]),
        model=st.sampled_from([None, None, "m"]),
        labels=st.sampled_from([None, None, {"gpu": "yes"}]),
        slots=st.sampled_from([None, None, 1, 3, 5]),
        patient=st.booleans(),
        tenant=st.sampled_from(["", "", "lab"]),
    )
    def arrive(self, method: str, key: Any, model: Any, labels: Any, slots: Any, patient: bool, tenant: str) -> Any:
        routed_request = RoutedRequest(
            method=method,
            slots=slots,
            key=key,
            model=model,
            labels=labels,
            deadline=math.inf if patient else None,
            max_attempts=6,
            tenant=tenant,
        )
        workers = self.core.view.workers.values()
        before = self.core.waiting
        try:
            placed = self.core.admit(routed_request, self.now)
        except errors.QueueFull:
            assert before >= self.settings.max_queued  # more when tries came to nothing and took their old places
            return multiple()
        except errors.UnknownMethod:
            assert workers and not self.core.view.serves(method)
            return multiple()
        except errors.NotEntitled:
            assert workers and tenant and slots == 5
            return multiple()
        except errors.InvalidRequest:
            assert model and workers and not any(worker.max_models or worker.models for worker in workers)
            return multiple()
        except errors.Saturated:
            assert workers and all(0 < worker.total < slots for worker in workers)
            return multiple()
        self.alive.append(routed_request)
        assert placed == (routed_request.worker is not None) == (not routed_request.waits)
        return routed_request

    @rule(routed_request=routed_requests, fate=st.sampled_from(list(TryOutcome)))
    def comes_to_nothing(self, routed_request: RoutedRequest, fate: TryOutcome) -> None:
        worker = routed_request.worker
        if worker is None:
            return
        self.core.settle(routed_request)
        self.core.turned_down(routed_request, worker, fate)
        try:
            self.core.again(routed_request, fate, self.now)
        except errors.GanglineError as error:
            self.alive.remove(routed_request)
            if fate.may_have_started:
                assert error.may_have_started
        else:
            assert routed_request.attempts <= 6
            assert fate.allows_retry(routed_request.repeatable)

    @rule(routed_request=routed_requests)
    def is_answered(self, routed_request: RoutedRequest) -> None:
        if routed_request.worker is not None:
            self.core.settle(routed_request)
            self.core.settle(routed_request)
            self.core.accepted(routed_request, self.now)
            self.alive.remove(routed_request)
            self.pump()

    @rule(routed_request=routed_requests)
    def is_given_up(self, routed_request: RoutedRequest) -> None:
        if routed_request in self.alive:
            self.core.withdraw(routed_request)
            self.core.withdraw(routed_request)
            self.alive.remove(routed_request)
            self.pump()

    @rule(
        name=st.sampled_from(["w0", "w1", "w2", "w3"]),
        slots=st.integers(0, 4),
        node=st.sampled_from(["n0", "n1"]),
        zone=st.sampled_from(["z0", "z1"]),
        gpu=st.booleans(),
        old=st.booleans(),
        max_models=st.sampled_from([0, 2]),
        draining=st.booleans(),
        restart=st.booleans(),
    )
    def registers(
        self,
        name: str,
        slots: int,
        node: str,
        zone: str,
        gpu: bool,
        old: bool,
        max_models: int,
        draining: bool,
        restart: bool,
    ) -> None:
        self.revision += 1
        self.instances[name] += restart
        record = Registration(
            pool="pool",
            worker=name,
            epoch=self.revision,
            instance=f"{name}-{self.instances[name]}",
            state="draining" if draining else "serving",
            slots=slots,
            methods={"one": METHODS["one"]} if old else METHODS,
            max_models=max_models,
            node=node,
            zone=zone,
            labels={"gpu": "yes"} if gpu else {},
        )
        replaced = self.core.registered(record, self.revision, self.now)
        if replaced is not None:
            self.lose(replaced)
        self.pump()

    @rule(data=st.data(), running=st.integers(0, 5), reserved=st.integers(0, 2), draining=st.booleans())
    @precondition(lambda self: self.core.view.workers)
    def reports(self, data: st.DataObject, running: int, reserved: int, draining: bool) -> None:
        worker = self.pick(data)
        load = Load(running, reserved, worker.total, LoadFlag.DRAINING if draining else 0)
        self.core.loaded(worker, load, data.draw(st.sampled_from([worker.epoch, worker.epoch - 1])), self.now)
        self.core.view.has_models(worker, data.draw(st.sampled_from([(), ("m",), ("m", "n")])), self.now)
        self.pump()

    @rule(data=st.data())
    @precondition(lambda self: self.core.view.workers)
    def is_unreachable(self, data: st.DataObject) -> None:
        self.core.view.unreachable(self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: self.core.view.workers)
    def is_lost(self, data: st.DataObject) -> None:
        worker = self.pick(data)
        assert self.core.gone(worker, self.now)
        assert not self.core.gone(worker, self.now)
        self.lose(worker)

    @rule(connected=st.booleans())
    def connection(self, connected: bool) -> None:
        self.core.connected = connected
        self.pump()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.5, 12.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.core.view.age(self.now)
        delay = self.core.next_wake_s(self.now)
        assert (delay is None) == (self.core.waiting == 0)
        if delay is not None:
            assert 0 <= delay <= max(0.5, self.settings.no_workers_wait_s)
            self.now += delay
            self.carry_out(self.core.wake(self.now))

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def laws(self) -> None:
        self.core.check()
        for routed_request in self.alive:
            assert routed_request.waits != (routed_request.worker is not None), routed_request
        charged: Counter[str] = Counter()
        for routed_request in self.alive:
            if routed_request.worker is not None:
                charged[f"{routed_request.worker.id} {routed_request.worker.instance}"] += routed_request.cost
        for worker in self.core.view.workers.values():
            assert worker.own == charged[f"{worker.id} {worker.instance}"]
        used = sum(each.cost for each in self.alive if each.worker is not None and each.tenant == "lab")
        assert used <= 3 and self.core._slots == ({"lab": used} if used else {})
        assert self.core.placed == sum(routed_request.worker is not None for routed_request in self.alive)
        assert self.core.waiting == sum(routed_request.waits is not None for routed_request in self.alive)
        routed, completed = self.policy.routed_count, self.policy.completed_count
        assert routed.total() - completed.total() == self.core.placed

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.core.connected:
            self.pump()
            for head in self.core._line.heads():
                assert self.policy.choose(self.core._candidates.of(head), head) is None

    # -- inside ---------------------------------------------------------------------------------------------------

    def pick(self, data: st.DataObject) -> WorkerEntry:
        name = data.draw(st.sampled_from(sorted(self.core.view.workers)))
        return self.core.view.workers[name]

    def pump(self) -> None:
        heads = {(each.queue, each.tenant): each.number for each in reversed(list(self.core._line))}
        effects = self.core.pump(self.now)
        seen: Counter[Any] = Counter()
        for effect in effects:
            assert isinstance(effect, Placed)
            queue = effect.routed_request.queue, effect.routed_request.tenant
            if not seen[queue]:
                assert effect.routed_request.number == heads[queue], "the oldest of a class and tenant goes first"
            assert seen[queue] < effect.routed_request.number
            seen[queue] = effect.routed_request.number
        self.carry_out(effects)

    def carry_out(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, PlacementRefused):
                assert effect.routed_request.worker is None and not effect.routed_request.waits
                self.alive.remove(effect.routed_request)
            else:
                assert effect.routed_request.worker is not None

    def lose(self, worker: WorkerEntry) -> None:
        for routed_request in [routed_request for routed_request in self.alive if routed_request.worker is worker]:
            self._end(routed_request)

    def _end(self, routed_request: RoutedRequest) -> None:
        self.core.settle(routed_request)
        try:
            self.core.again(routed_request, TryOutcome.LOST, self.now)
        except errors.GanglineError as error:
            assert error.may_have_started or routed_request.uncertain, "the caller must be told; see caller.py"
            self.alive.remove(routed_request)


CoreMachine.TestCase.settings = settings(max_examples=repetitions(10, whole=75), stateful_step_count=40, deadline=None)
TestCore = CoreMachine.TestCase
