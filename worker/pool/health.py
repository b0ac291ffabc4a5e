"""Health checks: run by the worker at intervals, until one has failed too often."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...runtime.hooks import CANCEL_S, call, check_hook, look_at, name_of, stop
from ...schemas.errors.base import InvalidSettings
from ...schemas.text import count_of
from ...telemetry.exceptions import error_text
from ...telemetry.logs import Log

MAX_S: Final = 86_400.0
_LEAVE_S: Final = 0.05
"""How long a check may take to stop when the worker leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """See Pool.health_check."""

    function: Callable[[], Any]
    period_s: float
    timeout_s: float
    failures: int

    @property
    def name(self) -> str:
        return name_of(self.function)

    def validate(self, pool: str) -> None:
        """
        Raises:
            InvalidSettings: names the value that is out of bounds.
        """
        check_hook(self.function, f"pool {pool!r}: a health check")
        where = f"pool {pool!r}: health check {self.name}"
        for what, seconds in (("period_s", self.period_s), ("timeout_s", self.timeout_s)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_S:
                raise InvalidSettings(f"{where}: {what} must be above 0 and at most {MAX_S:.0f}, not {seconds!r}")
        if type(self.failures) is not int or self.failures < 1:
            raise InvalidSettings(f"{where}: failures must be a whole number, at least 1, not {self.failures!r}")


class Probe:
    """Runs one check, and remembers the call that did not end in time."""

    def __init__(self, check: HealthCheck, log: Log) -> None:
        self.check = check
        self._log = log
        self._call: asyncio.Task[Any] | None = None

    async def failed(self, in_a_row: int) -> str | None:
        """Run the check once. Returns why it failed, or None. `in_a_row`: the number of failures before, for the
        log."""
        check = self.check
        try:
            if await self._ask() is False:
                raise RuntimeError("it returned False")
        except Exception as error:
            why = f"{type(error).__name__}: {error_text(error, 2_000)}"
            if isinstance(error, TimeoutError):
                why = f"no answer within {check.timeout_s:g} s"
            self._log.warning(
                "health check %s failed, attempt %d of %d: %s",
                check.name,
                in_a_row + 1,
                check.failures,
                why,
                exc_info=not isinstance(error, TimeoutError),
                extra={"action": "health.failed"},
            )
            return why
        return None

    async def _ask(self) -> Any:
        function, running = self.check.function, self._call
        if running is None or running.done():  # while one hangs, start no second one
            running = self._call = asyncio.get_running_loop().create_task(call(function), name="gangline health")
            running.add_done_callback(look_at)
        try:
            await asyncio.wait((running,), timeout=self.check.timeout_s)
            if not running.done() and inspect.iscoroutinefunction(function):
                running.cancel()
                await asyncio.wait((running,), timeout=CANCEL_S)
            if not running.done() or running.cancelled():
                raise TimeoutError
            return running.result()
        except asyncio.CancelledError:
            await stop([running], _LEAVE_S)
            raise

    async def first(self) -> str | None:
        """Run the check until it passes. Returns the reason if it fails `failures` times in a row, else None."""
        in_a_row = 0
        while (why := await self.failed(in_a_row)) is not None:
            in_a_row += 1
            if in_a_row >= self.check.failures:
                return f"health check {self.check.name} failed {count_of(in_a_row, 'time')} in a row: {why}"
            await asyncio.sleep(self.check.period_s)
        return None


class HealthWatch:
    """Runs the checks of one worker while it serves, and reports the first that fails too often."""

    def __init__(self, checks: Sequence[HealthCheck], *, failed: Callable[[str], None], log: Log) -> None:
        """`failed` is called at most once, with the reason, when a check has failed `failures` times in a row."""
        self._checks = checks
        self._failed = failed
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        self._told = False

    def start(self) -> None:
        """Start; each check first runs after its period."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(check), name="gangline health") for check in self._checks]

    async def stop(self) -> None:
        """Stop checking. Idempotent. A check in a thread cannot be stopped and is left behind."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, check: HealthCheck) -> None:
        probe, in_a_row = Probe(check, self._log), 0
        while True:
            await asyncio.sleep(check.period_s)
            why = await probe.failed(in_a_row)
            in_a_row = 0 if why is None else in_a_row + 1
            if in_a_row >= check.failures and not self._told:
                self._told = True
                self._failed(f"health check {check.name} failed {count_of(in_a_row, 'time')} in a row: {why}")
                return
