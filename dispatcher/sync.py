"""The client for code without an event loop: the same names, plain functions.

A `SyncClient` runs an ordinary Client on a loop in a thread of its own. It may be used from many threads at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..bus.port import BucketSettings
from ..schemas.errors import ClosedError, GanglineError
from ..schemas.messages import DrainReply, ResizeReply, StatsReply
from ..schemas.records import LeaseRecord
from .client import Client, connect
from .leases import Lease, Leasing
from .operators import WorkerInfo
from .policy import Policy
from .selection import Choosing, Selection
from .settings import RouterSettings

if TYPE_CHECKING:
    from ..bus.settings import ConnectionSettings

T = TypeVar("T")

_CLEAN_UP_S = 2.0
"""How long an interrupted call is given to clean up."""


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="gangline-client", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result. Whatever interrupts the wait (Ctrl-C) cancels the coroutine and waits
        for its clean-up, so that slots are given back.

        Raises:
            ClosedError: the loop was stopped.
            RuntimeError: called on the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a SyncClient cannot be used inside its own event loop: use Client there")
        if not self._thread.is_alive() or self._loop.is_closed():
            coroutine.close()
            raise ClosedError("this client was closed")
        # The caller's context, so that deadline and trace of a surrounding task are inherited.
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        begun: concurrent.futures.Future[asyncio.Task[T]] = concurrent.futures.Future()
        context = contextvars.copy_context()
        self._loop.call_soon_threadsafe(self._begin, coroutine, begun, future, context)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self._loop.call_soon_threadsafe(begun.result().cancel)
                concurrent.futures.wait((future,), timeout=_CLEAN_UP_S)
            raise

    def _begin(
        self,
        coroutine: Coroutine[Any, Any, T],
        begun: concurrent.futures.Future[asyncio.Task[T]],
        future: concurrent.futures.Future[T],
        context: contextvars.Context,
    ) -> None:
        task = self._loop.create_task(coroutine, context=context)
        begun.set_result(task)

        def done(ended: asyncio.Task[T]) -> None:
            if ended.cancelled():
                future.set_exception(concurrent.futures.CancelledError())
            elif (error := ended.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(ended.result())

        task.add_done_callback(done)

    def stop(self) -> None:
        """Stop the loop and join its thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()


class _SyncContext(Generic[T]):
    """An async context manager, entered and left from plain code."""

    def __init__(self, thread: LoopThread, manager: Any, wrap: Callable[[Any], T]) -> None:
        self._thread = thread
        self._manager = manager
        self._wrap = wrap

    def __enter__(self) -> T:
        try:
            return self._wrap(self._thread.run(self._manager.__aenter__()))
        except BaseException:
            # Interrupted (Ctrl-C) just when it had succeeded: nobody else would give the slots back.
            self._thread.run(self._manager.__aexit__(None, None, None))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._manager.__aexit__(kind, error, trace))


class SyncChoosing(_SyncContext[Selection]):
    """See selection.Choosing."""

    def __init__(self, thread: LoopThread, choosing: Choosing) -> None:
        super().__init__(thread, choosing, lambda selection: selection)


class SyncLease:
    """See leases.Lease; the same attributes and methods."""

    def __init__(self, thread: LoopThread, lease: Lease) -> None:
        self._thread = thread
        self._lease = lease

    @property
    def pool(self) -> str:
        return self._lease.pool

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it."""
        return self._lease.worker

    @property
    def node(self) -> str:
        return self._lease.node

    @property
    def zone(self) -> str:
        return self._lease.zone

    @property
    def address(self) -> str:
        """Where others can reach the process, if it told."""
        return self._lease.address

    @property
    def labels(self) -> Mapping[str, str]:
        return self._lease.labels

    @property
    def token(self) -> str:
        return self._lease.token

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    @property
    def fence(self) -> int:
        return self._lease.fence

    @property
    def slots(self) -> int:
        return self._lease.slots

    @property
    def used(self) -> int:
        """Slots in use by this lease's tasks now."""
        return self._lease.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease cannot be used any more; None while it can."""

        async def ask() -> GanglineError | None:
            return self._lease.lost

        return self._thread.run(ask())

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Lease.call."""
        return self._thread.run(self._lease.call(method, *args, **kwargs))

    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """See Lease.stream."""
        return _iterate(self._thread, self._lease.stream(method, *args, **kwargs))

    def renew(self) -> None:
        """See Lease.renew."""

        async def renew() -> None:
            self._lease.renew()

        self._thread.run(renew())

    def release(self) -> None:
        """See Lease.release."""

        async def release() -> None:
            self._lease.release()

        self._thread.run(release())

    def __repr__(self) -> str:
        return f"Sync{self._lease!r}"


