"""The one door to a user's policy: whatever goes wrong behind it is logged and counted, and never in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ...telemetry.logs import logger_for
from .candidates import Candidates, Requirements
from .policy import Policy, PolicyBase, PowerOfTwo, Sticky
from .worker_table import WorkerEntry

_log = logger_for("dispatcher")


class GuardedPolicy(PolicyBase):
    """Calls a policy. A hook that raises has no effect; a choice that raises is made by power of two choices.

    Each failure counts in `failures`; the first one of a hook is logged with its traceback, and then every tenth,
    hundredth and so on, so that a policy that always fails does not fill the disk.
    """

    def __init__(self, policy: Policy, pool: str) -> None:
        self.policy = policy
        self.failures: Counter[str] = Counter()
        self._pool = pool
        self._otherwise = PowerOfTwo()

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        try:
            return self.policy.choose(candidates, request)
        except Exception as error:
            self._failed("choose", error)
            return self._otherwise.choose(candidates, request)

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        self._tell("routed", self.policy.routed, worker, request)

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        self._tell("completed", self.policy.completed, worker, request)

    def worker_lost(self, worker: WorkerEntry) -> None:
        self._tell("worker_lost", self.policy.worker_lost, worker)

    def _tell(self, name: str, hook: Callable[..., None], *facts: object) -> None:
        try:
            hook(*facts)
        except Exception as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self.failures[name] = count = self.failures[name] + 1
        if str(count).rstrip("0") == "1":  # 1, 10, 100, ...
            _log.error(
                "%s.%s of pool %s failed (%d so far): requests go on without it",
                type(self.policy).__name__, name, self._pool, count,
                exc_info=error, extra={"action": "policy.failed", "pool": self._pool},
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"GuardedPolicy({self.policy!r}, failures={dict(self.failures)})"


def guarded(policy: Policy, pool: str) -> Policy:
    """The policy behind the guard; one of ours as it is."""
    return policy if type(policy) in (PowerOfTwo, Sticky) else GuardedPolicy(policy, pool)
