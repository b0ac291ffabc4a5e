"""Whether a queue is still ours: the server is asked after each doubt, and a write proves it.

The consumer is the lock, but a server that is cut off from the others still shows it. So each owner writes its turn to
the results bucket, and rewrites it while there is work: only over its own revision, so that the write fails as soon as
a successor has written its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pydantic import ValidationError

from ....bus.port.bus import Conflict, ConsumerLost, ConsumerState, KeyValue
from ....runtime.clock import Environment
from ....schemas.errors.base import GanglineError, Unavailable
from ....schemas.records.jobs import TurnRecord
from ....telemetry.logs import Log
from ...jobs.storage import storage_backoff, until_answered
from ..workers.failure_detector import DoubtMonitor
from .ownership_core import TRUST_S, Trust

_ANSWERS_S: Final = 1.0
"""A proof that takes longer is useless, and is requested again."""


class OwnershipProof:
    """The record of a queue's current owner."""

    def __init__(
        self, bucket: Callable[[], Awaitable[KeyValue]], key: str, *, dispatcher: str, ambient: Environment, log: Log
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._dispatcher = dispatcher
        self._ambient = ambient
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._revision = 0
        self._noted_at = float("-inf")
        self.trust = Trust()

    async def take(self) -> tuple[int, bool]:
        """Claim the queue. Returns a number greater than that of any earlier owner, and whether there was one."""

        async def before() -> bool:
            return await (await self._bucket()).get(self._key) is not None

        async def write() -> None:
            asked_at = self._loop.time()
            self._revision = await (await self._bucket()).put(self._key, self._record())
            self.trust.proven(asked_at)

        had = await until_answered("reading who owned the queue", before, self._log)
        await until_answered("claiming the queue", write, self._log)
        self._noted_at = self._loop.time()
        return self._revision, had

    @property
    def others_trust_s(self) -> float:
        """How long an earlier owner may still trust its ownership."""
        return self._noted_at + TRUST_S - self._loop.time()

    async def prove(self) -> None:
        """Write it again.

        Raises:
            ConsumerLost: another dispatcher owns the queue.
            GanglineError: storage did not answer.
        """
        bucket, asked_at = await self._bucket(), self._loop.time()
        try:
            async with asyncio.timeout(_ANSWERS_S):
                self._revision = await bucket.put(self._key, self._record(), revision=self._revision)
        except TimeoutError:
            raise Unavailable(f"no proof of ownership within {_ANSWERS_S:g} s") from None
        except Conflict:
            await self._read()
            raise
        self.trust.proven(asked_at)

    async def _read(self) -> None:
        """The record may be ours, from a write whose answer was lost."""
        entry = await (await self._bucket()).get(self._key)
        if entry is not None and not self._is_ours(entry.value):
            raise ConsumerLost("another dispatcher has claimed the queue")
        self._revision = 0 if entry is None else entry.revision

    def _is_ours(self, value: bytes) -> bool:
        try:
            return TurnRecord.read(value).dispatcher == self._dispatcher
        except ValidationError:
            return False

    def _record(self) -> bytes:
        return TurnRecord(dispatcher=self._dispatcher, at=self._ambient.wall()).model_dump_json().encode()


class OwnershipVerifier:
    """Verifies ownership of one queue. Certain at first, since the consumer was just created."""

    def __init__(
        self,
        guard: DoubtMonitor,
        turn: OwnershipProof,
        state: Callable[[], Awaitable[ConsumerState]],
        *,
        doubted: Callable[[], None],
        sure: Callable[[], None],
        lost: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            state: asks the server for the consumer.
            doubted, sure, lost: called at each change; nothing is called after `lost`. In between, clients may have
                missed us, also if there was no work and so no proof: a dispatcher without work does not notice that
                its server is cut off.
        """
        self._guard = guard
        self._turn = turn
        self._state = state
        self._doubted = doubted
        self._sure = sure
        self._lost = lost
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._certain = asyncio.Event()
        self._certain.set()
        self._verified = guard.term
        """The term in which the consumer was last seen."""
        self._asking: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = guard.on_doubt(self._on_doubt)

    @property
    def certain(self) -> bool:
        return self._certain.is_set()

    def look(self) -> None:
        """Called before all work: request a new proof if the last one is old."""
        self._guard.look()
        trust, now = self._turn.trust, self._loop.time()
        if self._unlisten is None or not trust.fades(now):
            return
        if not trust.holds(now):
            self._doubt()
        self._ask()

    async def wait(self) -> None:
        """Wait until ownership is certain. Never returns if it is lost."""
        self.look()
        await self._certain.wait()

    async def stop(self) -> None:
        """Idempotent."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._certain.clear()
        asking, self._asking = self._asking, None
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()
            await asyncio.wait([asking])

    def _on_doubt(self, _gap_s: float) -> None:
        self._doubt()
        self._ask()

    def _doubt(self) -> None:
        if self._certain.is_set():
            self._certain.clear()
            self._doubted()

    def _ask(self) -> None:
        if self._asking is None:
            self._asking = self._loop.create_task(self._make_sure(), name="gangline-possession")

    async def _make_sure(self) -> None:
        backoff = storage_backoff()
        try:
            while True:
                term = self._guard.term
                try:
                    if term != self._verified:
                        await self._state()
                    if self._turn.trust.begun:
                        await self._turn.prove()
                except ConsumerLost:
                    raise
                except GanglineError as error:
                    self._log.debug("no proof yet: %s; asking again", error, extra={"action": "queue.unproven"})
                    if not self._turn.trust.holds(self._loop.time()):
                        self._doubt()
                    await asyncio.sleep(backoff.next_s())
                else:
                    self._verified = term
                    if self._guard.look() == term and self._turn.trust.holds(self._loop.time()):
                        break
        except ConsumerLost:
            self._asking = None
            self._lost()
            return
        self._asking = None
        if self._unlisten is not None and not self._certain.is_set():
            self._certain.set()
            self._sure()

    def __repr__(self) -> str:
        return f"OwnershipVerifier({'certain' if self.certain else 'in doubt'})"
