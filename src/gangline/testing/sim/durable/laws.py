"""Law L10 and the other laws of durable tasks, checked whenever one starts, ends or is reported.

The facts come from the tasks' code, writes to the bucket of results, the server's streams, and answers to clients,
never from dispatchers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ....bus.memory.server import MemoryServer
from ....bus.port.bus import KvEntry, StreamMessage
from ....schemas.errors.base import GanglineError, JobError
from ....schemas.messages.jobs import JobInfo
from ....schemas.names import Names
from ....schemas.records.jobs import JobState, ResultRecord, TurnRecord
from ....worker.context.task_context import TaskContext
from ..calls.shared_limits import Waiter
from ..history.checker import Checker
from ..history.troubles import SERVER, SILENCE, Troubles
from ..plan.durable_plan import DurableTraffic, JobEnding, JobKind, JobStep
from ..plan.plan import LATENCY_S, MAX_DELAY_S
from .crons import CronWatch
from .ends import Ends
from .limits import Idle, Limits, Room, Turns
from .records import JobModel, TaskBody, of_job

DEADLINE_SLACK_S = 2.6
"""As for calls: the longest delay of a message, plus the longest freeze that the detector tolerates."""


CANCEL_SLACK_S = 5.0
"""Time that a dispatcher may take to look up a task before it starts it."""

ON_ITS_WAY_S = MAX_DELAY_S + 0.1
"""How long a message to a worker may take ..."""
ON_ITS_WAY_CALM_S = 4 * LATENCY_S
"""... and without faults."""


TRUSTED_S = 1.25
"""For this long after another dispatcher has taken a queue, tasks sent by the previous one may still arrive; clocks
differ."""
TAKEN_OVER_S = 2.0
"""After a restart of all dispatchers, one of them owns the queue again within this part of a drain's grace time."""
HELD_UP_S = 1.0
"""A record that is stored later than this after its task has ended was held up."""