class SyncLeasing(_SyncContext[SyncLease]):
    """See leases.Leasing."""

    def __init__(self, thread: LoopThread, leasing: Leasing) -> None:
        super().__init__(thread, leasing, lambda lease: SyncLease(thread, lease))


class SyncClient:
    """Client for plain code; see Client for what each method means and raises.

    ::

        with gangline.connect_sync("nats://127.0.0.1:4222") as client:
            client.call("images.thumbnail", path="a.png")

    Ctrl-C during a call cancels the call. Forked children must connect anew.
    """

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """`open_client` runs on the client's own loop."""
        self._thread = LoopThread()
        try:
            self._client = self._thread.run(open_client())
        except BaseException:
            self._thread.stop()
            raise

    def start(self) -> SyncClient:
        """Does nothing: it began when it was made."""
        self._thread.run(self._client.start())
        return self

    def close(self) -> None:
        """See Client.close; also ends the thread. Idempotent."""
        try:
            self._thread.run(self._client.close())
        except ClosedError:
            return
        self._thread.stop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def options(
        self,
        *,
        timeout_s: float | None = None,
        key: str | None = None,
        model: str | None = None,
        idempotent: bool | None = None,
        max_attempts: int | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
    ) -> SyncClient:
        """See Client.options."""
        bound = SyncClient.__new__(SyncClient)
        bound._thread = self._thread
        bound._client = self._client.options(
            timeout_s=timeout_s,
            key=key,
            model=model,
            idempotent=idempotent,
            max_attempts=max_attempts,
            labels=labels,
            pool=pool,
        )
        return bound

    def call(self, target: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Client.call."""
        return self._thread.run(self._client.call(target, *args, **kwargs))

    def stream(self, target: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """See Client.stream. Closing the generator stops the task."""
        return _iterate(self._thread, self._client.stream(target, *args, **kwargs))

    def choose_worker(self, target: str, /, *, slots: int | None = None) -> SyncChoosing:
        """See Client.choose_worker."""
        return SyncChoosing(self._thread, self._client.choose_worker(target, slots=slots))

    def dispatch(self, selection: Selection, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Client.dispatch."""
        return self._thread.run(self._client.dispatch(selection, method, *args, **kwargs))

    def lease(
        self, target: str, /, *, slots: int = 1, ttl_s: float = 15.0, ledger: str = "behind", wait: bool = True
    ) -> SyncLeasing:
        """See Client.lease."""
        leasing = self._client.lease(target, slots=slots, ttl_s=ttl_s, ledger=ledger, wait=wait)
        return SyncLeasing(self._thread, leasing)

    def workers(self, pool: str | None = None) -> list[WorkerInfo]:
        """See Client.workers."""
        return self._thread.run(self._client.workers(pool))

    def leases(self, pool: str | None = None, worker: str | None = None) -> list[LeaseRecord]:
        """See Client.leases."""
        return self._thread.run(self._client.leases(pool, worker))

    def drain(self, worker: str, *, grace_s: float | None = None) -> DrainReply:
        """See Client.drain."""
        return self._thread.run(self._client.drain(worker, grace_s=grace_s))

    def resize(self, worker: str, slots: int) -> ResizeReply:
        """See Client.resize."""
        return self._thread.run(self._client.resize(worker, slots))

    def stats(self, worker: str) -> StatsReply:
        """See Client.stats."""
        return self._thread.run(self._client.stats(worker))

    def statistics(self) -> dict[str, Any]:
        """See Client.statistics."""

        async def ask() -> dict[str, Any]:
            return self._client.statistics()

        return self._thread.run(ask())

    def __repr__(self) -> str:
        return f"Sync{self._client!r}"


def _iterate(thread: LoopThread, items: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                item = thread.run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        thread.run(_close(items))


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await items.__anext__()


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


def connect_sync(
    server: str | ConnectionSettings | None = None,
    *,
    namespace: str = "gangline",
    name: str = "",
    settings: RouterSettings | None = None,
    policy: Callable[[str], Policy] | None = None,
    bucket: BucketSettings | None = None,
) -> SyncClient:
    """Connect to NATS from plain code; see `connect` for the arguments.

    Raises:
        ServerUnreachable: no server answered, or it refused us.
        InvalidSettings, InvalidName: what was given cannot be used.
    """

    async def open_client() -> Client:
        return await connect(server, namespace=namespace, name=name, settings=settings, policy=policy, bucket=bucket)

    return SyncClient(open_client)
