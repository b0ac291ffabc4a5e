"""What tenants have in the stream of schedules for one endpoint, and whether their quotas and its room allow more.

Only the owner of a queue stores the schedules of its endpoint, so it can count them. It reads what is there when a
tenant first schedules something; what has run or was removed since is noticed when a tenant is at a limit, at most once
a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ....bus.port.bus import Stream, StreamMessage
from ....schemas.errors.base import GanglineError, QuotaExceeded
from ....schemas.names import Names, belongs_to
from ....schemas.permissions.quotas import Quota, Quotas, exceeded
from ...jobs.stored import recurring
from ..messages.entry import size_of

_READ_AT_ONCE: Final = 64
_LIST_S: Final = 1.0
_LOOK_S: Final = 1.0
_QUEUES: Final = 4
"""What schedules may take, in limits of the stream of tasks."""


@dataclass(slots=True)
class _Stored:
    """What one tenant has."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """In bytes, by subject."""
    bytes: int = 0
    recurring: set[str] = field(default_factory=set[str])
    """Subjects of those that repeat."""
    coming: set[str] = field(default_factory=set[str])
    """Subjects of those that are being stored. They count."""
    listed_at: float = float("-inf")

    def put(self, subject: str, size: int, *, repeats: bool) -> None:
        self.drop(subject)
        self.sizes[subject] = size
        self.bytes += size
        if repeats:
            self.recurring.add(subject)

    def drop(self, subject: str) -> None:
        self.bytes -= self.sizes.pop(subject, 0)
        self.recurring.discard(subject)


class ScheduleRoom:
    """How much may be stored in the stream of schedules where the stream of tasks has got a share of the server's room:
    four times as much as there.

    The server cannot limit it: at its limit, a stream with schedules drops the oldest. But tasks that wait for their
    time must not take the room that the end of others needs. Nor can they wait in the stream of tasks, which those that
    are due must enter.

    Args:
        wanted_bytes: the limit that the stream of tasks should have; -1: none.
    """

    def __init__(self, wanted_bytes: int) -> None:
        self._wanted_bytes = wanted_bytes
        self._left_bytes = 0.0
        self._looked_at = float("-inf")

    async def take(self, size: int, tasks: Stream, schedules: Stream) -> None:
        """Count so many bytes.

        Raises:
            QuotaExceeded: there is no room for them.
            GanglineError: a stream did not answer.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._looked_at + _LOOK_S:
            limit = (await tasks.state()).max_bytes
            short = 0 < limit < self._wanted_bytes or (self._wanted_bytes < 0 < limit)
            self._left_bytes = _QUEUES * limit - (await schedules.state()).bytes if short else float("inf")
            self._looked_at = now
        if size > self._left_bytes:
            raise QuotaExceeded(
                f"no room in the stream {schedules.name} for delayed tasks, which may take {_QUEUES} times as much as "
                f"the stream {tasks.name} (limit of the server): give the server more storage and raise the limit of "
                f"{tasks.name}, then replay this one"
            )
        self._left_bytes -= size

    def __repr__(self) -> str:
        return f"ScheduleRoom({self._left_bytes:g} bytes left)"


class ScheduledTasks:
    """One per queue."""

    def __init__(self, endpoint: str, names: Names, quotas: Quotas) -> None:
        self._endpoint = endpoint
        self._names = names
        self._quotas = quotas
        self._tenants: dict[str, _Stored] = {}
        self._turn = asyncio.Lock()

    async def store(
        self,
        tenant: str,
        stream: Stream,
        subject: str,
        size: int,
        publish: Callable[[], Awaitable[None]],
        *,
        repeats: bool,
    ) -> None:
        """Publish a schedule if the tenant's quotas allow it; it may replace one of that subject.

        Raises:
            QuotaExceeded: they do not; nothing was stored.
            GanglineError: from `publish`, or the stream did not answer.
        """
        quota = self._quotas.of(tenant)
        if quota is None:
            await publish()
            return
        async with self._turn:
            stored = self._tenants.setdefault(tenant, _Stored())
            error = self._refusal(tenant, quota, stored, subject, size, repeats=repeats)
            now = asyncio.get_running_loop().time()
            if now >= stored.listed_at + _LIST_S and (error is not None or stored.listed_at < 0):
                await self._list(tenant, stored, stream)
                stored.listed_at = asyncio.get_running_loop().time()
                error = self._refusal(tenant, quota, stored, subject, size, repeats=repeats)
            if error is not None:
                raise error
            stored.put(subject, size, repeats=repeats)
            stored.coming.add(subject)
        try:
            await publish()
        finally:
            stored.coming.discard(subject)

    def _refusal(
        self, tenant: str, quota: Quota, stored: _Stored, subject: str, size: int, *, repeats: bool
    ) -> GanglineError | None:
        where = f"for {self._endpoint!r}"
        replaces_schedule = subject in stored.recurring
        schedules = len(stored.recurring) - replaces_schedule
        delayed = len(stored.sizes) - len(stored.recurring) - (subject in stored.sizes and not replaces_schedule)
        bytes_ = stored.bytes - stored.sizes.get(subject, 0)
        advice = "cancel some first, or have an operator raise the quota and replay this one"
        if repeats and quota.schedules is not None and schedules >= quota.schedules:
            return exceeded(tenant, "schedules", quota.schedules, schedules, f"schedules {where}", advice)
        if not repeats and quota.delayed_tasks is not None and delayed >= quota.delayed_tasks:
            return exceeded(tenant, "delayed_tasks", quota.delayed_tasks, delayed, f"delayed tasks {where}", advice)
        if quota.delayed_bytes is not None and bytes_ + size > quota.delayed_bytes:
            what = f"bytes of schedules and delayed tasks {where}"
            return exceeded(tenant, "delayed_bytes", quota.delayed_bytes, bytes_, what, advice)
        return None

    async def _list(self, tenant: str, stored: _Stored, stream: Stream) -> None:
        """Read what is there and not known, and forget what is gone."""
        prefix = self._names.schedule(f"{self._endpoint}.x")[:-1]
        subjects = (await stream.state(f"{prefix}>")).subjects
        own = {subject for subject in subjects if belongs_to(self._names.parse_schedule(subject), tenant)}
        for subject in stored.sizes.keys() - own - stored.coming:
            stored.drop(subject)
        unknown = sorted(own - stored.sizes.keys())
        for start in range(0, len(unknown), _READ_AT_ONCE):
            for message in await asyncio.gather(*map(stream.last, unknown[start : start + _READ_AT_ONCE])):
                if message is not None:
                    stored.put(message.subject, size_of(message), repeats=self._repeats(message))

    def _repeats(self, message: StreamMessage) -> bool:
        return recurring(self._names, message, wall=0.0) is not None

    def __repr__(self) -> str:
        return f"ScheduledTasks({self._endpoint}, {sorted(self._tenants)})"
