"""Planted bugs in what keeps and runs durable tasks: law L10, and what routes and keys promise. See mutants."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gangline.bus.port.bus import Published, StreamMessage, StreamSettings
from gangline.bus.streams.pull_consumer import PullConsumer
from gangline.dispatcher.durable.core import queue_core
from gangline.dispatcher.durable.core.effects import Persist
from gangline.dispatcher.durable.core.events import TaskArrived
from gangline.dispatcher.durable.core.queue_core import QueueCore
from gangline.dispatcher.durable.core.scheduler import StartScheduler
from gangline.dispatcher.durable.core.task import QueueState, Task
from gangline.dispatcher.durable.messages.entry import QueuedMessage
from gangline.dispatcher.durable.ownership.ownership_core import Trust
from gangline.dispatcher.durable.persistence import records
from gangline.dispatcher.durable.persistence.outcome_store import Answer, OutcomeStore
from gangline.dispatcher.durable.persistence.writers import DueCopyRemover
from gangline.dispatcher.durable.policies import retry_policy as retry_module
from gangline.dispatcher.durable.policies import start_order as keys_module
from gangline.dispatcher.durable.policies.start_order import Place, RankedSet, ReadyQueue
from gangline.dispatcher.durable.queue import attempts as flights_module
from gangline.dispatcher.durable.queue.attempts import AttemptSender
from gangline.dispatcher.durable.queue.queue_runner import QueueRunner
from gangline.dispatcher.durable.queue.recovery import QueueRecovery
from gangline.dispatcher.durable.queue.slot_lessor import SlotLessor
from gangline.dispatcher.durable.queue.tenant_reader import TenantReader
from gangline.dispatcher.durable.workers.failure_detector import WorkerFailureDetector
from gangline.dispatcher.jobs.dead_letters import DeadLetter, DeadLetters
from gangline.dispatcher.jobs.queries import JobQueries
from gangline.dispatcher.jobs.result_waits import _EndpointWaits
from gangline.dispatcher.jobs.storage import TaskStorage
from gangline.dispatcher.routing.wait_queue import TenantTurns
from gangline.runtime.rate import RateLimiter
from gangline.schemas.messages import submission as submission_module
from gangline.schemas.messages.jobs import ListReply, ListRequest
from gangline.schemas.messages.submission import Submission
from gangline.schemas.names import Names
from gangline.schemas.wire import headers
from gangline.schemas.wire.frames import Frame, Reason
from gangline.testing.sim.plan.durable_draw import draw_durable_plan
from gangline.testing.sim.plan.durable_plan import JobKind, JobStep
from gangline.testing.sim.plan.histories import (
    draw_cut_off_plan,
    draw_late_deliveries_plan,
    draw_listed_plan,
    draw_lost_deliveries_plan,
    draw_returned_plan,
    draw_shared_unit_plan,
    draw_tenants_plan,
    draw_unacknowledged_plan,
    draw_unheard_plan,
    draw_withdrawn_plan,
)
from gangline.testing.sim.plan.plan import DISPATCHER_FAULTS, Accident, Plan, leader_of
from gangline.worker.server import WorkerServer
from gangline.worker.slots.admission_core import AdmissionCore
from gangline.worker.slots.job_table import JobKey, JobTable
from gangline.worker.slots.lease_table import RouterHistory
from gangline.worker.slots.method_limits import MethodLimit
from gangline.worker.wire.answer_batcher import FrameResponder
from gangline.worker.wire.durable_jobs import DurableJobServer, JobName

from .mutants import has, mutant

durable_mutant = functools.partial(mutant, draw=draw_durable_plan)

_ELECTING = (Accident.SILENCE, Accident.SPLIT)


def _steps(plan: Plan) -> tuple[JobStep, ...]:
    assert plan.durable is not None
    return plan.durable.steps


def _rule(name: str) -> Callable[[Plan], bool]:
    """Plans in which some route has it."""

    def needs(plan: Plan) -> bool:
        assert plan.durable is not None
        return any(getattr(step.route.queue, name) for step in plan.durable.routes)

    return needs


def _loses_a_dispatcher(plan: Plan) -> bool:
    return any(event.accident in (*DISPATCHER_FAULTS, Accident.DISPATCHER_STOP) for event in plan.events)


def _hands_over(plan: Plan) -> bool:
    """Plans in which a dispatcher leaves, so that nothing explains a second start."""
    return any(event.accident is Accident.DISPATCHER_STOP for event in plan.events)


def _rolls_out(plan: Plan) -> bool:
    """Plans in which dispatchers and a worker are replaced at the same time, and little else befalls them."""
    pool_observer = any(event.accident is Accident.ROLL_OUT for event in plan.events)
    return pool_observer and not plan.storms and len(plan.events) < 8


def _ordered(plan: Plan) -> bool:
    """Plans with order, and without messages that get lost."""
    lossy = any(storm.rates.drop for storm in plan.storms)
    return not lossy and sum(step.ordered for step in _steps(plan)) > 5


def _crowded(plan: Plan) -> bool:
    """Plans in which more is submitted at once than there is room for, and nothing goes wrong."""
    return plan.calm and sum(step.priority != 0 and step.key is None for step in _steps(plan)) > 8


def _replays(plan: Plan) -> bool:
    """Plans in which dead letters are sent anew."""
    return sum(step.kind is JobKind.REPLAY for step in _steps(plan)) > 3


def _large(plan: Plan) -> bool:
    """Plans with large results."""
    return any(step.padding for step in _steps(plan))


def _repeats(plan: Plan) -> bool:
    """Plans with schedules."""
    return any(step.kind is JobKind.REPEAT_RAW for step in _steps(plan))


# -- L10: no task lost ------------------------------------------------------------------------------------------------


@durable_mutant("L10", needs=_hands_over, instead_of=(QueueRecovery, "jobs"))
async def who_takes_a_queue_over_does_not_ask_what_runs(self: QueueRecovery) -> list[Any]:
    return []


@mutant("L10", draw=draw_unacknowledged_plan)
def what_is_sent_again_still_says_that_it_is_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(headers, "sent_again", dict)


@mutant("L10", draw=draw_unheard_plan)
def a_dispatcher_believes_that_a_queue_is_its_own_until_it_hears_otherwise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trust, "holds", lambda self, now: True)


@durable_mutant("L10", instead_of=(OutcomeStore, "_publish_dead"))
async def a_task_is_acknowledged_and_its_dead_letter_left_for_later(self: OutcomeStore, *args: Any) -> Published:
    return Published(sequence=1)


@durable_mutant("outcome", instead_of=(OutcomeStore, "_store"))
def a_task_is_acknowledged_without_its_result(
    self: OutcomeStore, entry: QueuedMessage, effect: Persist, answer: Answer
) -> None:
    answer(None)


@durable_mutant("outcome", around=(OutcomeStore, "_create"))
def a_result_is_told_before_it_is_stored(
    original: Any, self: OutcomeStore, effect: Persist, record: bytes, done: Callable[[bool], None]
) -> None:
    self._on_stored(effect, record)
    original(self, effect, record, done)


@durable_mutant("outcome", needs=_loses_a_dispatcher)
def clients_whose_dispatcher_is_gone_go_on_waiting_for_its_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_EndpointWaits, "_give_up", lambda self, names, pause_s: None)


@durable_mutant("L10", needs=_large, instead_of=(OutcomeStore, "_store_large"))
async def the_record_of_a_large_result_comes_before_the_result(
    self: OutcomeStore, entry: QueuedMessage, effect: Persist, body: bytes, answer: Answer
) -> None:
    name = f"{effect.job}-{effect.attempts}"
    record = records.result_of(entry, effect, wall=self._ambient.wall(), object=name)
    self._create(effect, record, lambda first: self._stored(entry, effect, first, answer))
    await (await self._streams.objects()).put(name, body)


@durable_mutant("L10")
def a_failing_task_is_tried_once_more_than_it_may(patch: pytest.MonkeyPatch) -> None:
    original = queue_core.max_attempts
    patch.setattr(queue_core, "max_attempts", lambda *args, **more: original(*args, **more) + 1)


# -- roll-outs --------------------------------------------------------------------------------------------------------


@durable_mutant("roll-out", needs=_rolls_out, seeds=60)
def a_draining_worker_leaves_before_its_ends_are_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdmissionCore, "may_leave", property(lambda self: self.at_rest))


@durable_mutant("roll-out", needs=_rolls_out, seeds=60, around=(AttemptSender, "_meta"))
def a_dispatcher_that_attaches_does_not_promise_to_store_the_end(
    original: Any, self: AttemptSender, entry: QueuedMessage, submission: Submission
) -> dict[str, Any]:
    """So the worker leaves as soon as it has answered, whether or not that dispatcher is there to hear it."""
    return {name: value for name, value in original(self, entry, submission).items() if name != "acks"}


@durable_mutant("roll-out", needs=_rolls_out, seeds=60, around=(QueueRecovery, "jobs"))
async def a_new_dispatcher_looks_only_at_what_runs(original: Any, self: QueueRecovery) -> list[Any]:
    return [(worker, job) for worker, job in await original(self) if job.running]


# -- busy -------------------------------------------------------------------------------------------------------------


@durable_mutant("busy")
def a_refused_attach_is_repeated_at_once(patch: pytest.MonkeyPatch) -> None:
    original = DurableJobServer.attach

    def attach(
        self: DurableJobServer, name: JobName, sender: RouterHistory, caller: FrameResponder, frame: Frame, now: float
    ) -> Any:
        return Reason.FULL if name.attach else original(self, name, sender, caller, frame, now)

    patch.setattr(DurableJobServer, "attach", attach)
    patch.setattr(flights_module, "_ATTACH_AGAIN_S", 0.001)


# -- replays ----------------------------------------------------------------------------------------------------------


@durable_mutant("L10", needs=_replays, around=(DeadLetters, "_fields_again"))
def a_task_that_is_sent_anew_counts_from_one(original: Any, self: DeadLetters, letter: DeadLetter) -> dict[str, str]:
    return {name: value for name, value in original(self, letter).items() if name != headers.ATTEMPTS}


@durable_mutant("L10", needs=_replays, instead_of=(DeadLetters, "_remove"))
async def the_letter_of_a_task_that_is_sent_anew_stays(self: DeadLetters, letter: DeadLetter) -> None:
    pass


# -- schedules --------------------------------------------------------------------------------------------------------


@durable_mutant("L10", needs=_repeats, around=(records, "schedule_of"))
def the_firings_of_a_schedule_have_the_id_of_the_schedule(
    original: Any, names: Names, message: StreamMessage, submission: Submission, *, wall: float
) -> tuple[str, dict[str, str]]:
    """So that all but the first are taken for repetitions of it."""
    subject, given = original(names, message, submission, wall=wall)
    return subject, {**given, headers.JOB: submission.job}


def _delays_through_an_election(plan: Plan) -> bool:
    """Plans in which the streams change their leader, with tasks that come due."""
    return plan.elects and sum(step.delay_s is not None or step.period_s is not None for step in _steps(plan)) > 8


@durable_mutant("L10", needs=_delays_through_an_election, seeds=600, around=(TaskStorage, "tasks"))
def a_queue_has_no_start_among_the_schedules(original: Any, self: TaskStorage, names: Names) -> StreamSettings:
    settings = original(self, names)
    return replace(settings, sources=tuple(replace(source, start=0) for source in settings.sources))


def _fires_before_an_election(plan: Plan) -> bool:
    """Plans in which schedules have fired by the time the streams change their leader."""
    leader = leader_of(plan.seed)
    silent = [each.at_s for each in plan.events if each.amount == leader and each.accident in _ELECTING]
    return max(silent, default=0.0) > 3.0 and sum(step.period_s is not None for step in _steps(plan)) > 1


@durable_mutant("L10", needs=_fires_before_an_election, seeds=200, instead_of=(DueCopyRemover, "remove"))
def a_due_task_is_acknowledged_before_it_has_left_the_schedules(
    self: DueCopyRemover, sequence: int, done: Callable[[], None]
) -> None:
    done()


@durable_mutant("L10", needs=_repeats, instead_of=(JobQueries, "_unschedule"))
async def a_schedule_that_is_cancelled_stays(self: JobQueries, *args: Any) -> bool:
    return True


@durable_mutant("L10", needs=_repeats, around=(queue_core.HANDLERS, TaskArrived))
def a_schedule_that_comes_as_a_task_is_run_as_one(original: Any, self: QueueCore, event: TaskArrived) -> None:
    original(self, replace(event, submission=event.submission._replace(cron=None)))


@mutant("hang", draw=draw_lost_deliveries_plan)
def heartbeats_do_not_tell_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullConsumer, "on_heartbeat", lambda self, ordinal, sequence: self._hear())


@mutant("L10", draw=draw_cut_off_plan, around=(AttemptSender, "start"))
def what_waits_is_started_after_a_doubt_as_before(
    original: Any, self: AttemptSender, entry: QueuedMessage, *rest: Any
) -> None:
    entry.doubts = self.doubts
    original(self, entry, *rest)


# -- limits and order -------------------------------------------------------------------------------------------------


@durable_mutant("per-key", needs=_rule("per_key"))
def one_more_of_a_key_may_run(patch: pytest.MonkeyPatch) -> None:
    class Generous(keys_module.KeyConcurrency):
        def __init__(self, limit: int | None, rate: RateLimiter | None = None, **others: Any) -> None:
            super().__init__(None if limit is None else limit + 1, rate, **others)

    patch.setattr("gangline.dispatcher.durable.core.scheduler.KeyConcurrency", Generous)


@durable_mutant("order", needs=_ordered, instead_of=(StartScheduler, "admit"))
def whoever_has_room_goes_first(self: StartScheduler, task: Task) -> None:
    task.pool = self.pools.choose(task.submission, task.draw).name
    self._cap(task)


@durable_mutant("turn", needs=_crowded)
def nobody_goes_before_anybody(patch: pytest.MonkeyPatch) -> None:
    def place(submission: Submission, seq: int, age_step_s: float, declared: int | None = None) -> Place:
        return (submission.published_at, seq)

    for module in ("queue_core", "scheduler"):
        patch.setattr(f"gangline.dispatcher.durable.core.{module}.place_of", place)


@durable_mutant("turn", needs=_crowded)
def who_waits_never_grows_older(patch: pytest.MonkeyPatch) -> None:
    def place(submission: Submission, seq: int, age_step_s: float, declared: int | None = None) -> Place:
        priority = declared if submission.priority is None else submission.priority
        return (-(priority or 0), seq)

    for module in ("queue_core", "scheduler"):
        patch.setattr(f"gangline.dispatcher.durable.core.{module}.place_of", place)


@durable_mutant("turn", needs=_crowded, around=(ReadyQueue, "add"))
def the_newest_of_a_line_starts(original: Any, self: ReadyQueue, place: Place, cost: int, tenant: str = "") -> None:
    if tenant not in self._lines:
        self._lines[tenant] = {}
        self.turns.enter(tenant)
    self._lines[tenant].setdefault(cost, RankedSet(reverse=True))
    original(self, place, cost, tenant)


@mutant("tenant", draw=draw_tenants_plan)
def tenants_take_no_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantTurns, "served", lambda self, tenant, more=0.0: 0.0)


@mutant("tenant", draw=draw_tenants_plan)
def nothing_beyond_the_window_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantReader, "wake", lambda self: None)


@mutant("L10", draw=draw_tenants_plan)
def tenants_share_the_ids_of_jobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submission_module, "job_of_tenant", lambda job, endpoint, tenant: job)


@mutant("L10", draw=draw_late_deliveries_plan, around=(QueueState, "drop"))
def what_was_read_beyond_the_window_and_has_ended_is_new_when_it_is_delivered(
    original: Any, self: QueueState, task: Task
) -> None:
    original(self, task)
    self.removed.clear()


@durable_mutant("idle", needs=_crowded, around=(SlotLessor, "_asked"))
def a_lease_that_was_not_had_is_not_asked_for_again(original: Any, self: SlotLessor, task: asyncio.Task[None]) -> None:
    slots = self._asks[task]
    original(self, task)
    self._asks[task] = slots


@durable_mutant("max-running", needs=_rule("max_running"), instead_of=(StartScheduler, "room"))
def what_runs_is_not_counted(self: StartScheduler) -> int:
    queue_state = self._state
    return len(queue_state.tasks) if queue_state.open and queue_state.sure and not queue_state.rules.paused else 0


def _declares(needs: Callable[[Plan], bool] = lambda plan: True) -> Callable[[Plan], bool]:
    """Plans in which tasks declare how many of them may run."""

    def fitting(plan: Plan) -> bool:
        assert plan.durable is not None
        return plan.durable.policy("job").max_running is not None and needs(plan)

    return fitting


def _shares_a_pool(plan: Plan) -> bool:
    """Plans in which several endpoints use a pool."""
    assert plan.durable is not None
    used = Counter(
        pool for step in plan.durable.routes for pool in step.route.pools(step.endpoint) if step.endpoint != pool
    )
    return bool(used)


@durable_mutant("declared", needs=_declares(_shares_a_pool))
def workers_do_not_keep_declared_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MethodLimit, "allows", lambda self, key, now: True)


@durable_mutant("declared", needs=_declares(), around=(StartScheduler, "limits_of"))
def dispatchers_do_not_keep_declared_limits(original: Any, self: StartScheduler, task: Task) -> Any:
    return tuple(each for each in original(self, task) if each[0] is self.concurrency)


@durable_mutant("declared", needs=_declares(_hands_over))
def what_runs_at_a_takeover_does_not_count_for_declared_limits(patch: pytest.MonkeyPatch) -> None:
    original = StartScheduler.limits_of

    def limits_of(self: StartScheduler, task: Task) -> Any:
        return original(self, task) if self._state.open else ()

    patch.setattr(StartScheduler, "limits_of", limits_of)
    patch.setattr(WorkerServer, "_new_limit_shares", lambda self, kv: None)  # workers would make up for it


@durable_mutant("L10", needs=_declares(), instead_of=(retry_module, "_first"))
def declared_attempts_are_not_read(default: Any, *given: Any) -> Any:
    return next((value for value in given[:2] if value is not None), default)


@durable_mutant("rate", needs=lambda plan: plan.calm and _rule("rate_per_s")(plan))
def nobody_looks_at_the_rate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RateLimiter, "ready", lambda self, now: True)


# -- silent servers ---------------------------------------------------------------------------------------------------


@durable_mutant("loss", needs=has(Accident.SPLIT, 4.0), seeds=80, instead_of=(WorkerFailureDetector, "_suspect"))
def that_nobody_listens_is_proof(self: WorkerFailureDetector, watched: Any) -> None:
    worker = watched.worker
    pool = self._router.pools[worker.id.pool]
    if pool.core.gone(worker, 0.0):
        pool._lost(worker, "nobody listens")


def _cancels_what_is_due_in_a_split(plan: Plan) -> bool:
    """A delayed task becomes due, and is cancelled soon after, while the server that led JetStream is cut off."""
    leader = leader_of(plan.seed)
    return any(
        event.at_s < step.at_s + step.delay_s < event.at_s + event.for_s - 1.0
        and step.delay_s < step.doom_after_s < step.delay_s + 2.0
        for event in plan.events
        if event.accident is Accident.SPLIT and event.amount == leader and event.for_s > 2.0
        for step in _steps(plan)
        if step.kind is JobKind.CANCEL and step.delay_s is not None and step.delay_s <= 1.0
    )


@durable_mutant("outcome", needs=_cancels_what_is_due_in_a_split, seeds=40, instead_of=(JobQueries, "_coming"))
async def what_a_schedule_has_published_is_unknown_until_its_queue_has_it(self: JobQueries, *args: Any) -> None:
    return None


# -- twins ------------------------------------------------------------------------------------------------------------


@mutant("L12", draw=draw_returned_plan, around=(JobTable, "stored"))
def an_execution_that_another_worker_has_taken_over_runs_on(
    original: Any, self: JobTable, key: JobKey, attempt: int, now: float
) -> None:
    original(self, key, attempt, now)


@mutant("L10", draw=draw_withdrawn_plan, instead_of=(JobQueries, "_cancel_submission"))
async def a_schedule_that_is_cancelled_leaves_the_message_that_it_was_made_from(self: JobQueries, *args: Any) -> bool:
    return False


@mutant("limit-waits", draw=draw_shared_unit_plan, around=(SlotLessor, "_lease"))
async def the_next_lease_is_asked_for_wherever_it_is_the_turn(
    original: Any, self: SlotLessor, slots: int, method: str | None, patience_s: float | None, prefers: str
) -> None:
    await original(self, slots, method, patience_s, "")


# -- lists ------------------------------------------------------------------------------------------------------------


@mutant("listed", draw=draw_listed_plan, around=(QueueRunner, "listed"))
def a_new_owner_says_that_it_has_read_what_was_there_when_it_took_the_queue(
    original: Any, self: QueueRunner, request: ListRequest, tenant: str = ""
) -> ListReply:
    reply = original(self, request, tenant)
    return reply.model_copy(update={"read_to": max(reply.read_to, self._old_to)})
