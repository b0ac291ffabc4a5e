"""The frames path: routers' envelopes in, decisions of the core, answers out.

Plain functions throughout: a message is processed in the turn of the event loop in which it arrives.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any, Final

from ...bus.port.bus import Message
from ...runtime.timers import NEVER
from ...schemas.errors.base import (
    GanglineError,
    InvalidRequest,
    MalformedMessage,
    PayloadTooLarge,
    ResultLost,
    TaskCancelled,
)
from ...schemas.wire import frames
from ...schemas.wire.codec import pack
from ...schemas.wire.frames import AnswerOp, Frame, Reason, RequestOp, ReserveFlag, TaskFlag, TaskState, UnreadableFrame
from ...telemetry.logs import Log
from ...telemetry.metrics.instruments import metrics_enabled
from ...telemetry.tracing import NO_SPAN, Parent, Span, Unsampled, attach, tracer
from ..context.task_context import end, report_to, stop
from ..execution.executor_registry import ExecutorRegistry
from ..execution.executors.eager_start import EagerStarter
from ..execution.runner import RunContext, TaskRun, TaskRunner
from ..ledger.core_driver import REASONS, CoreDriver, LeaseService, error_of
from ..pool.pool import BoundCall, CancelReason, DeclaredTask, Outcome, Pool
from ..slots.lease_table import WITHDRAWN, GrantedLease, Refusal, RouterHistory, TaskRecord
from .answer_batcher import AnswerBatcher, FrameResponder, error_frame
from .durable_jobs import ID_BYTES, DurableJobServer, JobName, JobRun

_OK: Final = int(AnswerOp.OK)
_JSON: Final = int(TaskFlag.JSON)
_NONE: Final[frozenset[DeclaredTask]] = frozenset()


class InlineRun(TaskRun):
    """A plain task that had to wait, or failed: a run and its execution in one."""

    asyncio_task: asyncio.Task[None] | None = None
    """That it runs as, while it waits."""
    reason: CancelReason | None = None
    """Why it was told to stop."""
    caller: FrameResponder | JobRun
    context: RunContext

    def __init__(
        self,
        inline: InlineRunner,
        runs: TaskRunner,
        record: TaskRecord,
        task: DeclaredTask,
        caller: FrameResponder | JobRun,
        context: RunContext,
        now: float,
    ) -> None:
        super().__init__(runs, record, task, caller, now)
        self._inline = inline
        self.context = context
        record.handle = self

    def let_go(self) -> None:
        self.record.handle = None

    def cancel(self, reason: CancelReason) -> None:
        if self.reason is None and self.asyncio_task is not None:
            self.reason = reason
            stop(self.context, reason)
            self.asyncio_task.cancel()

    def insist(self) -> None:
        if self.reason is not None and self.asyncio_task is not None:
            self.asyncio_task.cancel()

    def ended(self, result: Any, error: BaseException | None) -> None:
        self.asyncio_task = None
        self._inline.end(self, result, error)

    def over(self, value: Any, error: BaseException | None) -> None:
        """It has stopped, and its outcome goes the general way."""
        self.done(self._inline.outcome(self, value, error))


class InlineRunner:
    """Runs the plain tasks of one worker.

    Most tasks are coroutines for a call, a lease or a durable job, without a timeout of their own, a stream, middleware
    or a gang, and many of them never have to wait. They run here, where their frame is read: no run and no
    execution is created for them. A task that waits gets all of these at its first wait, and one that fails gets
    them at its end; from then on it is like any other.

    Used in one turn at a time, between `enter` and `leave`, around the frames of one message.
    """

    def __init__(
        self, driver: CoreDriver, runs: TaskRunner, executors: ExecutorRegistry, answer_batcher: AnswerBatcher
    ) -> None:
        self._driver = driver
        self._core = driver.core
        self._journal = driver.journal
        self._runs = runs
        self._executors = executors
        self._answers = answer_batcher
        self._scope = executors.scope
        self._starter: EagerStarter
        self._room = 0
        self._launched = 0
        self._adopted: dict[str, int] = {}
        """Tasks that waited or failed since `enter`, by method."""
        self._succeeded: dict[str, int] = {}
        """Tasks that succeeded at once since `enter`, by method."""
        self.traced = False
        """Tracing is on: tasks that are sampled have spans."""
        self._measured = False
        self._begun_at = 0.0
        """When the current execution began: when the one before it ended."""
        self.plain: frozenset[DeclaredTask] = _NONE
        """Tasks that can run inline now, unless they have a stream or a gang."""

    def enter(self) -> None:
        """Start of a message."""
        executors = self._executors
        if executors.running:
            self.plain = executors.plain
            self._starter = executors.starter
        self.traced, self._measured = tracer.on(), metrics_enabled()
        if self._measured:
            self._begun_at = self._driver.now()
        # The general way handles slightly larger answers: it knows who may get one again under a longer id.
        self._room = self._answers.largest_frame - ID_BYTES

    def leave(self) -> None:
        """End of a message. Tasks started the general way make their first step now, not in the loop's next turn."""
        self.plain = _NONE
        if self._launched:
            self._starter.leave()
            self._executors.launched += self._launched
            self._launched = 0
            self._runs.count(self._adopted, self._succeeded)
            self._adopted.clear()
            self._succeeded.clear()
        if self._executors.running:
            self._executors.starter.step()

    def run(
        self,
        record: TaskRecord,
        task: DeclaredTask,
        frame: Frame,
        trace: Parent,
        caller: FrameResponder | JobRun,
        deadline_at: float | None,
        now: float,
    ) -> None:
        """Run an admitted task to its end or its first wait.

        Raises:
            InvalidArguments: the arguments do not fit; nothing has started.
        """
        _, task_id, _, args, kwargs, _, token, _, flags, meta = frame
        given, named = task.signature.bind(args, kwargs, flags & _JSON != 0)
        span, variables, carried = NO_SPAN, copy_context(), frame[7]
        if type(trace) is Unsampled:
            variables.run(attach, trace)
            carried = trace.traceparent
        elif self.traced:
            span = self._runs.span(record, task, trace)
            variables.run(span.enter)
            carried = span.traceparent()
        context = RunContext(record, task.name, self._driver, token, carried, meta, deadline_at, self._scope)
        self._launched += 1
        if not isinstance(caller, FrameResponder):
            report_to(context, caller.progress)
        if self._journal.enabled:
            self._runs.began(record, task.name, token, caller)
        starter = self._starter
        waiting = starter.start(variables, task.full_name, task.function, given, named, context)
        if waiting is not None:
            run = self._adopt(record, task, caller, context, span, now)
            run.asyncio_task = waiting
            starter.tell(waiting, run)
            if self._measured:
                self._begun_at = self._driver.now()
            return
        value, error = starter.value, starter.error
        starter.value = starter.error = None
        answer = self._written(task_id, task, value) if error is None else None
        if answer is None:
            self._adopt(record, task, caller, context, span, now).over(value, error)
            if self._measured:
                self._begun_at = self._driver.now()
            return
        self._let_go(context)
        self._core.complete(record, answer, now)
        if isinstance(caller, FrameResponder):
            caller.send(answer)
        else:
            caller.completed(answer, now)
        if self._journal.enabled:
            self._runs.ended(record, task.name, caller)
        self._succeeded[task.name] = self._succeeded.get(task.name, 0) + 1
        if span is not NO_SPAN:
            span.end()
        if self._measured:
            began_at, self._begun_at = self._begun_at, self._driver.now()
            self._driver.metrics.took(task.name, self._begun_at - began_at)

    def _adopt(
        self,
        record: TaskRecord,
        task: DeclaredTask,
        caller: FrameResponder | JobRun,
        context: RunContext,
        span: Span,
        now: float,
    ) -> InlineRun:
        self._adopted[task.name] = self._adopted.get(task.name, 0) + 1
        run = InlineRun(self, self._runs, record, task, caller, context, now)
        if span is not NO_SPAN:
            run.span = span
        return run

    def end(self, run: InlineRun, value: Any, error: BaseException | None) -> None:
        """A run that had to wait has ended."""
        self._let_go(run.context)
        if error is None and not run.record.answered and isinstance(run.caller, FrameResponder):
            answer = self._written(run.record.id, run.task, value)
            if answer is not None:
                run.caller.send(answer)
                self._runs.completed(run, answer, self._driver.now())
                return
        run.over(value, error)

    def _let_go(self, context: RunContext) -> None:
        end(context)
        if self._scope.models.pinned:
            self._scope.models.done_with(context)

    def outcome(self, run: InlineRun, value: Any, error: BaseException | None) -> Outcome:
        """The outcome of a run."""
        task = run.task
        if error is None:
            try:
                return Outcome(task.result.write(value))
            except BaseException as unwritable:
                error = unwritable
        return self._executors.failed(error, run.reason, task)

    def _written(self, task_id: int, task: DeclaredTask, value: Any) -> bytes | None:
        """The encoded answer; None: the general way must handle this result."""
        try:
            frame = task.result.pack((_OK, task_id), value)
        except Exception:
            return None
        return frame if len(frame) <= self._room else None


