"""Reads tasks beyond the window of a queue, so that tenants can take turns.

The consumer delivers messages in the order of the stream, and only as many as the window holds. If one tenant's tasks
fill it, those that others submit later are hidden. As long as the window is full, the oldest tasks of every tenant that
has few in it are read directly from the stream. The core treats them like delivered ones. They are removed instead of
acknowledged when they have ended, unless the consumer has delivered them by then.

A consumer for each tenant would need no reads, but a work queue refuses consumers whose subjects overlap, and one
consumer of all subjects of the endpoint is the lock of its queue.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from ....bus.port.bus import Stream, StreamMessage
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError
from ....schemas.names import split_tenant
from ....telemetry.logs import Log
from ..messages.entry import QueuedMessage
from ..workers.context import DispatcherContext

_PAUSE_S: Final = 0.1
_MOST: Final = 256
"""How many tasks of one tenant are known, at least, as long as it has more."""


class TenantReader:
    """Reads for one queue, while `wanted`."""

    def __init__(
        self,
        context: DispatcherContext,
        endpoint: str,
        *,
        entries: Mapping[int, QueuedMessage],
        newest: Callable[[], int],
        wanted: Callable[[], bool],
        read: Callable[[StreamMessage], None],
        log: Log,
    ) -> None:
        """
        Args:
            entries: the known messages, by sequence.
            newest: the highest sequence that the consumer has delivered.
            wanted: whether tasks are hidden, as far as is known.
            read: called with each message read; may be known.
        """
        self._streams, self._names, self._settings = context.streams, context.names, context.settings
        self._endpoint = endpoint
        self._entries = entries
        self._newest = newest
        self._wanted = wanted
        self._read = read
        self._log = log
        self._read_to: dict[str, int] = {}
        """By tenant: the last sequence read."""
        self._work = TaskSet(f"reader of {endpoint}", log)
        self.rounds = 0

    def wake(self) -> None:
        """Read, if it is wanted, until it is not."""
        if not self._work:
            self._work.start(self._go_on())

    async def stop(self) -> None:
        """Idempotent, safe before `wake`."""
        await self._work.stop()

    async def _go_on(self) -> None:
        while self._wanted():
            try:
                await self._look(await self._streams.tasks())
            except GanglineError as error:
                self._log.debug("cannot read ahead: %s", error, extra={"action": "queue.read_ahead"})
            self.rounds += 1
            await asyncio.sleep(_PAUSE_S)

    async def _look(self, stream: Stream) -> None:
        """Read what each tenant lacks."""
        state = await stream.state(self._names.tasks_of(self._endpoint))
        stored: Counter[str] = Counter()
        for subject, count in state.subjects.items():
            stored[split_tenant(subject)[1]] += count
        self._read_to = {tenant: seq for tenant, seq in self._read_to.items() if tenant in stored}
        if len(stored) < 2:
            return
        known: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for entry in self._entries.values():
            if entry.submission is not None:
                known[entry.submission.tenant] += 1
                sizes[entry.submission.tenant] += len(entry.message.data)
        most = max(1, min(_MOST, self._settings.window_tasks // len(stored)))
        bytes_ = self._settings.window_bytes // len(stored)
        lacking = [tenant for tenant, count in stored.items() if known[tenant] < min(most, count)]
        await asyncio.gather(
            *(self._read_of(stream, tenant, most - known[tenant], bytes_ - sizes[tenant]) for tenant in lacking)
        )

    async def _read_of(self, stream: Stream, tenant: str, count: int, bytes_: int) -> None:
        """Read up to so many tasks of one tenant, and up to so many bytes."""
        pattern = self._names.of_tenant(f"{self._names.tasks_of(self._endpoint).removesuffix('>')}*", tenant)
        while count > 0 and bytes_ > 0 and self._wanted():
            after = max(self._newest(), self._read_to.get(tenant, 0))
            message = await stream.next(pattern, after + 1)
            if message is None:
                return
            self._read_to[tenant] = max(message.sequence, self._read_to.get(tenant, 0))
            count, bytes_ = count - 1, bytes_ - len(message.data)
            self._read(message)

    def __repr__(self) -> str:
        return f"TenantReader({self._endpoint}, {self.rounds} rounds, {len(self._read_to)} tenants)"
