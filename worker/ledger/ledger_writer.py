"""The ledger writer: makes every active lease visible in the key-value bucket, shortly after it was granted.

Grants are answered from memory, and written afterwards. The writer remembers *which* leases changed and writes their
state at that time. So a grant and its release within one flush cost nothing, and after an outage of storage only the
latest state is written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from ...bus.port.bus import KeyValue, KvWrite
from ...runtime.clock import Environment
from ...runtime.timers import Backoff
from ...schemas.errors.base import ClosedError, Unavailable
from ...schemas.names import MARK, Names, WorkerId
from ...telemetry.logs import Log

FLUSH_S = 0.01
"""How long changes are collected. Law L6 allows 0.05 s from grant to visibility."""
YOUNG_S = 0.009
"""A new lease is written when it is this old: most leases for a single task have ended by then and cost no write.
Together with FLUSH_S well within what L6 allows."""
BATCH = 1000
"""Maximum number of writes in flight."""
RETRY_S = 0.05
"""First wait after a failed write; doubles up to RETRY_MAX_S, jittered."""
RETRY_MAX_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The desired value of a key."""

    value: bytes
    expires_in_s: float
    """The lease's own remaining time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatistics:
    """Counts since the start, and what is pending now."""

    recorded: int
    """Keys that may exist."""
    pending: int
    """Changes not yet written."""
    written: int
    deleted: int
    cancelled_out: int
    """Leases that were granted and ended within one flush."""
    retried: int


class LedgerWriter:
    """One worker's leases in the bucket. `describe` returns the desired state of a token; None: no such lease. Keys
    contain public ids. A key of no known token is handled under its public id, which is never a lease's token.

    A key's time to live is the lease's own, rounded up, plus a second: the key outlives the lease by at most that, and
    a lease in steady use is rewritten about once a second, not at every use.
    """

    def __init__(
        self,
        kv: KeyValue,
        names: Names,
        worker: WorkerId,
        describe: Callable[[str], DesiredState | None],
        *,
        ambient: Environment,
        log: Log,
    ) -> None:
        self._kv = kv
        self._names = names
        self._worker = worker
        self._prefix = names.leases_of(worker.pool, worker.worker)[:-1]
        self._describe = describe
        self._ambient = ambient
        self._log = log
        self._dirty: dict[str, float] = {}
        """Tokens whose key may differ from the desired state, and since when, oldest first."""
        self._until: dict[str, float] = {}
        """When the key of a token expires. Kept from before its first write until its deletion is confirmed."""
        self._loop = asyncio.get_running_loop()
        self._flusher: asyncio.Task[None] | None = None
        self._reconciler: asyncio.Task[None] | None = None
        self._reconcile_again = False
        self._closed = False
        self._written = 0
        self._deleted = 0
        self._cancelled_out = 0
        self._retried = 0

    def changed(self, token: str) -> None:
        """A lease was granted or has ended: update its key."""
        if token not in self._dirty:
            self._dirty[token] = self._loop.time()
        if self._flusher is None and not self._closed:
            self._flusher = self._loop.create_task(self._flush(), name="gangline ledger flush")

    def ended(self, token: str) -> None:
        """A lease has ended: delete its key, unless it was never written."""
        if token in self._until:
            self.changed(token)
        elif self._dirty.pop(token, None) is not None:
            self._cancelled_out += 1

    def renewed(self, token: str, due_at: float) -> None:
        """A lease now lasts until `due_at`: rewrite its key if it would expire before."""
        if due_at >= self._until.get(token, 0.0):
            self.changed(token)

    async def write_now(self, token: str) -> int:
        """Write a new lease's key and return its revision; for `ledger="sync"`.

        Raises:
            Unavailable: the write failed or timed out. It may have been made: call `ended` when the lease has ended.
            LookupError: the lease does not or no longer exist.
        """
        desired = self._describe(token)
        if desired is None:
            raise LookupError(token)
        self._dirty.pop(token, None)
        ttl_s = self._expects(token, desired)
        revision = await self._kv.put(self._key(token), desired.value, ttl_s=ttl_s)
        self._written += 1
        return revision

    def reconcile(self) -> None:
        """Compare the bucket with the desired state and repair it: after a reconnect or a lost bucket, and
        periodically."""
        self._reconcile_again = True
        if self._reconciler is None and not self._closed:
            self._reconciler = asyncio.get_running_loop().create_task(self._reconcile(), name="gangline ledger check")

    async def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._flusher is not None or self._reconciler is not None:
                    await asyncio.wait([task for task in (self._flusher, self._reconciler) if task is not None])
        except TimeoutError:
            return False
        return not self._dirty

    async def stop(self) -> None:
        """Stop writing. Idempotent; pending changes stay unwritten (see settle), and their keys expire by
        themselves."""
        self._closed = True
        tasks = [task for task in (self._flusher, self._reconciler) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            recorded=len(self._until),
            pending=len(self._dirty),
            written=self._written,
            deleted=self._deleted,
            cancelled_out=self._cancelled_out,
            retried=self._retried,
        )

    def __repr__(self) -> str:
        return f"LedgerWriter({self._worker}, {len(self._until)} keys, {len(self._dirty)} pending)"

    # -- writing --------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Run while there is something to write."""
        wait_s, backoff = FLUSH_S, Backoff(RETRY_S, RETRY_MAX_S)
        try:
            while self._dirty and not self._closed:
                await asyncio.sleep(wait_s)
                if await self._write_batch():
                    wait_s = FLUSH_S
                    backoff.reset()
                else:
                    wait_s = backoff.next_s() * (0.5 + self._ambient.random.random())
        finally:
            self._flusher = None

    async def _write_batch(self) -> bool:
        """Write up to BATCH changes, each as the lease is now. False: some failed and are dirty again."""
        young = self._loop.time() - YOUNG_S
        writes: list[KvWrite] = []
        written: list[str] = []
        for token, since in list(self._dirty.items()):
            if since > young and token not in self._until:
                continue
            if len(writes) == BATCH:
                break
            del self._dirty[token]
            write = self._write_for(token)
            if write is not None:
                writes.append(write)
                written.append(token)
        if not writes:
            return True
        try:
            results = await self._kv.write(writes)
        except Unavailable as error:
            results = [error] * len(writes)
        except ClosedError:
            self._closed = True
            return False
        return self._account(written, writes, results)

    def _write_for(self, token: str) -> KvWrite | None:
        desired = self._describe(token)
        key = self._key(token)
        if desired is not None:
            return KvWrite(key=key, value=desired.value, ttl_s=self._expects(token, desired))
        if token in self._until:
            return KvWrite(key=key, value=None)
        self._cancelled_out += 1
        return None

    def _key(self, token: str) -> str:
        return self._names.lease_key(self._worker, token)

    def _expects(self, token: str, desired: DesiredState) -> float:
        """Note when the key about to be written will expire; returns its time to live in whole seconds, at most
        LEASE_SLACK_S more than what is left of the lease."""
        ttl_s = max(1, math.ceil(desired.expires_in_s)) + 1
        self._until[token] = asyncio.get_running_loop().time() + ttl_s
        return ttl_s

    def _account(self, tokens: list[str], writes: list[KvWrite], results: list[int | Unavailable]) -> bool:
        failed: Unavailable | None = None
        for token, write, result in zip(tokens, writes, results, strict=True):
            if isinstance(result, Unavailable):
                failed = result
                self._retried += 1
                # It may have been written, so it stays in _until: the key must be deleted when the lease ends.
                self._dirty[token] = 0.0
            elif write.value is None:
                self._deleted += 1
                self._until.pop(token, None)
            else:
                self._written += 1
        if failed is not None:
            self._log.debug("%d ledger writes failed: %s", len(tokens), failed, extra={"action": "ledger.retry"})
        return failed is None

    # -- comparing ------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        backoff = Backoff(RETRY_S, RETRY_MAX_S)
        try:
            while self._reconcile_again:
                self._reconcile_again = False
                before = dict.fromkeys(self._until)
                try:
                    entries = await self._kv.entries(self._names.leases_of(self._worker.pool, self._worker.worker))
                except ClosedError:
                    return
                except Unavailable as error:
                    self._log.debug("cannot read the ledger: %s", error, extra={"action": "ledger.unreadable"})
                    self._reconcile_again = True
                    await asyncio.sleep(backoff.next_s() * (0.5 + self._ambient.random.random()))
                    continue
                self._compare(before, dict.fromkeys(entry.key for entry in entries))
        finally:
            self._reconciler = None

    def _compare(self, before: dict[str, None], found: dict[str, None]) -> None:
        """`before`: the tokens believed to have keys when the snapshot was requested; later changes are not in it.
        `found`: the keys in the snapshot."""
        known = {self._key(token) for token in (*before, *self._until)}
        for key in found:
            if key not in known:  # of an earlier process with our id, or of an abandoned write
                stranger = MARK + key.removeprefix(self._prefix)
                self._until[stranger] = 0.0
                self.changed(stranger)
        for token in before:
            if self._key(token) in found:
                continue
            if token in self._until and self._describe(token) is not None:
                self.changed(token)
            elif token in self._until and token not in self._dirty:
                # Already gone: expired, or its deletion is in progress.
                del self._until[token]
