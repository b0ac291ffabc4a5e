"""What the tasks of each tenant use of its quotas in one queue, and what these allow.

Laws:

1. Only tasks that have not been started are refused.
2. Only older tasks of the same tenant count against a task, so that none is refused for what was submitted after it,
   whichever dispatcher has the queue.
3. Of the runs of schedules that are refused, nobody waits for one: for those of one method of a tenant, one is dead
   each second, and says how many others were refused since the last.
4. A task counts from when it is accepted, or found to run, until its end is about to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ....schemas.errors.base import GanglineError, NotEntitled
from ....schemas.permissions.quotas import Quotas, exceeded
from ....schemas.schedules import parse_schedule
from ....schemas.text import count_of, plain
from .task import Task

_LETTER_S: Final = 1.0
"""Time between dead letters of refused runs of schedules, for each tenant and method."""


@dataclass(slots=True)
class _Accepted:
    """Accepted tasks of one tenant."""

    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """By sequence."""
    bytes: int = 0
    newest: int = 0
    """No sequence is higher."""

    def before(self, seq: int) -> tuple[int, int]:
        """How many are older, and their bytes."""
        if seq > self.newest:
            return len(self.sizes), self.bytes
        older = [size for other, size in self.sizes.items() if other < seq]
        return len(older), sum(older)


@dataclass(slots=True)
class _Refused:
    """Refused runs of schedules, of one method of a tenant."""

    letter_at: float
    """When the last dead letter was made."""
    runs: int = 0
    """How many were refused since then."""


class TenantTasks:
    """The tasks of one queue that count for their tenants' quotas."""

    def __init__(self, endpoint: str, quotas: Quotas) -> None:
        self._endpoint = endpoint
        self._quotas = quotas
        self._accepted: dict[str, _Accepted] = {}
        self._refused: dict[tuple[str, str], _Refused] = {}

    def accept(self, task: Task) -> None:
        """It counts from now on. No-op for tasks of our own account, and those that count already."""
        tenant = task.submission.tenant
        if tenant and not task.accepted:
            task.accepted = True
            found = self._accepted.setdefault(tenant, _Accepted())
            found.sizes[task.seq] = task.size
            found.bytes += task.size
            found.newest = max(found.newest, task.seq)

    def leave(self, task: Task) -> None:
        """It no longer counts. No-op if it did not."""
        if task.accepted:
            task.accepted = False
            found = self._accepted[task.submission.tenant]
            found.bytes -= found.sizes.pop(task.seq)
            if not found.sizes:
                del self._accepted[task.submission.tenant]

    def not_entitled(self, task: Task) -> GanglineError | None:
        """Why its tenant may not submit it, however little else it uses; None: it may."""
        tenant, wanted = task.submission.tenant, task.submission.priority or 0
        quota = self._quotas.of(tenant)
        if quota is None:
            return None
        if wanted > quota.priority:
            return _no_right(tenant, "priority", quota.priority, f"priority {wanted}", "ask for less")
        if task.submission.cron is not None:
            if quota.schedules == 0:
                return _no_right(tenant, "schedules", 0, "a schedule", "declare none")
            shortest_s = parse_schedule(task.submission.cron).shortest_s
            if shortest_s < quota.schedule_every_s:
                wants = f"a schedule ({task.submission.cron}) that runs every {plain(shortest_s)} s"
                return _no_right(tenant, "schedule_every_s", quota.schedule_every_s, wants, "let it run less often")
        elif task.submission.schedule is not None and quota.schedules == 0:
            return _no_right(tenant, "schedules", 0, "a run of a schedule", "declare none")
        if quota.queued_tasks == 0:
            return _no_right(tenant, "queued_tasks", 0, "a submitted task", "submit none")
        if quota.queued_bytes is not None and task.size > quota.queued_bytes:
            wants = f"a task of {count_of(task.size, 'byte')}"
            return _no_right(tenant, "queued_bytes", quota.queued_bytes, wants, "submit a smaller one")
        return None

    def refusal(self, task: Task) -> GanglineError | None:
        """Why its tenant's quotas do not allow it now; None: they do, or there are none."""
        tenant = task.submission.tenant
        quota = self._quotas.of(tenant)
        if quota is None:
            return None
        if (error := self.not_entitled(task)) is not None:
            return error
        limits = (quota.queued_tasks, quota.queued_bytes)
        found = self._accepted.get(tenant)
        if limits == (None, None) or found is None:
            return None
        used = found.before(task.seq)
        where = f"queued for {self._endpoint!r}"
        whats = (f"{'task' if used[0] == 1 else 'tasks'} {where}", f"bytes of tasks {where}")
        for name, limit, has, more, what in zip(
            ("queued_tasks", "queued_bytes"), limits, used, (1, task.size), whats, strict=True
        ):
            if limit is not None and has + more > limit:
                advice = "submit it again when some have ended, or have an operator raise the quota and replay it"
                return exceeded(tenant, name, limit, has, what, advice)
        return None

    def letter(self, task: Task, error: GanglineError, now: float) -> GanglineError | None:
        """The error of the dead letter of a refused task; None: it gets none, and is counted for the next one."""
        if task.submission.schedule is None:
            return error
        which = (task.submission.tenant, task.submission.method)
        refused = self._refused.get(which)
        if refused is not None and now < refused.letter_at + _LETTER_S:
            refused.runs += 1
            return None
        self._refused[which] = _Refused(now)
        if refused is None or not refused.runs:
            return error
        more = f"{refused.runs} other {'run' if refused.runs == 1 else 'runs'} of schedules"
        return type(error)(
            f"{error.message} ({more} of {self._endpoint}.{task.submission.method} were refused since the last dead "
            "letter, and have none)",
            details={**error.details, "runs": refused.runs},
        )

    def check(self, tasks: Iterable[Task]) -> None:
        """Raises:
        AssertionError: something is miscounted.
        """
        expected: dict[str, dict[int, int]] = {}
        for task in tasks:
            if task.accepted:
                expected.setdefault(task.submission.tenant, {})[task.seq] = task.size
        assert expected == {tenant: found.sizes for tenant, found in self._accepted.items()}, "tenants are miscounted"
        for found in self._accepted.values():
            assert found.bytes == sum(found.sizes.values()), "bytes of a tenant are miscounted"
            assert found.newest >= max(found.sizes), "an accepted task is newer than the newest"


def _no_right(tenant: str, quota: str, limit: float, wants: str, instead: str) -> NotEntitled:
    return NotEntitled(
        f"tenant {tenant!r} asks for {wants}, and its quota {quota} is {limit}: {instead}, or have an operator raise "
        "the quota",
        details={"tenant": tenant, "quota": quota, "limit": limit},
    )
