"""Leases of slots in one pool for one queue: acquired while slots are requested, used by one task after another, then
released. In a standing set they are its gangs' slots.

A worker never gets more tasks than slots leased from it. A lease serves many tasks without another round trip. So that
others waiting for a busy worker get their share, a lease is retired after a turn and requested again through the common
queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....schemas.errors.base import Disconnected, GanglineError
from ....schemas.messages.jobs import LineLease
from ....schemas.names import public_id
from ....telemetry.logs import Log
from ...router.router import Router
from ..messages.entry import LeasedSlots
from ..policies.settings import DispatcherSettings

_MAX_ASKS: Final = 16
"""Maximum number of concurrent lease requests: each takes a place in the pool's line."""
_AGAIN_S: Final = 0.1
_ASIDE_S: Final = 0.01
"""After a turn others have this long to answer the worker's invitation."""
_IN_ONE_PIECE_S: Final = 0.25
_SHARING_S: Final = 0.75
"""How long a lease on a worker that was asked for a share of a limit is kept: longer than until the next try. That goes
to the same worker, which may have the share by then."""
_PRESSED_S: Final = 0.005
"""A worker's last free slots are released after this time: others may be waiting for them."""


class SlotLessor:
    """See the module."""

    def __init__(
        self, pool: str, *, router: Router, settings: DispatcherSettings, changed: Callable[[str], None], log: Log
    ) -> None:
        """`changed` is called when leases come or go: the credit must be reported again."""
        self.pool = pool
        self._router = router
        self._settings = settings
        self._changed = changed
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._leases: list[LeasedSlots] = []
        self._unreached = 0
        """Number of leases on workers that were unreachable at the last check."""
        self._last: LeasedSlots | None = None
        """The lease of the last task, if nothing has changed since."""
        self._sharing: dict[str, str] = {}
        """The worker that was last asked to run a method, of those with a limit over all workers."""
        self._asks: dict[asyncio.Task[None], int] = {}
        """Pending lease requests, with their slots."""
        self._patient: set[asyncio.Task[None]] = set()
        """Those without a timeout."""
        self._wanted = 0
        self._told = 0
        """The last `want`; `_wanted` is less until a new lease has been reported."""
        self._largest = 1
        self._missing: str | None = None
        """A method that no leased worker has."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self.refusal: GanglineError | None = None
        """Why the last lease request failed; None after a success."""

    # -- credit ---------------------------------------------------------------------------------------------------

    def want(self, slots: int, largest: int) -> None:
        """The queue could use this many more slots now, and the next task needs `largest` of one lease."""
        self._wanted, self._told, self._largest = slots, slots, max(1, largest)
        for task, asked in list(self._asks.items()):
            # A lease that is too small is useless; a larger one than needed, without a timeout, blocks others.
            if not slots or asked < self._largest or (asked > self._largest and task in self._patient):
                task.cancel()
        if slots:
            self._drop_small()
        self._pump()
        if not slots and any(self._pressed(lease) for lease in self._leases):
            self._arm(_PRESSED_S)

    @property
    def free(self) -> tuple[int, ...]:
        """Free slots of each lease that has some."""
        return tuple(free for lease in self._leases if (free := lease.free) > 0)

    @property
    def leased(self) -> int:
        """Leased slots, in use or not."""
        return sum(lease.hold.slots for lease in self._leases if not lease.hold.ended)

    @property
    def told(self) -> tuple[LineLease, ...]:
        """The leases, for those who ask what a job waits for."""
        return tuple(
            LineLease(lease=public_id(lease.hold.token), worker=lease.name, slots=lease.hold.slots)
            for lease in self._leases
            if not lease.hold.ended
        )

    def take(self, cost: int, method: str, model: str | None) -> LeasedSlots | None:
        """Put a task on a lease: the smallest with enough free slots, preferably on a worker that has the model.

        A task with a limit over all workers prefers the worker that was asked last: that one has a share of it, or
        has asked for it when it refused."""
        sharing = self._sharing.get(method)
        if sharing is None and self._fits_again(cost, method) and model is None:
            assert self._last is not None
            self._last.used += cost
            return self._last
        best: LeasedSlots | None = None
        best_rank: tuple[bool, bool, int] | None = None
        room = False
        for lease in self._leases:
            free = lease.hold.slots - lease.used
            if free < cost:
                continue
            worker = lease.worker
            elsewhere = sharing is not None and worker.id.worker != sharing
            rank = (elsewhere, model is not None and model not in worker.models, free)
            if (best_rank is not None and rank >= best_rank) or not lease.usable:
                continue
            room = True
            if worker.methods and method not in worker.methods and self._serves(method):
                continue
            best, best_rank = lease, rank
        if best is None:
            self._missing = method if room else None
            return None
        best.used += cost
        self._last = best
        declared = best.worker.methods.get(method)
        if declared is not None and declared.policy is not None and declared.policy.divided:
            self._sharing[method] = best.worker.id.worker
        return best

    def _fits_again(self, cost: int, method: str) -> bool:
        """Whether it fits the last task's lease, which had the fewest free slots then and has fewer now."""
        last = self._last
        return (
            last is not None and last.hold.slots - last.used >= cost and method in last.worker.methods and last.usable
        )

    def give(self, lease: LeasedSlots, cost: int) -> None:
        """The task has ended, or was never sent."""
        lease.used -= cost
        self._last = None
        lease.idle_since = self._loop.time()
        if lease.retired:
            self._release(lease, aside_s=_ASIDE_S)
        elif not self._wanted and self._pressed(lease):
            self._arm(_PRESSED_S)

    async def stop(self) -> None:
        """Release everything; running tasks continue. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asks = list(self._asks)
        for task in asks:
            task.cancel()
        for lease in list(self._leases):
            lease.hold.release()
        self._leases.clear()
        if asks:
            await asyncio.wait(asks)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _serves(self, method: str) -> bool:
        """Whether a worker of the pool has the method; if none has, any of them may refuse it."""
        pool = self._router.known_target(self.pool)
        return pool is not None and pool.core.view.serves(method)

    def _pump(self) -> None:
        """Request the missing leases."""
        if self._closed:
            return
        free = [lease.free for lease in self._leases]
        fits = self._missing is None and any(slots >= self._largest for slots in free)
        missing = self._wanted - sum(self._asks.values())
        if not fits and self._wanted and not self._asks:
            missing = max(missing, 1)
        while missing > 0 and len(self._asks) < _MAX_ASKS:
            slots = max(self._largest, min(missing, self._settings.lease_slots, self._room()))
            self._ask(slots)
            missing -= slots

    def _drop_small(self) -> None:
        """Drop leases too small for the next task: they keep their workers' slots from becoming free together."""
        small = [lease for lease in self._leases if lease.hold.slots < self._largest and not lease.retired]
        for lease in small:
            lease.retired = True
            if lease.used < lease.hold.slots:
                self._release(lease)
        if small:
            self._changed(self.pool)

    def _room(self) -> int:
        """The most free slots of one worker as far as the router knows; at least 1."""
        pool = self._router.known_target(self.pool)
        if pool is None:
            return 1
        return max((worker.free for tier in pool.core.view.open for worker in tier[:64]), default=1)

    def _ask(self, slots: int) -> None:
        method, self._missing = self._missing, None
        # Many slots of one worker may never be free together: request fewer after a while.
        patience_s = None if slots <= self._largest else _IN_ONE_PIECE_S
        # Where a share is, or soon will be, and no free lease: the one there is in use, or was released for others.
        # Elsewhere, the next try would be refused like the last one, and the share would only follow it, for ever.
        leased = {lease.worker.id.worker for lease in self._leases if lease.free}
        shared = () if self._asks else self._sharing.values()
        prefers = next((worker for worker in shared if worker not in leased), "")
        lease = self._lease(slots, method, patience_s, prefers)
        task = self._loop.create_task(lease, name=f"gangline-lease-{self.pool}")
        self._asks[task] = slots
        if patience_s is None:
            self._patient.add(task)
        task.add_done_callback(self._asked)

    async def _lease(self, slots: int, method: str | None, patience_s: float | None, prefers: str) -> None:
        try:
            async with asyncio.timeout(patience_s):
                hold = await self._router.hold(
                    self.pool, slots=slots, ttl_s=self._settings.lease_ttl_s, method=method, prefers=prefers
                )
        except TimeoutError:
            return
        except GanglineError as error:
            # Each reason is logged once; the queue's statistics show the waiting tasks.
            known = isinstance(error, Disconnected) or (self.refusal is not None and self.refusal.code == error.code)
            say = self._log.debug if known else self._log.info
            say(
                "tasks wait for slots of pool %s: %s; asking again until there are some. 'gangline workers' shows the "
                "pool's workers, and 'gangline why JOB' what a task waits for",
                self.pool,
                error,
                extra={"action": "queue.no_lease", "pool": self.pool},
            )
            self.refusal = error
            await asyncio.sleep(_AGAIN_S)
            return
        self.refusal = None
        if self._closed:
            hold.release()
            return
        self._leases.append(LeasedSlots(hold, self._loop.time()))
        self._last = None
        self._wanted = max(0, self._wanted - slots)  # until the next `want`
        self._arm()

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asks.pop(task, None)
        self._patient.discard(task)
        if self._closed:
            return
        if task.cancelled():
            self._pump()
            return
        if (error := task.exception()) is not None:
            self._log.error("asking for a lease failed", exc_info=error, extra={"action": "feeder.bug"})
        self._changed(self.pool)
        self._pump()

    # -- time -----------------------------------------------------------------------------------------------------

    def _arm(self, wait_s: float | None = None) -> None:
        if self._closed:
            return
        at = self._loop.time() + (min(self._settings.idle_s, self._settings.turn_s) / 2 if wait_s is None else wait_s)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look), at

    def _pressed(self, lease: LeasedSlots) -> bool:
        """Whether others may be waiting for its slots."""
        if not lease.hold.counts_on.free:
            return True
        pool = self._router.known_target(self.pool)
        return pool is not None and pool.core.waiting > 0

    def _idle_s(self, lease: LeasedSlots) -> float:
        if self._pressed(lease):
            return min(self._settings.idle_s, _PRESSED_S)
        sharing = lease.worker.id.worker in self._sharing.values()
        return max(self._settings.idle_s, _SHARING_S) if sharing else self._settings.idle_s

    def _look(self) -> None:
        """Drop lost leases, release idle ones, retire those whose turn is over."""
        self._timer = None
        now, settings = self._loop.time(), self._settings
        unreached = sum(not lease.worker.reachable for lease in self._leases)
        changed, self._unreached = unreached != self._unreached, unreached
        for lease in list(self._leases):
            if lease.hold.ended or lease.hold.trouble() is not None:
                changed = changed or not lease.retired
                lease.retired = True
                if not lease.used or lease.hold.ended:
                    self._release(lease)
            elif lease.retired:
                continue
            elif lease.hold.leaving or (self._wanted and now - lease.born_at >= settings.turn_s):
                lease.retired = changed = True
                if lease.used < lease.hold.slots:
                    self._release(lease, aside_s=0.0 if lease.hold.leaving else _ASIDE_S)
            elif not self._wanted and lease.used < lease.hold.slots and now - lease.idle_since >= self._idle_s(lease):
                self._release(lease)
                changed = True
        if self._leases:
            soon = not self._wanted and any(lease.free and self._pressed(lease) for lease in self._leases)
            self._arm(_PRESSED_S if soon else None)
        if changed:
            self._changed(self.pool)
            # The answer is a new `want`, unless it equals the last one: a lease may be lost before its slots ever
            # counted as credit.
            self._wanted = self._told
            self._pump()

    def _release(self, lease: LeasedSlots, *, aside_s: float = 0.0) -> None:
        """Release the lease: idle slots at once, the others as their tasks end."""
        self._last = None
        if lease in self._leases:
            self._leases.remove(lease)
        lease.hold.release(aside_s=aside_s)

    def __repr__(self) -> str:
        return (
            f"SlotLessor({self.pool}, wanted={self._wanted}, asked={sum(self._asks.values())}, leases={self._leases})"
        )
