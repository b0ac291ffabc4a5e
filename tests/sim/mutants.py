"""Planted bugs: each replaces named methods of the worker or the router while a simulation runs.

A mutant is a small, believable mistake. Its law is the one that a reader would name; the simulator must report it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from gangline.board import board_core as board_module
from gangline.board.board_core import Board
from gangline.board.slots import Cells, WorkerSlots, slots_of
from gangline.dispatcher.leases import held_slots as hold_module
from gangline.dispatcher.leases.held_slots import HeldSlots, ReserveTarget, SlotRequest, SlotReserver
from gangline.dispatcher.leases.lease_slots import LeaseSlots
from gangline.dispatcher.leases.selection import Selection
from gangline.dispatcher.pools.pool import RoutedPool, WorkerDiscovery
from gangline.dispatcher.routing.worker_table import WorkerEntry, WorkerTable
from gangline.dispatcher.transport.channel import WorkerChannel
from gangline.dispatcher.transport.exchange import RequestExchange
from gangline.runtime.failure_detector import FailureDetector, FreezeDetector
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.wire.frames import RequestOp
from gangline.testing.sim.calls.slots import WorkerModel
from gangline.testing.sim.plan.histories import draw_absences_plan
from gangline.testing.sim.plan.plan import Accident, Plan, draw_plan
from gangline.testing.sim.run import Report, run
from gangline.worker.ledger import core_driver as driver_module
from gangline.worker.ledger.ledger_writer import LedgerWriter
from gangline.worker.server import WorkerServer
from gangline.worker.slots.admission_core import AdmissionCore
from gangline.worker.slots.lease_table import GrantedLease, LeaseTable, LeaseTransition, Refusal
from gangline.worker.slots.limiter import SlotLimiter

from ..support.planted import Place, Plant, planting

Needs = Callable[[Plan], bool]
Bug = TypeVar("Bug", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    law: str
    name: str
    plant: Plant
    needs: Needs
    """Seeds whose plan cannot show it are passed over."""
    seeds: int
    """Among how many seeds it must be caught."""
    draw: Callable[[int], Plan] = draw_plan
    """With gangs or without."""

    def plans(self) -> Iterator[Plan]:
        """Where to look for it."""
        fitting = (plan for plan in map(self.draw, itertools.count()) if self.needs(plan))
        return itertools.islice(fitting, self.seeds)

    def likely(self, seeds: Sequence[int]) -> Iterator[Plan]:
        """The same, but first the plans of seeds that have caught it."""
        first = [plan for plan in map(self.draw, seeds) if self.needs(plan)]
        yield from first
        tried = {plan.seed for plan in first}
        yield from (plan for plan in self.plans() if plan.seed not in tried)

    def play(self, plan: Plan) -> Report:
        """Run one, with the bug planted before."""
        return run(plan.seed, plan=plan)

    def catches(self, report: Report) -> bool:
        return any(violation.law == self.law for violation in report.violations)

    @property
    def id(self) -> str:
        return f"{self.law}-{self.name}"


MUTANTS: list[Mutant] = []


def mutant(
    law: str,
    *,
    needs: Needs = lambda plan: True,
    seeds: int = 40,
    draw: Callable[[int], Plan] = draw_plan,
    **place: Place,
) -> Callable[[Bug], Bug]:
    """Declare the decorated function, whose name tells the bug: it plants it, or is planted (see `planting`)."""

    def declare(bug: Bug) -> Bug:
        name = bug.__name__.replace("_", "-")
        MUTANTS.append(Mutant(law=law, name=name, plant=planting(bug, **place), needs=needs, seeds=seeds, draw=draw))
        return bug

    return declare


def has(accident: Accident, least_s: float = 0.0, most_s: float = 60.0) -> Needs:
    """Plans with that accident, of such a length."""
    return lambda plan: any(e.accident is accident and least_s < e.for_s < most_s for e in plan.events)


def nearly_only_a_silence(plan: Plan) -> bool:
    """A server is silent until heartbeats have expired, and few other accidents explain that a worker is missed."""
    return has(Accident.SILENCE, 3.5)(plan) and len(plan.events) <= 2


def twins_hear_the_same(plan: Plan) -> bool:
    """Two processes of one id, both without a channel of their own."""
    return has(Accident.WORKER_TWIN)(plan) and not any(worker.channel for worker in plan.workers)


# -- L1: capacity -------------------------------------------------------------------------------------------------


@mutant("L1")
def reservations_do_not_count_against_tasks(patch: pytest.MonkeyPatch) -> None:
    def run_nowait(self: SlotLimiter, borrower: object, slots: int = 1) -> bool:
        if self.running + slots > self.total:
            return False
        self._running[borrower] = slots
        self.running += slots
        return True

    patch.setattr(SlotLimiter, "run_nowait", run_nowait)
    patch.setattr(SlotLimiter, "free", property(lambda self: max(0, self.total - self.running)))


@mutant("L1")
def one_slot_too_many_is_granted(patch: pytest.MonkeyPatch) -> None:
    def reserve_nowait(self: SlotLimiter, borrower: object, slots: int = 1) -> bool:
        if self.reserved + self.running + slots > self.total + 1:
            return False
        self._reserved[borrower] = slots
        self.reserved += slots
        return True

    patch.setattr(SlotLimiter, "reserve_nowait", reserve_nowait)
    patch.setattr(AdmissionCore, "_no_room", lambda self, slots: Refusal.DRAINING if self.draining else None)


@mutant("L1", around=(AdmissionCore, "admit"))
def a_task_costs_one_slot_whatever_it_declares(
    original: Any, self: AdmissionCore, sender: Any, task_id: int, cost: int, *rest: Any, **named: Any
) -> Any:
    return original(self, sender, task_id, 1, *rest, **named)


@mutant("L1", needs=twins_hear_the_same, seeds=160)
def a_woken_worker_serves_before_its_id_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerServer, "_doubt", lambda self: self.new_epoch("frozen"))


# -- L2: balance --------------------------------------------------------------------------------------------------


@mutant("L2", around=(SlotLimiter, "release"))
def a_failing_use_of_a_lease_keeps_its_slots(original: Any, self: SlotLimiter, lease: object) -> int:
    return 0 if isinstance(lease, GrantedLease) and lease.single_use and not lease.claimed else original(self, lease)


@mutant("L2", around=(SlotLimiter, "finish"))
def a_finished_task_gives_back_twice(
    original: Any, self: SlotLimiter, task: object, lease: object | None = None
) -> int:
    slots = original(self, task, lease)
    self.running = max(0, self.running - slots)
    return slots


@mutant("L2", instead_of=(LeaseTable, "give_back"))
def slots_of_a_lease_that_ended_meanwhile_are_not_freed(self: LeaseTable, lease: GrantedLease, task: object) -> None:
    lease.busy -= self._limiter.finish(task, lease)


# -- L3: single use -----------------------------------------------------------------------------------------------


@mutant("L3")
def a_single_use_token_stays_good_after_its_task(patch: pytest.MonkeyPatch) -> None:
    def use(
        self: LeaseTable, lease: GrantedLease, task: object, slots: int, due_at: float, now: float
    ) -> Refusal | None:
        if slots > lease.slots - lease.busy:
            return Refusal.LEASE_BUSY
        self._limiter.start(lease, task, slots)
        lease.busy += slots
        self.extend(lease, due_at)
        return None

    patch.setattr(LeaseTable, "use", use)
    patch.setattr(Selection, "mark_used", lambda self: None)


@mutant("L3")
def a_lease_runs_more_than_its_slots(patch: pytest.MonkeyPatch) -> None:
    def use(
        self: LeaseTable, lease: GrantedLease, task: object, slots: int, due_at: float, now: float
    ) -> Refusal | None:
        if slots > lease.slots - lease.busy:
            # "There is room on the worker, so why not."
            return None if self._limiter.run_nowait(task, slots) else Refusal.LEASE_BUSY
        return original(self, lease, task, slots, due_at, now)

    original = LeaseTable.use
    patch.setattr(LeaseTable, "use", use)
    # The client counts for itself; one that does not is what the worker's count is there for.
    patch.setattr(LeaseSlots, "take_nowait", lambda self, ticket: True)
    patch.setattr(LeaseSlots, "give", lambda self, ticket: None)


# -- L4: no leak --------------------------------------------------------------------------------------------------


@mutant("L4")
def nothing_expires_by_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseTable, "expire", lambda self, now: 0)
    patch.setattr(LeaseTable, "next_at", lambda self: None)


@mutant("L4", around=(LeaseTable, "extend"))
def a_used_lease_never_expires(original: Any, self: LeaseTable, lease: GrantedLease, due_at: float) -> None:
    original(self, lease, due_at + 30.0)


# -- L5: expired is dead ------------------------------------------------------------------------------------------


@mutant("L5", needs=has(Accident.WORKER_FREEZE, 0.6, 1.0), seeds=300, instead_of=(LeaseTable, "find"))
def an_overdue_lease_is_good_until_the_timer_comes(self: LeaseTable, token: str, now: float) -> GrantedLease | Refusal:
    lease = self.living.get(token)
    return Refusal.UNKNOWN_TOKEN if lease is None else lease


@mutant("L5", needs=has(Accident.WORKER_FREEZE, 1.0))
def a_freeze_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    class Blind(FreezeDetector):
        def frozen(self, now: float) -> bool:
            return False

        def tick(self, now: float) -> bool:
            return False

    patch.setattr("gangline.worker.server.FreezeDetector", Blind)


@mutant("L5")
def a_holder_measures_from_the_answer_and_trusts_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hold_module, "margin_s", lambda ttl_s: -0.5)


@mutant("L5", needs=has(Accident.WORKER_FREEZE, 1.0), around=(LeaseTable, "end"))
def the_leases_of_an_older_epoch_stay_good(
    original: Any, self: LeaseTable, lease: GrantedLease, change: LeaseTransition, now: float
) -> None:
    if change is not LeaseTransition.DROP:
        original(self, lease, change, now)


# -- L6: the ledger -----------------------------------------------------------------------------------------------


@mutant("L6")
def the_ledger_is_written_when_there_is_time(patch: pytest.MonkeyPatch) -> None:
    from gangline.worker.ledger import ledger_writer as ledger

    patch.setattr(ledger, "FLUSH_S", 0.2)


@mutant("L6", around=(LedgerWriter, "_write_for"))
def released_leases_are_left_to_expire_in_the_ledger(original: Any, self: LedgerWriter, token: str) -> Any:
    write = original(self, token)
    return None if write is not None and write.value is None else write


# -- L11: drain ---------------------------------------------------------------------------------------------------


@mutant("L11", needs=has(Accident.DRAIN), seeds=200, instead_of=(AdmissionCore, "_no_room"))
def a_draining_worker_goes_on_granting(self: AdmissionCore, slots: int) -> Refusal | None:
    return Refusal.FULL if slots > self._limiter.free else None


@mutant("L11", needs=has(Accident.DRAIN), around=(AdmissionCore, "_admit_on_lease"))
def a_draining_worker_refuses_what_it_granted(original: Any, self: AdmissionCore, *args: Any, **rest: Any) -> Any:
    return Refusal.DRAINING if self.draining else original(self, *args, **rest)


@mutant("L11", needs=has(Accident.DRAIN))
def a_drain_leaves_while_tasks_run(patch: pytest.MonkeyPatch) -> None:
    from gangline.worker.service import Worker

    async def drain(self: Worker, desk: Any) -> None:
        await self._leave()

    async def clear(self: Worker, desk: Any) -> None:
        desk.journal.write("leave")

    patch.setattr(Worker, "_drain", drain)
    patch.setattr(Worker, "_clear", clear)


# -- L12: accounting ----------------------------------------------------------------------------------------------


@mutant("L12", around=(LedgerWriter, "_write_for"))
def ended_leases_stay_in_the_ledger_for_ever(original: Any, self: LedgerWriter, token: str) -> Any:
    from gangline.bus.port.bus import KvWrite

    write = original(self, token)
    if write is None or write.value is None:
        return None
    return KvWrite(key=write.key, value=write.value)


@mutant("L12", instead_of=(HeldSlots, "release"))
def a_router_forgets_to_count_down(self: HeldSlots) -> None:
    if not self._ended:
        self._ended = True
        self._stop()
        self._exchange.post(self.worker, (RequestOp.RELEASE, self.reserve_id, self.token))


@mutant("L12")
def the_heartbeat_tells_a_load_of_long_ago(patch: pytest.MonkeyPatch) -> None:
    from gangline.worker.registration.description import WorkerDescription

    busy: dict[object, Any] = {}
    original = WorkerDescription.heartbeat

    def heartbeat(self: WorkerDescription) -> Any:
        beat = original(self)
        if beat.running + beat.reserved:
            busy[self] = beat
        return busy.get(self, beat)

    patch.setattr(WorkerDescription, "heartbeat", heartbeat)


# -- outcomes -----------------------------------------------------------------------------------------------------


@mutant("outcome")
def a_duplicate_runs_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdmissionCore, "repeated", lambda self, sender, task_id: None)


@mutant("outcome", needs=has(Accident.WORKER_CRASH), seeds=80)
def whatever_was_lost_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    from gangline.dispatcher.routing.outcome import TryOutcome

    patch.setattr(TryOutcome, "allows_retry", lambda self, idempotent: True)


def watched_crash(plan: Plan) -> bool:
    """Workers die while somebody listens to all public subjects."""
    return plan.watched and has(Accident.WORKER_CRASH)(plan)


@mutant("doubt", needs=watched_crash, seeds=80, around=(WorkerTable, "_describe"))
def tasks_are_sent_where_others_listen(original: Any, self: WorkerTable, worker: WorkerEntry, record: Any) -> None:
    original(self, worker, record)
    worker.channel = ""


@mutant("doubt", needs=has(Accident.WORKER_CRASH), seeds=80)
def the_servers_word_that_nobody_listens_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestExchange, "_on_unheard", lambda self, channel, check: None)


@mutant("hang", around=(ReserveTarget, "__init__"))
def a_reserve_is_awaited_past_its_callers_deadline(
    original: Any, self: ReserveTarget, reserver: SlotReserver, pool: RoutedPool, asked: SlotRequest
) -> None:
    late = None if asked.deadline is None else asked.deadline + 1.0
    original(self, reserver, pool, asked._replace(deadline=late))


# -- two processes of one id ------------------------------------------------------------------------------------------


def _wakes_as_if_nothing_had_happened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerServer, "_doubt", lambda self: self.new_epoch("frozen"))
    patch.setattr(WorkerServer, "fence", lambda self: self.new_epoch("id taken"))


@mutant("outcome", needs=twins_hear_the_same, seeds=80)
def any_process_of_an_id_is_believed_that_nothing_started(patch: pytest.MonkeyPatch) -> None:
    _wakes_as_if_nothing_had_happened(patch)
    patch.setattr(RequestExchange, "_of_another", lambda self, flight, frame, epoch: False)
    patch.setattr(WorkerModel, "_must_be_alone", lambda self, what: None)


@mutant("hang", needs=twins_hear_the_same, seeds=80)
def an_epoch_that_no_heartbeat_names_stands_for_ever(patch: pytest.MonkeyPatch) -> None:
    def confirm(self: WorkerTable, worker: WorkerEntry, epoch: int) -> None:
        worker.confirmed = max(worker.confirmed, epoch)

    _wakes_as_if_nothing_had_happened(patch)
    patch.setattr(WorkerTable, "confirm", confirm)
    patch.setattr(WorkerModel, "_must_be_alone", lambda self, what: None)


# -- silent servers ---------------------------------------------------------------------------------------------------


def _lose_at_once(self: RoutedPool, worker: WorkerEntry, why: str) -> None:
    if self.core.gone(worker, self._loop.time()):
        self._lost(worker, why)


@mutant("loss", needs=has(Accident.SILENCE, 3.5))
def who_is_silent_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoutedPool, "suspect", _lose_at_once)


@mutant("loss", needs=has(Accident.SPLIT, 3.5))
def who_is_behind_a_split_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoutedPool, "suspect", _lose_at_once)


@mutant("loss", needs=has(Accident.REFUSED_DELETE, -1.0), instead_of=(RoutedPool, "leaving"))
def a_deletion_is_believed_that_storage_refuses(self: RoutedPool, worker: str) -> None:
    if (known := self.core.view.workers.get(worker)) is not None:
        self._left(known)


@mutant("secret")
def the_ledger_has_the_tokens_of_leases(patch: pytest.MonkeyPatch) -> None:
    original, grant, secrets = driver_module.LeaseRecord, LeaseTable.grant, dict[str, str]()
    patch.setattr(driver_module, "LeaseRecord", lambda token, **fields: original(token=secrets[token], **fields))

    def granted(self: LeaseTable, lease: GrantedLease) -> bool:
        secrets[lease.id] = lease.token
        return grant(self, lease)

    patch.setattr(LeaseTable, "grant", granted)


@mutant("loss", needs=nearly_only_a_silence, instead_of=(FailureDetector, "answered"))
def an_old_view_of_the_ledger_is_believed(
    self: FailureDetector[Any], who: Any, *, asked_at: float, now: float, alive: bool
) -> str | None:
    """However late an answer comes, and whatever comes after it."""
    if alive or who not in self:
        return None
    self.clear(who)
    return "its heartbeat has expired"


@mutant("loss", needs=has(Accident.SILENCE, 3.5), around=(WorkerDiscovery, "beats"))
async def a_ledger_that_does_not_answer_knows_of_no_heartbeat(
    original: Any, self: WorkerDiscovery, worker: str, instance: str
) -> bool:
    try:
        async with asyncio.timeout(0.5):
            return await original(self, worker, instance)
    except (TimeoutError, GanglineError):
        return False


# -- the board: what people are shown -----------------------------------------------------------------------------


@mutant("board")
def slots_are_free_if_the_last_heartbeat_says_so(patch: pytest.MonkeyPatch) -> None:
    def slots(registration: Any, heartbeat: Any, *entries: Any) -> WorkerSlots:
        right = slots_of(registration, heartbeat, *entries)
        if heartbeat is None or right.lost:
            return right
        free = max(0, heartbeat.total - heartbeat.running - heartbeat.reserved)
        cells = tuple(each for each in right.cells if each.kind != "free")
        return replace(right, free=free, cells=(*cells, Cells("free", free)) if free else cells)

    patch.setattr(board_module, "slots_of", slots)
    patch.setattr(Board, "check", lambda self: None)  # the simulator must see it by itself


@mutant("board", around=(Board, "see_entry"))
def the_end_of_a_lease_is_not_shown(original: Any, self: Board, key: str, value: bytes | None) -> None:
    if value is not None or not key.startswith("lease."):
        original(self, key, value)


@mutant("board", around=(Board, "take"))
def a_delta_leaves_out_what_is_gone(original: Any, self: Board) -> Any:
    delta = original(self)
    return delta if delta is None else replace(delta, gone={})


# -- absences ---------------------------------------------------------------------------------------------------------


@mutant("outcome", draw=draw_absences_plan, instead_of=(RequestExchange, "_on_unheard_check"))
def two_absences_of_a_worker_are_one(self: RequestExchange, channel: WorkerChannel, check: int) -> None:
    if check == channel.checks:
        self._nobody_there(channel)
