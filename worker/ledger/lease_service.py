"""Granting, recording and renewing leases: the same for routers and for requesters in other languages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ...runtime.tasks import TaskSet
from ...schemas.errors.base import (
    Draining,
    GanglineError,
    InvalidRequest,
    LeaseBusy,
    LeaseExpired,
    Saturated,
    StaleEpoch,
    Unavailable,
    UnknownToken,
)
from ...schemas.errors.gangs import GangEnded
from ...schemas.text import count_of
from ...schemas.wire.frames import Reason
from ..slots.lease_table import GrantedLease, Refusal, RequestId, RouterHistory
from .core_driver import CoreDriver
from .settings import WorkerSettings

REASONS = {
    Refusal.FULL: Reason.FULL,
    Refusal.DRAINING: Reason.DRAINING,
    Refusal.STALE: Reason.STALE,
    Refusal.EXPIRED: Reason.EXPIRED,
}
"""Refusals that a router meets by going elsewhere: answered as REJECTED. The others are errors."""


def error_of(
    refusal: Refusal, *, worker: str, slots: int = 0, total: int = 0, token: str | None = None
) -> GanglineError:
    """The error for a refusal of the core, as it is called on the wire.

    Args:
        refusal: of the core.
        worker: who refuses, for people.
        slots: how many were asked for.
        total: how many the worker has.
        token: the lease's, if one was named; the text shows its start only.
    """
    shown = f"{(token or '')[:8]}..."
    match refusal:
        case Refusal.TOO_LARGE:
            return InvalidRequest(f"{slots} slots were asked for and worker {worker} has {total}: ask for fewer")
        case Refusal.LEASE_TOO_SMALL:
            return InvalidRequest(
                f"the task costs {count_of(slots, 'slot')}, more than lease {shown} has: reserve that many"
            )
        case Refusal.LEASE_EXPIRED:
            return LeaseExpired(f"lease {shown} of worker {worker} ran out: reserve again, and renew in time")
        case Refusal.LEASE_STALE:
            return StaleEpoch(f"lease {shown} is of an earlier epoch of worker {worker}, and void: reserve again")
        case Refusal.LEASE_USED:
            return UnknownToken(f"lease {shown} of worker {worker} was used up or released: reserve again")
        case Refusal.UNKNOWN_TOKEN:
            return UnknownToken(f"worker {worker} knows no lease {shown}: reserve one first")
        case Refusal.LEASE_BUSY:
            return LeaseBusy(f"all slots of lease {shown} are in use: wait for a task to end, or lease more slots")
        case Refusal.GANG_OVER:
            return GangEnded(f"the gang of seat {shown} of worker {worker} was torn down: ask for its next generation")
        case Refusal.FULL:
            return Saturated(f"worker {worker} has not {count_of(slots, 'free slot')} now: try another, or later")
        case Refusal.DRAINING:
            return Draining(f"worker {worker} is leaving: try another")
        case Refusal.STALE:
            return StaleEpoch(f"worker {worker} has a newer epoch: read its registration again")
        case Refusal.EXPIRED:
            return LeaseExpired("the request's time was over, or it was withdrawn, before it arrived: nothing started")


class LeaseService:
    """The core's lease decisions with the worker's bounds and tokens, and with the ledger for `sync`."""

    def __init__(self, driver: CoreDriver, settings: WorkerSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._recording: dict[str, asyncio.Task[int]] = {}
        """Writes of `sync` leases that are under way, by token: a repeated request waits for the same one."""
        self._recorded: set[str] = set()
        """Living `sync` leases whose fence is their revision."""
        self._background = TaskSet("sync grant")
        """Answers that wait for the ledger, oldest first."""

    def reserve(
        self,
        sender: RouterHistory,
        rid: RequestId | None,
        *,
        slots: int,
        ttl_s: float,
        claim_s: float,
        single_use: bool,
        owner: str,
        seat: str | None = None,
        now: float,
    ) -> GrantedLease | Refusal:
        """See AdmissionCore.reserve.

        Raises:
            InvalidRequest: longer than this worker allows.
        """
        settings = self._settings
        if ttl_s > settings.max_lease_ttl_s:
            raise InvalidRequest(f"ttl of {ttl_s:g} s: this worker leases for {settings.max_lease_ttl_s:g} s at most")
        if claim_s > max(settings.max_claim_s, min(ttl_s, settings.max_lease_ttl_s)):
            raise InvalidRequest(
                f"claim timeout of {claim_s:g} s: this worker waits {settings.max_claim_s:g} s at most"
            )
        return self._driver.core.reserve(
            sender,
            rid,
            slots=slots,
            ttl_s=ttl_s,
            claim_s=claim_s,
            single_use=single_use,
            owner=owner,
            token=self._driver.ambient.token(),
            seat=seat,
            now=now,
        )

    def recorded(self, lease: GrantedLease) -> bool:
        """Whether a `sync` lease has its revision for a fence already."""
        return lease.token in self._recorded

    def in_background(self, answering: Coroutine[None, None, None]) -> None:
        """Run what answers a request once its lease is recorded."""
        self._background.start(answering)

    async def record(self, token: str) -> GrantedLease | None:
        """Write a lease to the ledger; its fence is then the revision. None: it ended meanwhile.

        Raises:
            GanglineError: storage did not take it; the lease is released.
        """
        driver = self._driver
        ledger = driver.ledger
        assert ledger is not None
        writing = self._recording.get(token)
        if writing is None:
            if token in driver.core.leases:
                # In the record 0 says: the revision of this entry itself, which is not known before it is written.
                driver.core.set_fence(driver.core.leases[token], 0)
            writing = self._recording[token] = asyncio.get_running_loop().create_task(ledger.write_now(token))
            writing.add_done_callback(lambda _: self._recording.pop(token, None))
        try:
            revision = await asyncio.shield(writing)
        except LookupError:
            return None
        except Exception as error:
            # Whatever it was, the caller gets an answer, and no slot.
            driver.core.release(driver.core.sender(OPERATIONS, driver.now()), None, token, driver.now())
            driver.after()
            if isinstance(error, GanglineError):
                raise
            raise Unavailable(f"the lease could not be written to the ledger ({type(error).__name__})") from error
        lease = driver.core.leases.get(token)
        if lease is None or lease.due_at <= driver.now():
            return None
        if token not in self._recorded:
            self._recorded = {known for known in self._recorded if known in driver.core.leases}
            self._recorded.add(token)
            driver.core.set_fence(lease, revision)
        return lease

    def renew(self, token: str, ttl_s: float | None, now: float) -> float:
        """Renew; returns the seconds that the lease has now.

        Raises:
            InvalidRequest: longer than this worker allows.
            LeaseError: it is not there (any more).
        """
        if ttl_s is not None and ttl_s > self._settings.max_lease_ttl_s:
            raise InvalidRequest(
                f"ttl of {ttl_s:g} s: this worker leases for {self._settings.max_lease_ttl_s:g} s at most"
            )
        left_s = self._driver.core.renew(token, ttl_s, now)
        if isinstance(left_s, Refusal):
            raise error_of(left_s, worker=str(self._driver.worker), token=token)
        return left_s

    async def stop(self) -> None:
        """Give up what waits for the ledger. Idempotent."""
        tasks = [*self._background, *self._recording.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPERATIONS = ""
"""The sender under which requests of other languages are remembered; no router can have this name."""
