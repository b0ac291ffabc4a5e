"""Serves the requests of the leading coordinator: hold, unhold, keep, form, teardown, ping.

JSON or msgpack; each is answered exactly once, and all are idempotent. worker.slots.gang_core decides; this module
acts: it stops tasks, runs hooks, reads the ledger and reports failures.

A member whose `gang_start` functions have succeeded is reported as `started`, unless the answer to `form` already said
so (when there are none); pings repeat it. These count as failures of a member and are reported: a `gang_start` function
that raises or times out (`failed_at_start`); a task's child process that dies by itself (`crashed`);
`current_task().gang.fail(...)`, a new epoch after a freeze, and being cut off from coordinator and ledger (`failed`);
the end of a drain (`drained`), and a stop without one (`left`). A task that raises is not a failure of its member: its
caller handles that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from ...bus.port.bus import Bus, KeyValue
from ...bus.rpc.responder import Responder
from ...runtime.timers import NEVER, Backoff
from ...schemas.errors.base import ClosedError, GanglineError, InvalidRequest, Unavailable
from ...schemas.messages.gangs import (
    FormReply,
    FormRequest,
    HoldReply,
    HoldRequest,
    KeepReply,
    KeepRequest,
    MemberCause,
    MemberReport,
    PingReply,
    PingRequest,
    TeardownReply,
    TeardownRequest,
    UnholdRequest,
)
from ...schemas.messages.operations import LoadReply, RankTimes, Reply, parse_request
from ...schemas.names import Names, Operation, WorkerId
from ...schemas.text import count_of
from ...schemas.wire import headers
from ...telemetry.logs import Log
from ...telemetry.metrics.router_and_worker import WorkerGangMetrics
from ...telemetry.tracing import Span, tracer
from ..execution.runner import TaskRunner
from ..ledger.core_driver import CoreDriver
from ..pool.pool import Pool
from ..registration.registrar import Registrar
from ..slots.gang_core import LeavingMember, LocalMember, LocalSeat, TentativeHold
from ..slots.lease_table import Refusal
from ..wire.operations_server import OperationsServer
from .member_tasks import GangLifecycleHooks, MemberTasks
from .reconciler import GangReconciler

ANSWER_S = 1.0
"""How long one attempt waits for its answer."""
RETRY_S = 0.25
"""First wait after an attempt that was not accepted; doubles up to RETRY_MAX_S."""
RETRY_MAX_S = 2.0
GIVE_UP_S = 300.0
"""After this long the coordinator has noticed by itself, or there is no leader."""


_Key = tuple[str, int, int, bool]
"""Gang, generation, rank, and whether it reports a start."""


class FailureReporter:
    """Sends one report of the start and one of the end per member and generation; the first cause counts. Failures are
    sent again while the coordinator does not act on them."""

    def __init__(self, bus: Bus, names: Names, worker: WorkerId, *, log: Log) -> None:
        self._bus = bus
        self._subject = names.gang_report(worker.pool, worker.worker)
        self._log = log
        self._sending: dict[_Key, asyncio.Task[None]] = {}
        self._sent: dict[_Key, MemberReport] = {}
        """Latest last; limited in number."""

    def send(self, gang: str, generation: int, rank: int, cause: MemberCause, detail: str) -> bool:
        """Report to the coordinator. Returns at once; False if this was reported before."""
        key = (gang, generation, rank, cause is MemberCause.STARTED)
        if key in self._sent:
            return False
        self._sent[key] = report = MemberReport(
            gang=gang, generation=generation, rank=rank, cause=cause, detail=detail[:1000]
        )
        if len(self._sent) > 10_000:
            del self._sent[next(iter(self._sent))]
        extra = {"gang": gang, "generation": generation, "rank": rank}
        if cause is MemberCause.STARTED:
            text = "rank %d of gang %s (generation %d) has started"
            self._log.debug(text, rank, gang, generation, extra={"action": "gang.member_started", **extra})
        else:
            self._log.warning(
                "rank %d of gang %s (generation %d) %s: %s", rank, gang, generation, cause.value, detail,
                extra={"action": "gang.member_failed", **extra},
            )  # fmt: skip
        self._send(key, report)
        return True

    def repeat(self, gang: str, generation: int, ranks: Iterable[int]) -> None:
        """The coordinator takes these members for whole: send again what it was sent about failures. Whoever accepted
        that may have lost the leadership before it wrote anything."""
        for rank in ranks:
            key = (gang, generation, rank, False)
            report = self._sent.get(key)
            if report is not None and key not in self._sending:
                self._send(key, report)

    def _send(self, key: _Key, report: MemberReport) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(report), name="gangline gang report")
        self._sending[key] = task
        task.add_done_callback(lambda _: self._sending.pop(key, None))

    def forget(self, gang: str, generation: int) -> None:
        """Drop the reports of a generation that the coordinator has ended."""
        for key, task in list(self._sending.items()):
            if key[0] == gang and key[1] <= generation:
                task.cancel()

    async def drained(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for reports in flight."""
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=timeout_s)

    async def stop(self) -> None:
        """Idempotent."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, report: MemberReport) -> None:
        loop = asyncio.get_running_loop()
        data = report.model_dump_json().encode()
        give_up_at, backoff = loop.time() + GIVE_UP_S, Backoff(RETRY_S, RETRY_MAX_S)
        while loop.time() < give_up_at:
            try:
                answer = await self._bus.request(self._subject, data, timeout_s=ANSWER_S)
                status = (answer.headers or {}).get(headers.ERROR_CODE)
                if status is None or not status.startswith("5"):
                    return  # accepted, or it never will be
            except ClosedError:
                return
            except Unavailable as error:
                self._log.debug("report not accepted: %s", error, extra={"action": "gang.report_retry"})
            except GanglineError as error:
                self._log.error("report refused: %s", error, extra={"action": "gang.report_refused"})
                return
            await asyncio.sleep(backoff.next_s())


LAST_WORDS_S = 0.5
"""How long a leaving worker waits for its reports to be accepted."""


class UnholdReply(Reply):
    """The answer to `unhold`, if the request has a reply subject: whether slots were released."""

    released: bool
    load: LoadReply


class GangServer:
    """Serves the gang operations of one worker. Created at its start, on its loop."""

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        names: Names,
        pool: Pool,
        driver: CoreDriver,
        runs: TaskRunner,
        registrar: Registrar,
        operations: OperationsServer,
        *,
        grace_s: Callable[[], float],
        unhealthy: Callable[[str], None],
        log: Log,
    ) -> None:
        """`grace_s`: the grace time of the drain when it began; 0 for a worker that stops at once. `unhealthy`: called
        with the reason when a health check has failed."""
        self._driver = driver
        self._core = driver.core
        self._gangs = driver.core.gangs
        self._registrar = registrar
        self._drain_grace_s = grace_s
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._settling = False
        self._again = False
        self._waiting: dict[LeavingMember, list[_Waiter]] = {}
        """Teardown requests to answer when these have stopped."""
        self._began: dict[LeavingMember, float] = {}
        self._spans: dict[str, Span] = {}
        """Of active members, by token."""
        self.metrics = WorkerGangMetrics(names.namespace, driver.worker.pool, driver.worker.worker)
        self.reports = FailureReporter(bus, names, driver.worker, log=log)
        self.seats = MemberTasks(self._core, bus, names, fail=self._fail, waited=self.metrics.waited)
        self.hooks = GangLifecycleHooks(
            pool,
            context=self.seats.hook_context,
            started=self._started,
            failed=lambda form, rank, detail: self._fail(self._newest(form), rank, MemberCause.FAILED_AT_START, detail),
            unhealthy=unhealthy,
            changed=driver.after,
            log=log,
        )
        self.seats.hooks = self.hooks
        self._gangs.lingers = self.hooks.any
        self.ledger = GangReconciler(
            kv,
            names,
            driver.worker,
            registrar,
            self._gangs,
            form=self._form_from_ledger,
            free=self._free,
            end=self._end,
            missing=self._missing,
            changed=self._arm,
            ambient=driver.ambient,
            log=log,
        )
        runs.seats = self.seats
        driver.on_gangs = self._settle
        self._serve(operations)

    def _serve(self, operations: OperationsServer) -> None:
        for operation, handler in (
            (Operation.HOLD, self._on_hold),
            (Operation.UNHOLD, self._on_unhold),
            (Operation.KEEP, self._on_keep),
            (Operation.FORM, self._on_form),
            (Operation.TEARDOWN, self._on_teardown),
            (Operation.PING, self._on_ping),
        ):
            operations.serve(operation, handler, large=True)  # a gang may have hundreds of seats

    def forsake(self) -> None:
        """The registration is withdrawn: nothing more can be committed here."""
        for hold in self._gangs.forsake(self._driver.now()):
            self._record("unhold", hold)

    async def close(self) -> None:
        """Stop every loop and timer. Idempotent. Waits a moment for reports in flight."""
        await self.reports.drained(LAST_WORDS_S)
        self._driver.on_gangs = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.ledger.stop()
        await self.reports.stop()
        await self.hooks.stop()
        await self.seats.close()
        for span in self._spans.values():
            span.end()
        self._spans.clear()

    # -- before the commit ----------------------------------------------------------------------------------------

    def _on_hold(self, responder: Responder, body: Any) -> None:
        request = parse_request(HoldRequest, body)
        places = [(seat.rank, seat.part) for seat in request.seats]
        if not places or len(set(places)) != len(places):
            raise InvalidRequest("seats: name at least one, and each rank and part once")
        tokens = [self._driver.ambient.token() for _ in places]
        held = list(self._gangs.holds.values())
        hold = self._gangs.hold(
            request, tokens, ttl_s=request.hold_s, most=self._core.most_slots, now=self._driver.now()
        )
        self._record_dropped(held)  # an older attempt
        if isinstance(hold, Refusal):
            self.metrics.event("refused")
            responder.reply(
                HoldReply(
                    accepted=False,
                    reason=str(hold),
                    epoch=self._core.epoch,
                    reg_revision=self._registrar.revision,
                    load=self._load(),
                )
            )
            return
        if hold.tokens == tuple(tokens):
            hold.reg_revision = self._registrar.revision
            if (0, 0) in places:
                hold.port = self._driver.ambient.port()
            self.metrics.event("held")
            self._record("hold", hold, slots=sum(seat.lease.slots for seat in hold.seats))
        responder.reply(
            HoldReply(
                accepted=True,
                epoch=self._core.epoch,
                reg_revision=hold.reg_revision,
                tokens=hold.tokens,
                sealed=True,
                port=hold.port,
                load=self._load(),
            )
        )

    def _on_unhold(self, responder: Responder, body: Any) -> None:
        request = parse_request(UnholdRequest, body)
        hold = self._gangs.holds.get((request.gang, request.generation))
        released = self._gangs.unhold(request.gang, request.generation, request.attempt, self._driver.now())
        if released and hold is not None:
            self._record("unhold", hold)
        responder.reply(UnholdReply(released=released, load=self._load()))

    def _free(self, hold: TentativeHold) -> None:
        self._gangs.free(hold, self._driver.now())
        self.metrics.event("freed")
        self._record("unhold", hold)
        self._driver.after()

    def _on_keep(self, responder: Responder, body: Any) -> None:
        request = parse_request(KeepRequest, body)
        had = self._gangs.keeps.has(request.gang)
        kept = self._gangs.keep(request.gang, request.slots, request.keep_s, self._driver.now())
        if kept != had:
            self._driver.record("keep", gang=request.gang, kept=kept)
        responder.reply(KeepReply(kept=kept, load=self._load()))

    # -- members --------------------------------------------------------------------------------------------------

    def _on_form(self, responder: Responder, body: Any) -> None:
        request = parse_request(FormRequest, body)
        why = self._form(request)
        starting = why is None and self._starting(request.gang, request.generation)
        member = self._gangs.members.get(request.gang) if why is None and not request.open else None
        tokens = () if member is None else tuple(seat.lease.token for seat in member.seats.values())
        responder.reply(FormReply(formed=why is None, reason=why, starting=starting, tokens=tokens))

    def _form_from_ledger(self, request: FormRequest) -> str | None:
        why = self._form(request)
        self._driver.after()
        return why

    def _form(self, request: FormRequest) -> str | None:
        worker, now = self._driver.worker, self._driver.now()
        if self._core.doubted:
            return f"worker {worker} was frozen, and another process may have its id"
        name, pool = worker.worker, worker.pool
        ours = [seat for seat in request.seats if seat.worker == name and seat.pool == pool]
        formed = self._gangs.form(request, ours, epoch=self._core.epoch, now=now)
        if isinstance(formed, str):
            self._log.warning(
                "gang %s is not formed here: %s", request.gang, formed,
                extra={"action": "gang.not_formed", "gang": request.gang, "generation": request.generation},
            )  # fmt: skip
            return formed
        if formed.leaving is not None:
            self._begin_stop(formed.leaving)
        if formed.new:
            self.metrics.event("formed")
            self._record("form", formed.member, ranks=formed.member.ranks)
            self.seats.renewed(formed.member)
            for seat in formed.started:
                self._begin(request, seat)
            self.hooks.begin(request, formed.started)
        return None

    def _starting(self, gang: str, generation: int) -> bool:
        """Whether a member of that generation has not started here. It may be only held, with its `form` on the way."""
        member = self._gangs.members.get(gang)
        if member is None or member.generation != generation:
            return True
        return any(self.hooks.ready(seat.lease) is not None for seat in member.seats.values())

    def _started(self, form: FormRequest, rank: int) -> None:
        newest = self._newest(form)
        self.reports.send(newest.gang, newest.generation, rank, MemberCause.STARTED, "")

    def _newest(self, form: FormRequest) -> FormRequest:
        """The member's current form: if others were replaced, it began in an earlier generation."""
        member = self._gangs.members.get(form.gang)
        return form if member is None else member.form

    def _begin(self, form: FormRequest, seat: LocalSeat) -> None:
        self.metrics.members(1)
        if tracer.enabled and seat.part == 0:
            facts: dict[str, str | int] = {
                "gangline.gang": form.gang,
                "gangline.generation": form.generation,
                "gangline.rank": seat.rank,
                "gangline.worker": str(self._driver.worker),
            }
            name = "gangline.gang.member"
            self._spans[seat.lease.token] = tracer.start(name, parent=form.traceparent, attributes=facts)

    def _on_ping(self, responder: Responder, body: Any) -> None:
        request = parse_request(PingRequest, body)
        missing, unnamed = self._gangs.ping(request.gangs, self._driver.now())
        for gang, generation in request.gangs.items():
            member = self._gangs.members.get(gang)
            if member is not None and member.generation == generation and not member.over:
                self.reports.repeat(gang, generation, member.ranks)
        starting = {
            gang: generation
            for gang, generation in request.gangs.items()
            if gang not in missing and self._starting(gang, generation)
        }
        responder.reply(PingReply(missing=missing, starting=starting))
        for member in unnamed:
            # The leader does not name it: perhaps it was torn down and we missed that. Ask the ledger.
            self.ledger.look(member)

    # -- the end --------------------------------------------------------------------------------------------------

    def _on_teardown(self, responder: Responder, body: Any) -> None:
        request = parse_request(TeardownRequest, body)
        begun, held = set(map(id, self._gangs.leaving)), list(self._gangs.holds.values())
        seats = {id(hold): len(hold.seats) for hold in held}
        all_of_it = self._gangs.teardown(
            request.gang,
            request.generation,
            reason=request.reason,
            rank=request.rank,
            grace_s=request.grace_s,
            only=request.only,
            now=self._driver.now(),
        )
        self._record_dropped(held)
        for hold in self._gangs.holds.values():
            if len(hold.seats) < seats.get(id(hold), 0):
                self._record("unhold", hold, left=sum(seat.lease.slots for seat in hold.seats))
        waiter = _Waiter(responder, len(all_of_it))
        for leaving in all_of_it:
            self._waiting.setdefault(leaving, []).append(waiter)
            if id(leaving) not in begun:
                self._begin_stop(leaving)
        if request.only is None:
            self.reports.forget(request.gang, request.generation)
        if not all_of_it:
            waiter.done((), self._load())

    def _end(self, member: LocalMember, reason: str, alone: bool) -> None:
        """A member's gang is over according to the ledger, or (`alone`) the member is cut off."""
        now = self._driver.now()
        if alone:
            self.metrics.event("alone")
            for rank in member.ranks:
                self._fail(member.form, rank, MemberCause.FAILED, reason)
        else:
            self.reports.forget(member.gang, member.generation)
        self._begin_stop(self._gangs.stop(member, reason, member.form.grace_s, now))
        self._driver.after()

    def _missing(self, member: LocalMember, reason: str) -> None:
        if self._driver.history is not None:
            self._driver.history.gang_lost(member.gang, member.generation, reason)

    def end_all(self, reason: str) -> None:
        """Every generation with a seat here is over, and no teardown will arrive."""
        for member in list(self._gangs.members.values()):
            self._end(member, reason, alone=False)

    def _begin_stop(self, leaving: LeavingMember) -> None:
        self._began[leaving] = self._loop.time()
        self.metrics.event("torn_down")
        self.metrics.members(-len(leaving.seats))
        self._record("teardown", leaving, reason=leaving.reason)
        self._log.info(
            "stopping the members of gang %s here (generation %d, ranks: %s): %s",
            leaving.gang, leaving.generation, ", ".join(str(seat.rank) for seat in leaving.seats), leaving.reason,
            extra={"action": "gang.teardown", "gang": leaving.gang, "generation": leaving.generation},
        )  # fmt: skip
        self.seats.stop(leaving)
        self.hooks.end(leaving, max(0.0, leaving.grace_at - self._driver.now()))

    def _stopped(self, leaving: LeavingMember) -> None:
        self.metrics.torn_down(self._loop.time() - self._began.pop(leaving, self._loop.time()))
        self._record("stopped", leaving)
        times = self.seats.stopped(leaving) if self.seats.timers else ()
        for seat in leaving.seats:
            span = self._spans.pop(seat.lease.token, None)
            if span is not None:
                span.event("torn down", {"reason": leaving.reason})
                span.end()
        load = self._load()
        for waiter in self._waiting.pop(leaving, []):
            waiter.done(times, load)

    def fail_all(self, reason: str) -> None:
        """The worker has failed, and all its members with it."""
        for member in self._gangs.members.values():
            for rank in member.ranks:
                self._fail(member.form, rank, MemberCause.FAILED, reason)

    def _fail(self, form: FormRequest, rank: int, cause: MemberCause, detail: str) -> None:
        if self.reports.send(form.gang, form.generation, rank, cause, detail):
            self.metrics.event("failed")

    # -- what follows from decisions, and from time ---------------------------------------------------------------

    def _settle(self) -> None:
        """Called after every decision while there are gangs. A follow-up may decide something itself: then repeat."""
        if self._settling:
            self._again = True
            return
        self._settling = True
        try:
            self._again = True
            while self._again:
                self._again = False
                self._follow_up()
        finally:
            self._settling = False
        self._arm()

    def _follow_up(self) -> None:
        gangs, now = self._gangs, self._driver.now()
        for member in gangs.take_voided() if gangs.voided else ():
            for rank in member.ranks:
                detail = f"worker {self._driver.worker} was frozen: its leases of earlier epochs are void"
                self._fail(member.form, rank, MemberCause.FAILED, detail)
        for cut in gangs.take_cut(now) if gangs.members else ():
            cause = MemberCause.DRAINED if self._drain_grace_s() > 0 else MemberCause.LEFT
            for rank in sorted({seat.rank for seat in cut.seats}):
                self._fail(cut.form, rank, cause, f"worker {self._driver.worker} is leaving")
            self._begin_stop(cut)
        for leaving in gangs.take_stopped() if gangs.leaving else ():
            self._stopped(leaving)

    def _arm(self) -> None:
        at = self._gangs.next_at()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        holds, members, hard = self._gangs.take_due(self._driver.now())
        for hold in holds:
            self.ledger.resolve(hold)
        for member in members:
            self.ledger.look(member)
        for leaving in hard:
            left = self.seats.insist(leaving)
            if left:
                self._log.warning(
                    "still running after the grace time: %s of gang %s", count_of(left, "task"), leaving.gang,
                    extra={"action": "gang.grace_over", "gang": leaving.gang},
                )  # fmt: skip
        self._driver.after()
        self._arm()

    def _record(self, event: str, what: TentativeHold | LocalMember | LeavingMember, **facts: object) -> None:
        self._driver.record(event, gang=what.gang, generation=what.generation, **facts)

    def _record_dropped(self, held: list[TentativeHold]) -> None:
        """Record those of these holds that no longer exist."""
        for hold in held:
            if self._gangs.holds.get((hold.gang, hold.generation)) is not hold:
                self._record("unhold", hold)

    def _load(self) -> LoadReply:
        return LoadReply.of(self._core.load)


class _Waiter:
    """One teardown request, answered when the last member it waits for has stopped."""

    __slots__ = ("_left", "_responder", "_times")

    def __init__(self, responder: Responder, left: int) -> None:
        self._responder = responder
        self._left = left
        self._times: tuple[RankTimes, ...] = ()

    def done(self, times: tuple[RankTimes, ...], load: LoadReply) -> None:
        self._left -= 1
        self._times += times
        if self._left <= 0:
            self._responder.reply(TeardownReply(stopped=True, load=load, times=self._times))