# Plain numbers: arithmetic with flags of an enum takes longer than all the rest of a look at a frame.
_TASK: Final = int(RequestOp.TASK)
_CHECK: Final = int(RequestOp.CHECK)
_RESERVE: Final = int(RequestOp.RESERVE)
_GRANTED: Final = int(AnswerOp.GRANTED)
_UNANSWERED: Final = frozenset(
    map(int, (RequestOp.RELEASE, RequestOp.CREDIT, RequestOp.CANCEL, RequestOp.BEGIN, RequestOp.ACK, RequestOp.STORED))
)
_SINGLE_USE: Final = int(ReserveFlag.SINGLE_USE)
_SYNC: Final = int(ReserveFlag.SYNC)
_STREAM: Final = int(TaskFlag.STREAM)
_ATTACH: Final = int(TaskFlag.ATTACH)


class FrameServer:
    """Processes the envelopes sent to one worker."""

    def __init__(
        self,
        pool: Pool,
        driver: CoreDriver,
        runs: TaskRunner,
        inline: InlineRunner,
        jobs: DurableJobServer,
        lease_service: LeaseService,
        answer_batcher: AnswerBatcher,
        *,
        log: Log,
    ) -> None:
        self._pool = pool
        self._tasks = pool.tasks
        self._jobs = jobs
        self._driver = driver
        self._core = driver.core
        self._runs = runs
        self._inline = inline
        self._lease_service = lease_service
        self._answers = answer_batcher
        self._log = log
        self.messages = 0
        self.malformed = 0
        self.rejected = 0
        """Task and reserve frames refused for any reason."""

    def take(self, message: Message, now: float, stall_s: float) -> None:
        """Process one message.

        Args:
            message: the envelope.
            now: monotonic seconds.
            stall_s: how much older than it seems the message may be; deadlines are shortened by it.

        Raises:
            MalformedMessage, PayloadTooLarge: it has frames that cannot be read, and not even whose answer they want.
                All others were processed.
        """
        self.messages += 1
        unread: list[UnreadableFrame] = []
        try:
            envelope = frames.decode_request(message.data)
        except (MalformedMessage, PayloadTooLarge) as error:
            self.malformed += 1
            try:
                envelope, unread = frames.salvage_request(message.data)
            except (MalformedMessage, PayloadTooLarge):
                raise error from None
        core = self._core
        ours = envelope.epoch in core.epochs
        if core.doubted and not ours:
            return  # sent to the process that has our id now: it answers
        sender = core.sender(envelope.sender, now)
        stale = core.doubted or envelope.epoch != core.epoch
        caller = FrameResponder(message.reply, self._answers, self._driver)
        driver, changes = self._driver, core.changes
        in_order = driver.journal.enabled
        driver.collect()
        self._inline.enter()
        try:
            for frame in envelope.frames:
                try:
                    if frame[0] == _TASK:
                        self._task(sender, caller, frame, stale, now, stall_s)
                    elif frame[0] == _RESERVE:
                        self._reserve(sender, caller, frame, stale, now, stall_s)
                    elif frame[0] == _CHECK:
                        self._check(sender, caller, frame, ours, now)
                    else:
                        self._one(sender, caller, frame, stale, now)
                except Exception as error:
                    # A bug here must not affect the other frames of this message.
                    self._log.exception("frame %s failed", frame[:2], extra={"action": "frame.failed"})
                    self._broken(sender, caller, frame, error, now)
                if changes and in_order:
                    driver.tell()
            if unread:
                self._unreadable(sender, caller, unread, now)
        finally:
            self._inline.leave()
            driver.collected()

    def _unreadable(
        self, sender: RouterHistory, caller: FrameResponder, unread: list[UnreadableFrame], now: float
    ) -> None:
        """Refuse frames that cannot be read. Nothing of them was started.

        Raises:
            MalformedMessage, PayloadTooLarge: of one of them it is not known whose answer it wants.
        """
        nameless = None
        for operation, id, error in unread:
            if id == 0:
                nameless = error
            elif operation == _TASK:
                if id <= sender.floor or id in sender.running or id in sender.done:
                    self._repeated(sender, caller, id)
                else:
                    self._settle_error(sender, caller, id, error, now)
            elif operation not in _UNANSWERED:
                caller.send(error_frame(id, error, self._answers.largest_frame))
        if nameless is not None:
            raise nameless

    def _one(self, sender: RouterHistory, caller: FrameResponder, frame: Frame, stale: bool, now: float) -> None:
        operation = frame[0]
        if operation == RequestOp.RELEASE:
            self._core.release(sender, frame[1], frame[2], now)
        elif operation == RequestOp.RENEW:
            self._renew(caller, frame, stale, now)
        elif operation == RequestOp.CREDIT:
            self._credit(sender, frame)
        elif operation == RequestOp.STORED:
            self._items_stored(sender, frame)
        elif operation == RequestOp.BEGIN:
            self._begin(sender, frame)
        elif operation == RequestOp.CANCEL:
            self._cancel(sender, frame, now)
        elif operation == RequestOp.ACK:
            self._jobs.stored(frame, now)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _task(
        self, sender: RouterHistory, caller: FrameResponder, frame: Frame, stale: bool, now: float, stall_s: float
    ) -> None:
        _, task_id, method, _, _, deadline_ms, token, _, flags, meta = frame
        core = self._core
        if task_id <= sender.floor or task_id in sender.running or task_id in sender.done:
            core.refuse(token, now)
            self._repeated(sender, caller, task_id)
            return
        job: JobName | None = None
        if flags >= _ATTACH or (meta is not None and meta.get("job") is not None):
            job, answered = self._job(sender, caller, frame, stale, now)
            if answered:
                return
        if stale:
            # Not noted: this epoch never comes back, so no copy of the task can start either.
            self._reject(caller, task_id, Reason.STALE)
            return
        task = self._tasks.get(method)
        if task is None:
            core.refuse(token, now)
            self._settle_error(sender, caller, task_id, self._unknown(method), now)
            return
        deadline_at = NEVER if deadline_ms is None else now + deadline_ms / 1000 - stall_s
        limit = core.limits.get(method) if core.limits else None
        if limit is None:
            record = core.admit(sender, task_id, task.slots, token, deadline_at, now)
        else:
            key = None if meta is None else meta.get("key")
            key = key if isinstance(key, str) else None
            record = core.admit(sender, task_id, task.slots, token, deadline_at, now, limit, key)
        if not isinstance(record, TaskRecord):
            if limit is not None and record is Refusal.LIMITED:
                caller.limited(limit)
            self._refused(sender, caller, task_id, record, task.slots, token, now)
            return
        try:
            inline = self._inline
            trace: Parent = frame[7]
            if inline.traced:
                trace = tracer.decide(trace)
            if flags & ~_JSON == 0 and (record.lease is None or record.lease.in_gang is None) and task in inline.plain:
                teller = caller if job is None else self._jobs.begin(job, record, caller, stream=False)
                inline.run(record, task, frame, trace, teller, None if deadline_at == NEVER else deadline_at, now)
            else:
                self._start(record, task, job, caller, frame, trace, None if deadline_at == NEVER else deadline_at)
        except BaseException as error:
            if job is not None:
                core.jobs.undo(job.key)
            if not isinstance(error, GanglineError):
                core.finish(record)
                raise
            self._settle_error(sender, caller, task_id, error, now)
            core.finish(record)

    def _start(
        self,
        record: TaskRecord,
        task: DeclaredTask,
        job: JobName | None,
        caller: FrameResponder,
        frame: Frame,
        trace: Parent,
        deadline_at: float | None,
    ) -> None:
        """Start an admitted task the general way.

        Raises:
            InvalidArguments: the arguments do not fit; nothing has started.
        """
        _, _, _, args, kwargs, _, token, _, flags, meta = frame
        call: BoundCall = task.bind(args, kwargs, json=flags & _JSON != 0)
        stream = flags & _STREAM != 0
        self._runs.start(
            record,
            call,
            caller if job is None else self._jobs.begin(job, record, caller, stream=stream),
            token=token,
            deadline_at=deadline_at,
            trace=trace,
            meta=meta,
            stream=stream,
            held=caller.held,
        )

    def _job(
        self, sender: RouterHistory, caller: FrameResponder, frame: Frame, stale: bool, now: float
    ) -> tuple[JobName | None, bool]:
        """The durable job of a task, if any, and whether the frame is answered without a start: it attached to another
        execution, or asked for nothing else. Attaching starts nothing and works in any epoch, since running tasks
        continue through all of them."""
        task_id, token, flags, meta = frame[1], frame[6], frame[8], frame[9]
        try:
            job = self._jobs.named(meta, flags)
        except InvalidRequest as error:
            self._core.refuse(token, now)
            self._settle_error(sender, caller, task_id, error, now)
            return None, True
        if job is None or (stale and not job.attach):
            return job, False
        reason = self._jobs.attach(job, sender, caller, frame, now)
        if reason is Reason.UNKNOWN_JOB and not job.attach:
            return job, False
        if reason is not None:
            self._core.settle_new(sender, task_id, self._reject(caller, task_id, reason), now)
        return job, True

    def _repeated(self, sender: RouterHistory, caller: FrameResponder, task_id: int) -> None:
        """A repeated task id: it gets its answer again and starts nothing."""
        known = self._core.repeated(sender, task_id)
        assert known is not None
        if known.state is TaskState.ANSWERED:
            if known.answer == WITHDRAWN:
                self._reject(caller, task_id, Reason.EXPIRED)
            else:
                caller.send_again(task_id, known.answer)
        elif known.state is TaskState.FORGOTTEN:
            caller.send(
                error_frame(
                    task_id,
                    ResultLost(
                        f"task {task_id} was seen too long ago: whether it ran, and its result, are no longer known"
                    ),
                    self._answers.largest_frame,
                )
            )

    def _refused(
        self,
        sender: RouterHistory,
        caller: FrameResponder,
        task_id: int,
        refusal: Refusal,
        cost: int,
        token: str | None,
        now: float,
    ) -> None:
        reason = REASONS.get(refusal)
        if reason is None:
            error = error_of(
                refusal, worker=str(self._driver.worker), slots=cost, total=self._core.load.total, token=token
            )
            self._settle_error(sender, caller, task_id, error, now)
        else:
            self._core.settle(sender, task_id, self._reject(caller, task_id, reason), now)
            if reason is Reason.FULL:
                caller.refused(cost)

    def _settle_error(
        self, sender: RouterHistory, caller: FrameResponder, task_id: int, error: GanglineError, now: float
    ) -> None:
        frame = error_frame(task_id, error, self._answers.largest_frame)
        self._core.settle(sender, task_id, frame, now)
        caller.send(frame)
        self.rejected += 1
        self._driver.metrics.rejected(error.code)
        self._driver.record("reject", id=f"{sender.name}.{task_id}", reason=error.code)

    def _unknown(self, method: str) -> GanglineError:
        try:
            self._pool.find(method)
        except GanglineError as error:
            return error
        return InvalidRequest(f"no task {method[:80]!r}")

    def _cancel(self, sender: RouterHistory, frame: Frame, now: float) -> None:
        record = self._core.withdraw(sender, frame[1], now)
        if record is not None and isinstance(record.handle, TaskRun):
            record.handle.cancel(TaskCancelled("the caller cancelled the task", details={"by": "caller"}))

    def _begin(self, sender: RouterHistory, frame: Frame) -> None:
        record = sender.running.get(frame[1])
        if record is not None and isinstance(record.handle, TaskRun):
            record.handle.begin()

    def _credit(self, sender: RouterHistory, frame: Frame) -> None:
        record = sender.running.get(frame[1])
        run = None if record is None else record.handle
        if not isinstance(run, TaskRun):
            return
        if isinstance(run.caller, JobRun):
            run.caller.credit(sender, frame[1], frame[2], run)
        else:
            run.credit(frame[2])

    def _items_stored(self, sender: RouterHistory, frame: Frame) -> None:
        record = sender.running.get(frame[1])
        run = None if record is None else record.handle
        if isinstance(run, TaskRun) and isinstance(run.caller, JobRun):
            run.caller.stored(sender, frame[1], frame[2], run)

    def _check(self, sender: RouterHistory, caller: FrameResponder, frame: Frame, ours: bool, now: float) -> None:
        """Answer with the states of tasks. `ours`: they were sent to this process, not to an earlier one with our id:
        what that one started is unknown."""
        states: list[int] = []
        for task_id in frame[2]:
            known = self._core.look_up(sender, task_id, now)
            lost = known.state is TaskState.UNKNOWN and not ours
            states.append(int(TaskState.FORGOTTEN if lost else known.state))
            if known.state is TaskState.ANSWERED:
                caller.send_again(task_id, known.answer)
        caller.send_frame((AnswerOp.CHECKED, frame[1], states))

    # -- leases ---------------------------------------------------------------------------------------------------

    def _reserve(
        self, sender: RouterHistory, caller: FrameResponder, frame: Frame, stale: bool, now: float, stall_s: float
    ) -> None:
        _, rid, slots, ttl_ms, claim_ms, flags, deadline_ms, meta = frame
        if stale:
            self._reject(caller, rid, Reason.STALE)
            return
        if deadline_ms is not None and deadline_ms / 1000 <= stall_s:
            self._reject(caller, rid, Reason.EXPIRED)
            return
        owner, seat = (meta.get("owner"), meta.get("seat")) if meta else (None, None)
        try:
            if seat is not None and (not isinstance(seat, str) or flags & _SYNC):
                raise InvalidRequest(
                    "`seat` is the token of a gang's seat, whose slots are in the ledger with the gang"
                )
            lease = self._lease_service.reserve(
                sender,
                rid,
                slots=slots,
                ttl_s=ttl_ms / 1000,
                claim_s=claim_ms / 1000,
                single_use=flags & _SINGLE_USE != 0,
                owner=owner[:256] if isinstance(owner, str) else "",
                seat=seat,
                now=now,
            )
        except InvalidRequest as error:
            caller.send(error_frame(rid, error, self._answers.largest_frame))
            return
        if not isinstance(lease, GrantedLease):
            self._not_granted(caller, rid, lease, slots, seat)
        elif flags & _SYNC and not self._lease_service.recorded(lease):
            self._lease_service.in_background(self._grant_recorded(caller, rid, lease.token))
        else:
            caller.send(pack((_GRANTED, rid, lease.token, lease.fence, round(lease.ttl_s * 1000))))

    async def _grant_recorded(self, caller: FrameResponder, rid: int, token: str) -> None:
        """Answer a reserve once its lease is in the ledger."""
        try:
            lease = await self._lease_service.record(token)
        except GanglineError as error:
            caller.send(error_frame(rid, error, self._answers.largest_frame))
        else:
            if lease is None:
                self._reject(caller, rid, Reason.EXPIRED)
            else:
                caller.send_frame((AnswerOp.GRANTED, rid, token, lease.fence, round(lease.ttl_s * 1000)))

    def _not_granted(self, caller: FrameResponder, rid: int, refusal: Refusal, slots: int, seat: str | None) -> None:
        reason = REASONS.get(refusal)
        if reason is not None:
            self._reject(caller, rid, reason)
            if reason is Reason.FULL and seat is None:  # the worker's free slots say nothing about a seat's
                caller.refused(slots)
            return
        total = self._core.load.total
        error = error_of(refusal, worker=str(self._driver.worker), slots=slots, total=total, token=seat)
        caller.send(error_frame(rid, error, self._answers.largest_frame))

    def _renew(self, caller: FrameResponder, frame: Frame, stale: bool, now: float) -> None:
        _, request_id, token, ttl_ms = frame
        if stale:
            self._reject(caller, request_id, Reason.STALE)
            return
        try:
            left_s = self._lease_service.renew(token, ttl_ms / 1000, now)
        except GanglineError as error:
            caller.send(error_frame(request_id, error, self._answers.largest_frame))
        else:
            caller.send_frame((AnswerOp.RENEWED, request_id, max(1, int(left_s * 1000))))

    # -- refusals -------------------------------------------------------------------------------------------------

    def _reject(self, caller: FrameResponder, request_id: int, reason: Reason) -> bytes:
        frame = frames.encode_frame((AnswerOp.REJECTED, request_id, str(reason)))
        caller.send(frame)
        self.rejected += 1
        self._driver.metrics.rejected(reason)
        self._driver.record("reject", id=request_id, reason=str(reason))
        return frame

    def _broken(
        self, sender: RouterHistory, caller: FrameResponder, frame: Frame, error: Exception, now: float
    ) -> None:
        """Answer a frame whose processing failed, unless its kind has no answer."""
        if frame[0] in _UNANSWERED:
            return
        answer = error_frame(
            frame[1],
            GanglineError(f"the worker failed on this request ({type(error).__name__}); its log says more"),
            self._answers.largest_frame,
        )
        if frame[0] == RequestOp.TASK and frame[1] not in sender.done:
            self._core.settle(sender, frame[1], answer, now)
        caller.send(answer)
