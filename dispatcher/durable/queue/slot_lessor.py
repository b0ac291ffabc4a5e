"""Slots of workers for one queue and one pool: leased while they are wanted, used by task after task, given back. Of a
standing set they are its gangs' slots.

A worker is never sent more than the slots leased from it. A lease is good for many tasks without another trip; so that
whoever else waits for a busy worker gets its share, it is retired after a turn and asked for anew through the line that
all use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....schemas.errors.base import Disconnected, GanglineError
from ....telemetry.logs import Log
from ...router.router import Router
from ..messages.entry import LeasedSlots
from ..policies.settings import DispatcherSettings

_MAX_ASKS: Final = 16
"""Leases asked for at once: each takes a place in the pool's line."""
_AGAIN_S: Final = 0.1
_ASIDE_S: Final = 0.01
"""After a turn others have so long to answer the worker's invitation."""
_IN_ONE_PIECE_S: Final = 0.25
_PRESSED_S: Final = 0.005
"""Slots of a worker that has no other free ones are given back after so long: somebody may be waiting for them."""


class SlotLessor:
    """Leases of one pool for one queue. Everything happens on the loop; only asking for a lease takes a task."""

    def __init__(
        self, pool: str, *, router: Router, settings: DispatcherSettings, changed: Callable[[str], None], log: Log
    ) -> None:
        """`changed` is called when leases came or went: the credit is to be told again."""
        self.pool = pool
        self._router = router
        self._settings = settings
        self._changed = changed
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._leases: list[LeasedSlots] = []
        self._unreached = 0
        """Leases on workers that could not be reached when it was looked last."""
        self._last: LeasedSlots | None = None
        """Whom a task was put on last, if nothing has changed since."""
        self._asks: dict[asyncio.Task[None], int] = {}
        """Leases asked for, with their slots."""
        self._patient: set[asyncio.Task[None]] = set()
        """Of those, what waits for as long as it takes."""
        self._wanted = 0
        self._told = 0
        """What the last `want` said: `_wanted` is less while news of a lease is on its way."""
        self._largest = 1
        self._missing: str | None = None
        """A method that no worker has of whom we have a lease."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.refusal: GanglineError | None = None
        """Why the last lease was not had; None after one was."""

    # -- credit ---------------------------------------------------------------------------------------------------

    def want(self, slots: int, largest: int) -> None:
        """So many more slots would be used at once, the next of them `largest` in one piece."""
        self._wanted, self._told, self._largest = slots, slots, max(1, largest)
        for task, asked in list(self._asks.items()):
            # One that waits for as long as it takes, for a piece that nobody needs any more, stands in the way; and so
            # does a piece that is too small.
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
        """Slots leased now, in use or not."""
        return sum(lease.hold.slots for lease in self._leases if not lease.hold.ended)

    def take(self, cost: int, method: str, model: str | None) -> LeasedSlots | None:
        """Put a task on a lease: the smallest that has room, on a worker that has the model if there is one."""
        if self._fits_again(cost, method) and model is None:
            assert self._last is not None
            self._last.used += cost
            return self._last
        best: LeasedSlots | None = None
        best_rank: tuple[bool, int] | None = None
        room = False
        for lease in self._leases:
            free = lease.hold.slots - lease.used
            if free < cost:
                continue
            worker = lease.worker
            rank = (model is not None and model not in worker.models, free)
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
        return best

    def _fits_again(self, cost: int, method: str) -> bool:
        """Whether it can go where the last one went: that had the least room then, and has less now."""
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
        """Give everything back; tasks that run go on. Idempotent."""
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
        """Whether some worker of the pool has the task; if none has, any may say so."""
        pool = self._router.known_target(self.pool)
        return pool is not None and pool.core.view.serves(method)

    def _pump(self) -> None:
        """Ask for as many leases as are missing."""
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
        """Leases that the next task does not fit on keep slots of their workers from becoming free in one piece."""
        small = [lease for lease in self._leases if lease.hold.slots < self._largest and not lease.retired]
        for lease in small:
            lease.retired = True
            if lease.used < lease.hold.slots:
                self._release(lease)
        if small:
            self._changed(self.pool)

    def _room(self) -> int:
        """Most slots that one worker has free, as far as the router knows; at least 1."""
        pool = self._router.known_target(self.pool)
        if pool is None:
            return 1
        return max((worker.free for tier in pool.core.view.open for worker in tier[:64]), default=1)

    def _ask(self, slots: int) -> None:
        method, self._missing = self._missing, None
        # Many slots in one piece may never be free again where single ones are: ask for fewer after a while.
        patience_s = None if slots <= self._largest else _IN_ONE_PIECE_S
        task = self._loop.create_task(self._lease(slots, method, patience_s), name=f"gangline-lease-{self.pool}")
        self._asks[task] = slots
        if patience_s is None:
            self._patient.add(task)
        task.add_done_callback(self._asked)

    async def _lease(self, slots: int, method: str | None, patience_s: float | None) -> None:
        try:
            async with asyncio.timeout(patience_s):
                hold = await self._router.hold(self.pool, slots=slots, ttl_s=self._settings.lease_ttl_s, method=method)
        except TimeoutError:
            return
        except GanglineError as error:
            # Said when it begins; tasks that wait are seen in the queue's statistics.
            known = self.refusal is not None or isinstance(error, Disconnected)
            say = self._log.debug if known else self._log.info
            say("no lease in %s: %s", self.pool, error, extra={"action": "queue.no_lease", "pool": self.pool})
            self.refusal = error
            await asyncio.sleep(_AGAIN_S)
            return
        self.refusal = None
        if self._closed:
            hold.release()
            return
        self._leases.append(LeasedSlots(hold, self._loop.time()))
        self._last = None
        self._wanted = max(0, self._wanted - slots)  # until we are told anew
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
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _pressed(self, lease: LeasedSlots) -> bool:
        """Whether somebody may be waiting for its slots."""
        if not lease.hold.counts_on.free:
            return True
        pool = self._router.known_target(self.pool)
        return pool is not None and pool.core.waiting > 0

    def _idle_s(self, lease: LeasedSlots) -> float:
        """How long its slots may be idle."""
        return min(self._settings.idle_s, _PRESSED_S) if self._pressed(lease) else self._settings.idle_s

    def _look(self) -> None:
        """Drop what is lost, give back what is idle, retire what has had its turn."""
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
            elif lease.hold.leaving:
                lease.retired = changed = True
                if lease.used < lease.hold.slots:
                    self._release(lease)
            elif self._wanted and now - lease.born_at >= settings.turn_s:
                lease.retired = changed = True
                if lease.used < lease.hold.slots:
                    self._release(lease, aside_s=_ASIDE_S)
            elif not self._wanted and lease.used < lease.hold.slots and now - lease.idle_since >= self._idle_s(lease):
                self._release(lease)
                changed = True
        if self._leases:
            soon = not self._wanted and any(lease.free and self._pressed(lease) for lease in self._leases)
            self._arm(_PRESSED_S if soon else None)
        if changed:
            self._changed(self.pool)
            # Whoever is told says what is wanted beyond it, unless that is what it was: a lease may be lost before its
            # slots ever counted as credit.
            self._wanted = self._told
            self._pump()

    def _release(self, lease: LeasedSlots, *, aside_s: float = 0.0) -> None:
        """Give the lease back: what is idle at once, the rest as its tasks end."""
        self._last = None
        if lease in self._leases:
            self._leases.remove(lease)
        lease.hold.release(aside_s=aside_s)

    def __repr__(self) -> str:
        return (
            f"SlotLessor({self.pool}, wanted={self._wanted}, asked={sum(self._asks.values())}, leases={self._leases})"
        )