class JobWatch:
    """All durable tasks of a run.

    Args:
        quiet_for: seconds since the last fault.
        drains_for: how long that worker process has been draining, and its grace time; None: it does not drain.
        rooms: see limits.Idle.
    """

    def __init__(
        self,
        checker: Checker,
        hub: MemoryServer,
        names: Names,
        traffic: DurableTraffic | None,
        troubles: Troubles,
        *,
        quiet_for: Callable[[], float],
        drains_for: Callable[[str], tuple[float, float] | None],
        rooms: Callable[[], list[Room] | None],
    ) -> None:
        self._fail = checker.fail
        self._clock = checker.clock
        self._hub = hub
        self._names = names
        self._traffic = traffic
        self._troubles = troubles
        self._quiet_for = quiet_for
        self._drains_for = drains_for
        self.models: dict[str, JobModel] = {}
        """By request."""
        self._raw: dict[str, int] = {}
        """The sequence under which a message was last stored, by the `Nats-Msg-Id` of a publisher without the SDK."""
        self.ends = Ends(
            checker,
            hub,
            names,
            troubles,
            self.models,
            bereaved=self._bereaved,
        )
        self.ends.loses_items = traffic is not None and traffic.item_bytes is not None
        self.by_number: dict[int, tuple[JobModel, TaskBody]] = {}
        self.listings = 0
        self.crons = CronWatch(checker, troubles, self.models)
        self._senders: dict[tuple[str, str], str] = {}
        """When the latest attempt was sent, by worker process and job."""
        self._reached: dict[tuple[str, str], float] = {}
        """When the latest attempt of a job reached the server, by sender and job."""
        self._turns_at: dict[str, tuple[str, float]] = {}
        """By endpoint: the dispatcher that last recorded its ownership of the queue, and when it first did."""
        self._limits: Limits | None = None
        self._turns: Turns | None = None
        self._idle: Idle | None = None
        if traffic is not None:
            limits = self._limits = Limits(
                checker,
                hub,
                names,
                traffic,
                troubles,
                self.models,
                ended=lambda job: job in self.ends.records,
                explained=self.explained,
            )
            self._turns = Turns(
                checker,
                traffic,
                messages=limits.messages,
                models=self.models,
                quiet_for=quiet_for,
                troubles=troubles,
                wall=hub.ambient.wall,
            )
            self._idle = Idle(checker, traffic, self.models, quiet_for=quiet_for, rooms=rooms)

    # -- clients --------------------------------------------------------------------------------------------------

    def asked(self, step: JobStep) -> None:
        """A client begins to publish it."""
        if step.request not in self.models:
            self.models[step.request] = JobModel(request=step.request, step=step, asked_at=self._clock())

    def stored(self, step: JobStep, job: str) -> None:
        """Its publisher got the acknowledgement."""
        if step.series is not None:
            self.crons.stored(step)
            return
        model = self.models[step.request]
        if model.stored_at is None:
            model.stored_at = self._clock()
        if model.job is not None and model.job != job:
            self._fail("L10", f"{model.request} is job {model.job} and job {job}")
        model.job = job
        if model.record is None and (record := self.ends.records.get(job)) is not None:
            self.ends.check_record(model, record)  # it ended before its publisher knew that it was stored

    def dooms(self, step: JobStep) -> None:
        """A client requests its cancellation."""
        self.models[step.request].doomed = True

    def cancelled(self, step: JobStep) -> None:
        """A client was told that it is cancelled."""
        self.models[step.request].cancelled_at = self._clock()

    def is_dead(self, job: str) -> bool:
        """Whether its record says that it is dead."""
        record = self.ends.records.get(job)
        return record is not None and record.state is JobState.DEAD

    def replays(self, step: JobStep) -> None:
        """A client begins to replay it."""
        self.models[step.request].replaying += 1

    def replayed(self, step: JobStep) -> None:
        """A client was told that it is being replayed."""
        self.models[step.request].replayed += 1

    def not_replayed(self, step: JobStep, error: GanglineError) -> None:
        """A client was told that it was not replayed: allowed only if another request has or may have replayed it."""
        if isinstance(error, JobError) and self._troubles.lossy:
            return  # its queue is being taken over, and lost messages for that are delivered again after 30 s
        model = self.models[step.request]
        if model.replaying < 2:
            self._fail("outcome", f"{model} is dead, and cannot be replayed: {error.message}")

    def told(self, step: JobStep, job: str, value: Any) -> None:
        """A client that waited got a result."""
        record = self.ends.records.get(job)
        if record is None or record.state is not JobState.DONE or self.ends.result_of(record) != value:
            self._fail("outcome", f"{step.request} ({job}) gave {value!r}, and its record is {record}")

    def told_items(self, step: JobStep, job: str, items: list[object]) -> None:
        record = self.ends.records.get(job)
        right = items == list(range(step.items)) or self._troubles.doubling
        if record is None or record.state is not JobState.DONE or not right:
            self._fail("outcome", f"{step.request} ({job}) gave the items {items}, and its record is {record}")

    def told_error(self, step: JobStep, job: str, error: GanglineError) -> None:
        """A client that waited, or cancelled, got an error."""
        record, code = self.ends.records.get(job), error.code
        state = None if record is None else record.state
        match code:
            case "job_dead":
                truth = state is JobState.DEAD
            case "job_cancelled":
                truth = state is JobState.CANCELLED
            case "result_not_kept":
                truth = not step.keeps_result
            case "unknown_job":
                truth = not step.keeps_result and step.kind is JobKind.CANCEL
            case "invalid_request":  # the result of a task that yields
                truth = step.method == "job_items" and step.kind is JobKind.WATCH and state is JobState.DONE
            case "deadline_exceeded":
                truth = False
            case _:
                truth = step.kind is JobKind.CANCEL  # clients give up a cancellation after some time
        if not truth:
            self._fail("outcome", f"{step.request} ({job}) ended with {code} ({error.message}); its record: {record}")

    # -- lists ----------------------------------------------------------------------------------------------------

    def unfinished(self) -> set[str]:
        """Jobs that are in each list, as long as they have not ended."""
        return {model.job for model in self.models.values() if model.job is not None and self._stays_listed(model)}

    def listed(self, before: set[str], found: list[JobInfo]) -> None:
        """A client has listed all jobs; those were unfinished when it began. One that changes may be listed twice."""
        self.listings += 1
        if missing := (before & self.unfinished()) - {info.job for info in found}:
            self._fail(
                "listed", f"{len(missing)} of {len(before)} unfinished jobs are in no list: {sorted(missing)[:5]}"
            )

    def check_listed(self, found: list[JobInfo]) -> None:
        """Nothing happens any more: each job whose result is kept is listed once, as it has ended."""
        listed = Counter((info.job, info.state) for info in found)
        wanted = Counter[tuple[str, JobState]]((job, record.state) for job, record in self.ends.records.items())
        if listed != wanted:
            self._fail(
                "listed", f"at rest these are listed too often: {listed - wanted}, these too rarely: {wanted - listed}"
            )

    @staticmethod
    def _stays_listed(model: JobModel) -> bool:
        """Not if it moves from one part of the list to another meanwhile: delayed, or dead and replayed;
        nor if its end leaves nothing behind."""
        step = model.step
        moves = step.delay_s is not None or step.series is not None or model.doomed or model.replaying
        ended = model.record is not None or not step.keeps_result or step.bad is not None
        return model.stored_at is not None and not moves and not ended

    # -- the tasks' code ------------------------------------------------------------------------------------------

    def body_started(self, number: int, node: str, request: str, cost: int, context: TaskContext) -> None:
        """An attempt starts."""
        now = self._clock()
        model = self.models.get(f"{request}@{context.job}") or self.models.get(request)
        if model is None:
            self._fail("L10", f"{request} runs as job {context.job}: it is none")
            return
        body = TaskBody(number, node, node.partition(".")[0], cost, context.attempt, since=now)
        if model.job is None:
            model.job = context.job
        if context.job != model.job:
            self._fail("L10", f"{model} runs as job {context.job}")
        body.late = self._is_late(model, body)
        if not body.late:
            self._check_start(model, body)
            if self._limits is not None and self._turns is not None:
                self._limits.starts(model, node, context)
                self._turns.starts(model, body)
        if self._idle is not None:
            self._idle.started(node)
        model.bodies.append(body)
        self.by_number[number] = (model, body)

    def body_ended(self, number: int, how: str) -> None:
        """An attempt has ended."""
        if number not in self.by_number:
            return
        _, body = self.by_number[number]
        body.ended_at, body.how = self._clock(), how
        drains = self._drains_for(body.node)
        if drains is not None and drains[0] < drains[1] - TAKEN_OVER_S:
            body.drained_s = drains[0]

    def waiters(self) -> Iterator[Waiter]:
        """Tasks that wait for slots or for units of limits that their methods declare."""
        if self._idle is not None:
            yield from self._idle.waiters()

    def look(self) -> None:
        """Check what should have happened by now."""
        if self._turns is not None and self._idle is not None:
            self._turns.look()
            self._idle.look()

    def died(self, node: str) -> None:
        """A process died, and its attempts with it."""
        for _, body in self.by_number.values():
            if body.node == node and body.ended_at is None:
                body.ended_at, body.how = self._clock(), "died"

    def sent(self, sender: str, node: str, job: str) -> None:
        """An attempt is about to be delivered to a worker process."""
        self._senders[node, job] = sender

    def reached(self, sender: str, job: str) -> None:
        """An attempt has reached the server."""
        self._reached[sender, job] = self._clock()

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision."""
        if bucket != self._names.results_bucket or not entry.key.startswith("turn.") or not entry.value:
            return
        endpoint, holder = entry.key.partition(".")[2], TurnRecord.model_validate_json(entry.value).dispatcher
        if endpoint not in self._turns_at or self._turns_at[endpoint][0] != holder:
            self._turns_at[endpoint] = holder, self._clock()

    def _is_late(self, model: JobModel, body: TaskBody) -> bool:
        """Whether it was sent by a dispatcher that lost its queue so recently that it may not have known that yet, and
        its successor may have asked the worker before this arrived. (One server delivers in order; in a cluster, as
        here, single messages may be late.)"""
        if self._troubles.calm or model.job is None:
            return False
        stream = self._hub.streams.find(self._names.tasks_stream)
        filter = self._names.tasks_of(model.step.endpoint)
        holders = [] if stream is None else stream.pull_consumers()
        holder = next((each.metadata for each in holders if each.filter == filter), None)
        if holder is None:
            return True
        sender = self._senders[body.node, model.job]
        if holder["gangline-dispatcher"].rpartition("-")[0] == sender.rpartition("-")[0]:
            return False
        noted_by, noted_at = self._turns_at.get(model.step.endpoint, ("", 0.0))
        if noted_by != holder["gangline-dispatcher"]:
            return True
        reached_at = self._reached[sender, model.job]
        slack_s = CANCEL_SLACK_S if self._troubles.late else ON_ITS_WAY_S
        return reached_at <= noted_at + TRUSTED_S and self._clock() <= reached_at + slack_s

    def explained(self, body: TaskBody) -> bool:
        """Whether it may be or have been taken for dead, because its process had a fault since it started."""
        return (
            body.late or self._troubles.affected(body.worker, body.since) or self._troubles.affected(SERVER, body.since)
        )

    def _check_start(self, model: JobModel, body: TaskBody) -> None:
        step, now = model.step, self._clock()
        if step.bad is not None:
            self._fail("L10", f"{model} runs, though it is {step.bad.reason}")
        for other in model.running:
            if not self.explained(other):
                self._fail(
                    "L10",
                    f"{model} starts on {body.node} (attempt {body.attempt}) while it runs on {other.node} (attempt "
                    f"{other.attempt})",
                )
        loses_items = step.method == "job_items" and self.ends.loses_items
        for other in model.life:
            well = other.how == "returned" and not loses_items
            if well and other.drained_s is not None and self._quiet_for() >= now - other.since:
                self._fail(
                    "roll-out",
                    f"{model} starts on {body.node} (attempt {body.attempt}), though it ended well on {other.node} at "
                    f"{other.ended_at:.3f} s (attempt {other.attempt}), {other.drained_s:.3f} s into its drain",
                )
        end = self.ends.records.get(model.job or "")
        if end is not None and end.state is not JobState.CANCELLED and not self._recorded_late(model):
            self._fail("L10", f"{model} starts on {body.node}, though it has ended: {end.state} by {end.worker}")
        if model.cancelled_at is not None and not self._cancelled_late(model, end):
            self._fail("L10", f"{model} starts on {body.node}, though its cancellation was confirmed")
        self._check_attempts(model, body)
        self._check_times(model, body, now)

    def _recorded_late(self, model: JobModel) -> bool:
        """Whether the record was held up on its way from a dispatcher that was not heard: the next owner of the queue
        may have looked for it before it was stored."""
        stored = model.recorded_at
        held_up = any(body.ended_at is not None and body.ended_at + HELD_UP_S < stored for body in model.life)
        unheard = self._troubles.count(self._traffic.dispatchers, stored - HELD_UP_S) if self._traffic else 0
        return held_up and unheard > 0

    def _cancelled_late(self, model: JobModel, end: ResultRecord | None) -> bool:
        """Whether a cancelled task may start anyway: it was already on its way to its worker; or its dispatcher lost
        the cancellation, or took the task from the stream just when its publisher, which found no dispatcher, cancelled
        it there. (Its result is then ignored.)"""
        assert model.cancelled_at is not None
        on_its_way_s = (
            ON_ITS_WAY_CALM_S if self._troubles.calm else CANCEL_SLACK_S if self._troubles.late else ON_ITS_WAY_S
        )
        if self._clock() <= model.cancelled_at + on_its_way_s:
            return True
        if end is not None and end.state is JobState.CANCELLED and not end.worker:
            # A dispatcher that started it before that does not know of the cancellation, and retries it if it fails.
            begun = any(body.since >= model.cancelled_at for body in model.bodies)
            return begun or self._clock() < model.cancelled_at + CANCEL_SLACK_S
        return self._bereaved(model.cancelled_at) > 0

    def _bereaved(self, since: float) -> int:
        """How often a dispatcher or the server may have lost unsaved state since then."""
        assert self._traffic is not None
        return self._troubles.count((*self._traffic.dispatchers, SERVER, SILENCE), since)

    def _check_attempts(self, model: JobModel, body: TaskBody) -> None:
        step, life = model.step, model.life
        if not model.attempts_before < body.attempt <= model.most_attempts:
            text = f"{model} starts as attempt {body.attempt}, after {model.attempts_before}, of {model.most_attempts}"
            self._fail("L10", text)
        lost = sum(1 for each in life if each.how == "died" or self.explained(each))
        kills = self._bereaved(model.asked_at)
        starts = len(life) + 1
        if starts > step.max_attempts + lost + kills:
            self._fail("L10", f"{model} starts {starts} times, with {step.max_attempts} attempts and {lost} lost ones")

    def _check_times(self, model: JobModel, body: TaskBody, now: float) -> None:
        step, delay_s = model.step, model.step.delay_s or 0.0
        if now < model.asked_at + delay_s - 0.01:
            self._fail("L10", f"{model} starts {model.asked_at + delay_s - now:.3f} s before its time")
        if step.deadline_s is not None and model.stored_at is not None and not self._troubles.late:
            # Measured from when it was stored, which was before its publisher knew, or from the end of its delay.
            since = model.stored_at + delay_s if model.revived_at is None else model.revived_at
            late = now - (since + step.deadline_s)
            if late > DEADLINE_SLACK_S and not self._troubles.delayed(model.asked_at):
                self._fail("L10", f"{model} starts {late:.3f} s after its deadline")
        raised = [each for each in model.life if each.how == "raised" and each.ended_at is not None]
        # One whose worker was taken for lost is retried at once.
        if raised and body.attempt > raised[-1].attempt and not self.explained(raised[-1]):
            # Of two runs of one attempt, the dispatcher may know only the one that failed first.
            waited = now - min(each.ended_at or 0.0 for each in raised if each.attempt == raised[-1].attempt)
            if waited < step.backoff_s / 2 - 0.001:
                self._fail("L10", f"{model} starts again {waited:.3f} s after it failed: backoff {step.backoff_s} s")

    # -- writes ---------------------------------------------------------------------------------------------------

    def on_stored(self, stream: str, message: StreamMessage) -> None:
        """A stream has a new message."""
        if stream == self._names.schedules_stream:
            self.crons.on_due(message)
        elif stream == self._names.tasks_stream:
            self.crons.on_stored(message)
            self._published(message)
            self._replayed(message)
        elif stream == self._names.dead_stream and (model := self._of_job(message)) is not None:
            model.buried = _attempts(message)

    def _of_job(self, message: StreamMessage) -> JobModel | None:
        return of_job(self.models, (message.headers or {}).get("Gangline-Job", ""))

    def _replayed(self, message: StreamMessage) -> None:
        """A dead letter may be sent anew before the record of that death is stored, which then never is."""
        model, attempts = self._of_job(message), _attempts(message)
        if model is not None and model.replaying and model.attempts_before < attempts == model.buried:
            model.revived_at, model.attempts_before = self._clock(), attempts

    def _published(self, message: StreamMessage) -> None:
        """A message that only its `Nats-Msg-Id` names is two tasks if the first had left the stream when the server
        restarted, and its publisher was not told that it was stored."""
        given = message.headers or {}
        id = given.get("Nats-Msg-Id", "")
        if not id.startswith("raw-") or "Gangline-Job" in given:
            return
        first, self._raw[id] = self._raw.get(id), message.sequence
        if first is None or not self._troubles.forgetful:
            return
        number = int(id.removeprefix("raw-"))  # its body may be malformed
        request = next(each.step.request for each in self.models.values() if each.step.number == number)
        model = self.models[request]
        if model.job is None or model.job == str(first):
            model.job = str(first)
            self.models[f"{request}@{first}"] = model
            self.models[request] = JobModel(request=request, step=model.step, asked_at=model.asked_at)

    def counts(self) -> dict[str, int]:
        """Number of tasks by outcome, and of their faults."""
        found: dict[str, int] = {}

        def add(name: str, count: int = 1) -> None:
            if count:
                found[name] = found.get(name, 0) + count

        for model in self.models.values():
            record = self.ends.records.get(model.job or "")
            if record is not None:
                add(record.state.value if record.reason is None else f"{record.state.value}: {record.reason}")
            else:
                add("without a result" if model.stored_at is not None else "not stored")
            add("replayed", model.replayed)
            add("tries", len(model.bodies))
            add("tries lost", sum(1 for body in model.bodies if body.how == "died"))
            add("endless tries stopped", sum(1 for body in model.bodies if body.how == "stopped"))
            add(
                "slow stops",
                sum(1 for b in model.bodies if b.how == "stopped" and JobEnding.SLOW in model.step.endings),
            )
        returned = [body for model in self.models.values() for body in model.bodies if body.how == "returned"]
        add("ended well in a drain", sum(1 for body in returned if body.drained_s is not None))
        add("large results", sum(1 for record in self.ends.records.values() if record.object is not None))
        add("firings of schedules", self.crons.firings())
        add("lists", self.listings)
        add("waits looked at", 0 if self._idle is None else self._idle.looked)
        add("turns kept", 0 if self._turns is None else self._turns.compared)
        add("turns of tenants", 0 if self._turns is None else self._turns.passed)
        return dict(sorted(found.items()))


def _attempts(message: StreamMessage) -> int:
    return int((message.headers or {}).get("Gangline-Attempts", 0))
