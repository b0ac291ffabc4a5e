"""A watch that resumes: after reconnects, gaps and lost buckets it reads everything again and tells the difference."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ..schemas.errors import ClosedError, Disconnected, GanglineError
from .kv_wire import Stored
from .port import ConnectionEvent, KvEntry, KvHandler, KvOperation, StorageUnavailable
from .watch_feed import Feed, FeedEvent

if TYPE_CHECKING:
    from .jetstream_kv import JetStreamKeyValue

log = logging.getLogger("gangline.bus")

_FIRST_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 1.0


class Watch:
    """Implements port.Subscription; see port.KeyValue.watch.

    Invariant: `_known` has exactly the keys that the handler was last told with PUT.
    """

    def __init__(self, bucket: JetStreamKeyValue, pattern: str, handler: KvHandler) -> None:
        self._bucket = bucket
        self._bus = bucket.bus
        self._pattern = pattern
        self._handler = handler
        self._known: dict[str, int] = {}
        self._seen: set[str] | None = None
        """Living keys of the snapshot under way; None when it is over."""
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the first snapshot was handled.

        Raises:
            Disconnected, StorageUnavailable: the first snapshot did not come; nothing is left running.
        """
        stop_listening = self._bus.on_connection(self._on_connection)
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: stop_listening())
        try:
            async with asyncio.timeout(self._bus.api.timeout_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.stop()
            raise StorageUnavailable(
                f"JetStream did not start a watch of {self._pattern!r} in time: try again", may_have_started=False
            ) from None
        except BaseException:
            self.stop()
            raise

    async def unsubscribe(self) -> None:
        self.stop()

    def stop(self) -> None:
        """End delivery. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        self._bucket.forget(self)

    def _on_connection(self, event: ConnectionEvent) -> None:
        # A consumer may survive a short loss, but what it delivered meanwhile did not reach us.
        self._broken.set()

    async def _run(self) -> None:
        pause = _FIRST_RETRY_S
        while True:
            feed = Feed(self._bucket, (self._pattern,), self._take)
            self._broken.clear()
            self._seen = set()
            try:
                if not self._bus.connected:
                    raise Disconnected("no connection to a nats-server right now: try again when it is back")
                if await feed.open():
                    pause = _FIRST_RETRY_S
                    await self._broken.wait()
                else:
                    # The bucket vanished. Made again here, since nothing would tell us when somebody else does.
                    self._reconcile()
                    if await self._bucket.ensure(look=True):
                        continue
                    self._broken.clear()
            except ClosedError:
                return
            except GanglineError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                    return
                log.debug("a watch waits: %s", error, extra={"action": "bus.watch_waits", "bucket": self._bucket.name})
            finally:
                feed.close()
            try:
                # Back at once when the connection is, else when the pause is over.
                async with asyncio.timeout(pause):
                    await self._broken.wait()
            except TimeoutError:
                pause = min(pause * 2, _MOST_RETRY_S)

    def _take(self, event: Stored | FeedEvent) -> None:
        if isinstance(event, Stored):
            self._tell(event)
        elif event is FeedEvent.CAUGHT_UP:
            self._reconcile()
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            self._broken.set()

    def _tell(self, stored: Stored) -> None:
        if stored.marker:
            if self._known.pop(stored.key, None) is not None or self._seen is None:
                self._call(stored.entry())
            return
        self._known[stored.key] = stored.revision
        if self._seen is not None:
            self._seen.add(stored.key)
        self._call(stored.entry())

    def _reconcile(self) -> None:
        """The snapshot is complete: what it does not have went while we were blind."""
        seen, self._seen = self._seen, None
        for key in [key for key in self._known if key not in (seen or ())]:
            revision = self._known.pop(key)
            self._call(KvEntry(key=key, value=b"", revision=revision, operation=KvOperation.DELETE))

    def _call(self, entry: KvEntry) -> None:
        try:
            self._handler(entry)
        except Exception:
            log.exception(
                "the handler of a watched key %s failed",
                entry.key,
                extra={"action": "bus.watch_handler_failed", "bucket": self._bucket.name},
            )
