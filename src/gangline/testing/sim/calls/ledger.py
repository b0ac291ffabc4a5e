"""Law L6: which leases the ledger shows, and when.

Its time limits hold while storage works, so they are checked only if there was no fault for a while. It is always
checked that no key outlives its worker. The server expires keys in whole seconds and the writer rounds up, so a delay
of up to `ROUNDING_S` is not the worker's fault.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from ....schemas.names import MARK
from ..history.checker import Checker
from .slots import LeaseModel, WorkerModel

VISIBLE_S = 0.05
ROUNDING_S = 2.0
QUIET_S = 10.0
"""For this long after the last fault, writes may still be late: a timeout of 5 s, then retries."""


class LedgerWatch:
    """Compares the bucket's lease keys with the leases that workers granted."""

    def __init__(
        self,
        checker: Checker,
        keys: Callable[[], Iterable[str]],
        still: Callable[[], bool] = lambda: False,
    ) -> None:
        """`still`: whether storage is suspended, so that nothing can expire."""
        self._checker = checker
        self._clock = checker.clock
        self._keys = keys
        self._still = still
        self._disturbed_at = -QUIET_S
        self._disturbed = 0
        self._delivered_at = -math.inf

    def disturb(self) -> None:
        """A fault begins."""
        self._disturbed += 1

    def settle(self) -> None:
        """A fault is over."""
        self._disturbed -= 1
        self._disturbed_at = self._clock()

    def delivered(self) -> None:
        """Messages that were held up between servers have arrived, and with them perhaps writes of workers that have
        died meanwhile."""
        self._delivered_at = self._clock()

    @property
    def quiet(self) -> bool:
        return not self._disturbed and self._clock() - self._disturbed_at >= QUIET_S

    def quiet_for(self) -> float:
        """Seconds since the last fault was over; 0 while there is one."""
        return 0.0 if self._disturbed else self._clock() - self._disturbed_at

    def granted(self, worker: WorkerModel, lease: LeaseModel) -> None:
        """A lease was granted: it must soon be visible, unless it has ended by then."""
        if self.quiet:
            self._later(VISIBLE_S, self._must_stand, worker, lease)

    def ended(self, worker: WorkerModel, lease: LeaseModel) -> None:
        """A lease has ended: it must soon be gone."""
        if self.quiet:
            self._later(VISIBLE_S, self._must_be_gone, worker, lease, "50 ms after its end")

    def worker_died(self, worker: WorkerModel) -> None:
        """A worker died: its keys must expire."""
        for lease in worker.living:
            if lease.gang is not None:
                continue  # its member record goes with the gang
            after = max(0.0, lease.due_at - worker.clock(), lease.ttl_s) + ROUNDING_S + 0.01
            self._later(after, self._must_have_expired, worker, lease, self._clock())

    def _must_stand(self, worker: WorkerModel, lease: LeaseModel) -> None:
        if self.quiet and worker.alive and lease in worker.living and not self._stands(lease):
            self._checker.fail("L6", f"{worker.node}: token {lease.token} is not in the ledger 50 ms after its grant")

    def _must_have_expired(self, worker: WorkerModel, lease: LeaseModel, died_at: float) -> None:
        """A write that arrived after the worker's death lives from then on."""
        more_s = self._delivered_at + lease.ttl_s + ROUNDING_S - self._clock()
        if self._delivered_at >= died_at and more_s > 0:
            self._later(more_s + 0.01, self._must_have_expired, worker, lease, died_at)
        else:
            self._must_be_gone(worker, lease, "longer than its time to live after its worker's death")

    def _must_be_gone(self, worker: WorkerModel, lease: LeaseModel, when: str) -> None:
        if self._still():
            self._later(1.0, self._must_be_gone, worker, lease, when)
        elif (self.quiet or worker.dead) and self._stands(lease):
            self._checker.fail("L6", f"{worker.node}: token {lease.token} is still in the ledger {when}")

    def _stands(self, lease: LeaseModel) -> bool:
        return any(
            key.startswith("lease.") and key.endswith(f".{lease.token.removeprefix(MARK)}") for key in self._keys()
        )

    def _later(self, delay: float, check: Callable[..., None], *args: object) -> None:
        asyncio.get_running_loop().call_later(delay, check, *args)
