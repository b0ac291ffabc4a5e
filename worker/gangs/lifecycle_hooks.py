"""What a pool wants done when a member begins and after it has ended: `@pool.gang_start`, `@pool.gang_stop`.

Between them, before the member's first task, each `@pool.health_check` is made once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable

from ...runtime.tasks import TaskSet
from ...schemas.errors.gangs import GangFailed
from ...schemas.messages.gangs import FormRequest
from ...telemetry.logs import Log
from ..context.gang_context import GangContext
from ..pool.health import Probe, look_at
from ..pool.pool import GangHook, Pool
from ..slots.gang_records import LeavingMember, LocalSeat
from ..slots.lease_table import GrantedLease


class _Start:
    """One member that begins."""

    __slots__ = ("began", "context", "ready", "task", "timer")

    def __init__(self, context: GangContext, ready: asyncio.Future[None]) -> None:
        self.context = context
        self.ready = ready
        """Done when it has begun, or not: what its tasks wait for."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Rings when its hooks have had their time."""
        self.began = False
        """Its hooks have begun, so those for its end are due."""


class GangLifecycleHooks:
    """Runs the hooks of one worker's members. Without hooks in the pool it does nothing at all."""

    def __init__(
        self,
        pool: Pool,
        *,
        context: Callable[[FormRequest, LocalSeat], GangContext],
        started: Callable[[FormRequest, int], None],
        failed: Callable[[FormRequest, int, str], None],
        unhealthy: Callable[[str], None],
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            context: of one member.
            started: the start hooks of that rank have ended well.
            failed: a start hook of that rank raised, or did not end in time; the text says what.
            unhealthy: a first health check failed too often, and why: after that member, the worker itself has failed.
            changed: a teardown may be complete now.
        """
        self._pool = pool
        self._context = context
        self._started = started
        self._failed = failed
        self._unhealthy = unhealthy
        self._changed = changed
        self._log = log
        self._probes: list[Probe] | None = None
        """Of the health checks; made when the first member begins."""
        self._starts: dict[str, _Start] = {}
        """By token, from the member's start to its end."""
        self._ending = TaskSet("gang stop")
        self._idle = asyncio.Event()
        """Set now and then: some task has ended."""

    @property
    def any(self) -> bool:
        """Whether there are hooks, or health checks."""
        return bool(self._pool.gang_starts or self._pool.gang_stops or self._pool.health_checks)

    def begin(self, form: FormRequest, seats: Iterable[LocalSeat]) -> None:
        """These members begin."""
        if not self.any:
            return
        loop = asyncio.get_running_loop()
        for seat in seats:
            if seat.part == 0:
                start = self._starts[seat.lease.token] = _Start(self._context(form, seat), loop.create_future())
                start.ready.add_done_callback(look_at)
                if form.start_timeout_s is not None:
                    late = (form, seat, start, form.start_timeout_s)
                    start.timer = loop.call_later(form.start_timeout_s, self._too_late, *late)
                start.task = loop.create_task(self._start(form, seat, start), name="gangline gang start")

    def ready(self, lease: GrantedLease) -> asyncio.Future[None] | None:
        """What a task on this seat must wait for; None: nothing."""
        start = self._starts.get(lease.token)
        if start is None or (start.ready.done() and not start.ready.cancelled() and start.ready.exception() is None):
            return None
        return start.ready

    def end(self, leaving: LeavingMember) -> None:
        """These seats have ended: stop what begins, and when their tasks have stopped run the stop hooks."""
        starts = [self._starts.pop(seat.lease.token) for seat in leaving.seats if seat.lease.token in self._starts]
        if not starts:
            return
        for start in starts:
            _disarm(start)
            if start.task is not None:
                start.task.cancel()  # now, so that none begins any more
        leaving.hooks += 1
        self._ending.start(self._end(leaving, starts))

    def tasks_ended(self) -> None:
        """Some task on a seat has ended."""
        self._idle.set()

    async def stop(self) -> None:
        """Give up whatever runs. Idempotent."""
        for start in self._starts.values():
            _disarm(start)
        tasks = [*self._ending, *(start.task for start in self._starts.values() if start.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, form: FormRequest, seat: LocalSeat, start: _Start) -> None:
        start.began = True
        try:
            for hook in self._pool.gang_starts:
                await _run(hook, start.context)
                if start.ready.done():
                    return  # too late: it ignored that it was cancelled
            sick = await self._first_checks()
        except asyncio.CancelledError:
            start.ready.cancel()
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            self._log.exception(
                "rank %d of gang %s did not start", seat.rank, form.gang,
                extra={"action": "gang.start_failed", "gang": form.gang, "rank": seat.rank},
            )  # fmt: skip
            self._fail(form, seat, start, detail)
        else:
            if sick is not None:
                self._fail(form, seat, start, sick)
                self._unhealthy(sick)
            elif not start.ready.done():
                start.ready.set_result(None)
                self._started(form, seat.rank)
        finally:
            _disarm(start)

    async def _first_checks(self) -> str | None:
        """Why the worker is not healthy; None if it is."""
        if self._probes is None:
            self._probes = [Probe(check, self._log) for check in self._pool.health_checks]
        found = await asyncio.gather(*(probe.first() for probe in self._probes))
        return next((why for why in found if why is not None), None)

    def _too_late(self, form: FormRequest, seat: LocalSeat, start: _Start, timeout_s: float) -> None:
        """Its hooks have had their time. It has failed now, even if they cannot be stopped."""
        checks = " and first health checks" if self._pool.health_checks else ""
        detail = (
            f"its gang_start functions{checks} had not ended after start_timeout_s ({timeout_s:g} s) and were cancelled"
        )
        self._log.warning(
            "rank %d of gang %s did not start: %s", seat.rank, form.gang, detail,
            extra={"action": "gang.start_timeout", "gang": form.gang, "rank": seat.rank},
        )  # fmt: skip
        self._fail(form, seat, start, detail)
        if start.task is not None:
            start.task.cancel()

    def _fail(self, form: FormRequest, seat: LocalSeat, start: _Start, detail: str) -> None:
        if start.ready.done():
            return
        details = {"rank": seat.rank, "generation": form.generation, "reason": detail}
        text = f"rank {seat.rank} of gang {form.gang} did not start: {detail}"
        start.ready.set_exception(GangFailed(text, details=details, may_have_started=False))
        self._failed(form, seat.rank, detail)

    async def _end(self, leaving: LeavingMember, starts: list[_Start]) -> None:
        try:
            for start in starts:
                if start.task is not None:
                    await asyncio.wait([start.task])
                start.ready.cancel()
            while any(seat.lease.busy for seat in leaving.seats):
                self._idle.clear()
                await self._idle.wait()
            for start in starts:
                for hook in self._pool.gang_stops if start.began else ():
                    try:
                        await _run(hook, start.context)
                    except Exception:
                        self._log.exception(
                            "a gang_stop function failed", extra={"action": "gang.stop_failed", "gang": leaving.gang}
                        )
        finally:
            leaving.hooks -= 1
            self._changed()


def _disarm(start: _Start) -> None:
    if start.timer is not None:
        start.timer.cancel()
        start.timer = None


async def _run(hook: GangHook, context: GangContext) -> None:
    if inspect.iscoroutinefunction(hook):
        await hook(context)
        return
    running = asyncio.get_running_loop().run_in_executor(None, hook, context)
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])  # a thread cannot be stopped, and it has not stopped before it returns
        raise
    if inspect.isawaitable(result):
        await result
