"""Reports of members that have started or failed to the leading coordinator: sent again until they are taken."""

from __future__ import annotations

import asyncio

from ...bus.port.bus import Bus
from ...runtime.backoff import Backoff
from ...schemas.errors.base import ClosedError, GanglineError, Unavailable
from ...schemas.messages.gangs import MemberCause, MemberReport
from ...schemas.names import GangOperation, Names
from ...schemas.wire import headers
from ...telemetry.logs import Log

ANSWER_S = 1.0
"""How long one try waits for its answer."""
RETRY_S = 0.25
"""First wait after a try that was not taken; doubles up to RETRY_MAX_S."""
RETRY_MAX_S = 2.0
GIVE_UP_S = 300.0
"""After so long somebody else has found out, or nobody leads."""


_Key = tuple[str, int, int, bool]
"""Gang, generation, rank, and whether it is that it has started."""


class FailureReporter:
    """For each member of each generation one report that it has started, and one of its end: the first cause counts."""

    def __init__(self, bus: Bus, names: Names, *, log: Log) -> None:
        self._bus = bus
        self._subject = names.gang(GangOperation.REPORT)
        self._log = log
        self._sending: dict[_Key, asyncio.Task[None]] = {}
        self._sent: dict[_Key, None] = {}
        """Latest last; bounded."""

    def send(self, gang: str, generation: int, rank: int, cause: MemberCause, detail: str) -> bool:
        """Tell the coordinator. Returns at once; False if that member was reported before."""
        key = (gang, generation, rank, cause is MemberCause.STARTED)
        if key in self._sent:
            return False
        self._sent[key] = None
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
        report = MemberReport(gang=gang, generation=generation, rank=rank, cause=cause, detail=detail[:1000])
        task = asyncio.get_running_loop().create_task(self._deliver(report), name="gangline gang report")
        self._sending[key] = task
        task.add_done_callback(lambda _: self._sending.pop(key, None))
        return True

    def forget(self, gang: str, generation: int) -> None:
        """The coordinator has ended that generation: it knows."""
        for key, task in list(self._sending.items()):
            if key[0] == gang and key[1] <= generation:
                task.cancel()

    async def drained(self, timeout_s: float) -> None:
        """Wait a moment for what is being sent."""
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
                    return  # taken, or it can never be
            except ClosedError:
                return
            except Unavailable as error:
                self._log.debug("report not taken: %s", error, extra={"action": "gang.report_retry"})
            except GanglineError as error:
                self._log.error("report refused: %s", error, extra={"action": "gang.report_refused"})
                return
            await asyncio.sleep(backoff.next_s())
