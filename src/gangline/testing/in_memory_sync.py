"""`cluster_sync`: the cluster in memory for tests without an event loop, as those of a Flask or Django application."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar, Unpack

from ..dispatcher.client.client import Client
from ..dispatcher.client.sync import SyncClient
from ..runtime.loop_thread import LoopThread, SyncProxy
from ..schemas.errors.base import ClosedError, InvalidRequest
from ..worker.ledger.settings import WorkerSettings
from ..worker.pool.pool import Pool
from .in_memory import Cluster, ClusterOptions, cluster
from .loop import VirtualLoop, close_loop

T = TypeVar("T")


class _CallersLoop(LoopThread):
    """A virtual loop that runs in the caller's thread, and only while a call waits: no time passes between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = VirtualLoop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            coroutine.close()
            raise ClosedError("this client was closed")
        context = contextvars.copy_context()
        return self._loop.run_until_complete(self._loop.create_task(coroutine, context=context))

    def stop(self) -> None:
        if not self._loop.is_closed():
            close_loop(self._loop)


class SyncCluster:
    """Made by `cluster_sync`. Entering it gives the client; the accidents are those of Cluster."""

    def __init__(self, make: Callable[[], Cluster], *, virtual_time: bool) -> None:
        self._make = make
        self._virtual_time = virtual_time
        self._thread: LoopThread | None = None
        self._cluster: Cluster | None = None

    def __repr__(self) -> str:
        return f"<Sync{self._cluster!r}>" if self._cluster is not None else "<SyncCluster, not entered>"

    @property
    def cluster(self) -> Cluster:
        """The cluster itself, to look at. It belongs to the event loop: do not call its async functions."""
        if self._cluster is None:
            raise InvalidRequest("this cluster was not entered: use it in `with`")
        return self._cluster

    def kill(self, process: str) -> None:
        """See Cluster.kill."""
        self._run(self.cluster.kill(process))

    def freeze(self, process: str) -> None:
        """See Cluster.freeze."""
        self._call(lambda: self.cluster.freeze(process))

    def thaw(self, process: str) -> None:
        """See Cluster.thaw."""
        self._call(lambda: self.cluster.thaw(process))

    def cut(self, process: str) -> None:
        """See Cluster.cut."""
        self._call(lambda: self.cluster.cut(process))

    def restore(self, process: str) -> None:
        """See Cluster.restore."""
        self._call(lambda: self.cluster.restore(process))

    def advance(self, seconds: float) -> None:
        """See Cluster.advance; needs `cluster_sync(virtual_time=True)`."""
        self._run(self.cluster.advance(seconds))

    def add_worker(self, pool: Pool, settings: WorkerSettings | None = None) -> str:
        """See Cluster.add_worker. Returns the worker's name, `POOL.WORKER`."""
        return str(self._run(self.cluster.add_worker(pool, settings)).id)

    def __enter__(self) -> SyncClient:
        if self._thread is not None:
            raise ClosedError("this cluster was used before: make a new one")
        thread = self._thread = _CallersLoop() if self._virtual_time else LoopThread()

        async def enter() -> Client:
            self._cluster = self._make()
            return await self._cluster.__aenter__()

        try:
            client = thread.run(enter())
        except BaseException:
            thread.stop()
            raise
        made = SyncClient.__new__(SyncClient)
        SyncProxy.__init__(made, thread, client)
        return made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = self._thread
        assert thread is not None
        try:
            if self._cluster is not None:
                thread.run(self._cluster.__aexit__(None, None, None))
        finally:
            thread.stop()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.run(coroutine)

    def _call(self, function: Callable[[], T]) -> T:
        assert self._thread is not None
        return self._thread.call(function)


def cluster_sync(
    pool: Pool, *pools: Pool, virtual_time: bool = False, **options: Unpack[ClusterOptions]
) -> SyncCluster:
    """`cluster` for tests without an event loop: entering it gives a SyncClient, as `connect_sync` does.

    ```python
    def test_the_page(app):
        with cluster_sync(pool) as client:
            app.config["gangline"] = client
            assert app.test_client().get("/count?text=a+b").json == {"count": 2}
    ```

    Args:
        virtual_time: whether sleeps, deadlines, delays and schedules take no time. Time then passes only while a call
            waits, and the client belongs to one thread.

    All others are those of `cluster`. The cluster runs in a thread of its own, unless it is on virtual time.

    Raises (on entering):
        InvalidSettings, WorkerIdTaken: as `cluster`.
    """
    return SyncCluster(lambda: cluster(pool, *pools, **options), virtual_time=virtual_time)
