"""A watch that resumes: after reconnects, gaps and lost buckets it reads everything again and tells the difference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...schemas.errors.base import ClosedError, Disconnected, GanglineError
from ..jetstream.ordered_consumer import Resubscriber
from ..port.bus import KvEntry, KvHandler, KvOperation
from .ordered_feed import OrderedFeed, OrderedMessage
from .wire import StoredEntry

if TYPE_CHECKING:
    from .wire import BucketOwner

log = logging.getLogger("gangline.bus")


class BucketWatch(Resubscriber):
    """Implements port.Subscription; see port.KeyValue.watch.

    Invariant: `_known` has exactly the keys that the handler was last told with PUT.
    """

    def __init__(
        self, bucket: BucketOwner, pattern: str, handler: KvHandler, *, on_end: Callable[[BucketWatch], None]
    ) -> None:
        super().__init__(bucket.bus)
        self._on_end = on_end
        self._bucket = bucket
        self._pattern = pattern
        self._handler = handler
        self._known: dict[str, int] = {}
        self._seen: set[str] | None = None
        """Living keys of the snapshot under way; None when it is over."""

    async def start(self) -> None:
        """Return when the first snapshot was handled.

        Raises:
            Disconnected, StorageUnavailable: the first snapshot did not come; nothing is left running.
        """
        await self._begin(f"start a watch of {self._pattern!r}")

    def stop(self) -> None:
        """End delivery. Idempotent."""
        super().stop()
        self._on_end(self)

    async def _run(self) -> None:
        while True:
            feed = OrderedFeed(self._bucket, (self._pattern,), self._take)
            self._broken.clear()
            self._seen = set()
            try:
                if not self._bus.connected:
                    raise Disconnected("no connection to a nats-server right now: try again when it is back")
                if await feed.open():
                    self._backoff.reset()
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
            await self._pause()

    def _take(self, event: StoredEntry | OrderedMessage) -> None:
        if isinstance(event, StoredEntry):
            self._tell(event)
        elif event is OrderedMessage.CAUGHT_UP:
            self._reconcile()
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            self._broken.set()

    def _tell(self, stored: StoredEntry) -> None:
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
