"""A watch that resumes: after reconnects, gaps and lost buckets it reads everything again and reports the differences.

The server does not announce expired keys. So a watch takes each value's time to live from its header, and reads the key
when that is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...runtime.tasks import TaskSet
from ...runtime.timers import TimerQueue
from ...schemas.errors.base import GanglineError
from ..jetstream.api import STREAM_NOT_FOUND, ApiError
from ..jetstream.ordered_consumer import PushConsumer, Resubscriber
from ..jetstream.wire import SECOND_NS
from ..port.bus import KvEntry, KvHandler, KvOperation, Message
from .wire import StoredEntry

if TYPE_CHECKING:
    from .wire import BucketOwner


class OrderedMessage(Enum):
    CAUGHT_UP = "caught up"
    """Everything that existed when the feed opened has been delivered."""
    BROKEN = "broken"
    """Nothing more will come."""


FeedHandler = Callable[[StoredEntry | OrderedMessage], None]


class OrderedFeed:
    """One short-lived push consumer on a bucket: the newest message of each key, or those after a revision without
    their values, then every change, without gaps. `open` once, then `close`.

    A feed never recovers by itself: on a gap, on silence or when its consumer is gone, it sends BROKEN once and has
    ended. Its user opens another.
    """

    def __init__(
        self, bucket: BucketOwner, patterns: tuple[str, ...], handler: FeedHandler, *, after: int | None = None
    ) -> None:
        self._bucket = bucket
        self._configuration: dict[str, object] = {"filter_subjects": [bucket.prefix + text for text in patterns]}
        if after is None:
            self._configuration["deliver_policy"] = "last_per_subject"
        else:
            self._configuration |= {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": after + 1,
                "headers_only": True,
            }
        self._handler = handler
        # An idle consumer has nothing more to deliver: pending values were overwritten or have expired.
        self._push = PushConsumer(
            bucket.bus, bucket.stream, self._take, lambda: handler(OrderedMessage.BROKEN), self._reach_end
        )
        self._delivered = 0
        self._pending: int | None = None
        """How many messages were pending when the consumer was created; None until the answer arrives."""
        self._caught_up = False
        self.close = self._push.close

    async def open(self) -> bool:
        """Create the consumer; False if the bucket does not exist.

        Raises:
            StorageUnavailable, Disconnected.
        """
        try:
            self._pending = await self._push.open(f"follow {self._bucket.name}", **self._configuration)
        except ApiError as error:
            if error.number == STREAM_NOT_FOUND:
                return False
            raise
        if self._delivered >= self._pending:
            self._reach_end()
        return True

    def _take(self, message: Message, of: list[int]) -> None:
        _, sequence, self._delivered, at, pending = of
        self._handler(
            StoredEntry(
                key=message.subject[len(self._bucket.prefix) :],
                value=message.data,
                revision=sequence,
                headers=message.headers or {},
                at=at / SECOND_NS,
            )
        )
        if pending == 0 or (self._pending is not None and self._delivered >= self._pending):
            self._reach_end()

    def _reach_end(self) -> None:
        if not self._caught_up and self._pending is not None:
            self._caught_up = True
            self._handler(OrderedMessage.CAUGHT_UP)


log = logging.getLogger("gangline.bus")

_LOOK_AGAIN_S: Final = 0.1
"""How long after its expiry a key is read, and read again: servers are up to a quarter of a second late."""
_MOST_LOOK_AGAIN_S: Final = 1.0
"""... if storage does not answer."""


class BucketWatch(Resubscriber):
    """Implements port.Subscription; see port.KeyValue.watch.

    Invariant: `_known` has exactly the keys whose last event for the handler was a PUT.
    """

    def __init__(
        self, bucket: BucketOwner, pattern: str, handler: KvHandler, *, on_end: Callable[[BucketWatch], None]
    ) -> None:
        super().__init__(bucket.bus, "a watch", {"action": "bus.watch_waits", "bucket": bucket.name})
        self._on_end = on_end
        self._bucket = bucket
        self._pattern = pattern
        self._handler = handler
        self._feed: OrderedFeed | None = None
        self._known: dict[str, int] = {}
        self._seen: set[str] | None = None
        """Keys of the snapshot in progress; None when it is complete."""
        self._expiries: TimerQueue[tuple[str]] = TimerQueue()
        """When known keys expire, in loop time."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        """Its loop time; uvloop's timers do not tell theirs if it has passed."""
        self._looks = TaskSet("expired key")

    async def start(self) -> None:
        """Return when the first snapshot has been handled.

        Raises:
            Disconnected, StorageUnavailable: the first snapshot did not come; nothing is left running.
        """
        await self._begin(f"start a watch of {self._pattern!r}")

    def stop(self) -> None:
        """End delivery. Idempotent."""
        super().stop()
        self._looks.cancel()
        self._expiries.clear()
        self._set_alarm()
        self._on_end(self)

    async def _follow(self) -> bool:
        if self._ready.done() or self._bucket.only_read:
            await self._bucket.inspect()  # it may have been replaced; those who create it have compared it at first
        self._seen = set()
        self._feed = OrderedFeed(self._bucket, (self._pattern,), self._take)
        if await self._feed.open():
            self._backoff.reset()
            await self._broken.wait()
            return False
        self._reconcile()
        if self._bucket.only_read:  # look again after a while
            if not self._ready.done():
                self._ready.set_result(None)
            return False
        # The bucket vanished. Recreate it here, since we would not notice when another process does.
        if await self._bucket.ensure(look=True):
            return True
        self._broken.clear()
        return False

    def _close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

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
        self._await_expiry(stored)
        if self._seen is not None:
            self._seen.add(stored.key)
        self._call(stored.entry())

    # -- expiry ---------------------------------------------------------------------------------------------------

    def _await_expiry(self, stored: StoredEntry) -> None:
        ttl_s = stored.ttl_s
        if ttl_s is None:
            self._expiries.cancel((stored.key,))
            return
        # The server's clock may differ from ours: then this is too early, and we read it again.
        left_s = min(max(stored.at + ttl_s - self._bus.ambient.wall(), 0.0), ttl_s) + _LOOK_AGAIN_S
        self._expiries.set((stored.key,), asyncio.get_running_loop().time() + left_s)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Set the timer for the next key that is due."""
        at = self._expiries.next_at
        if self._alarm is not None:
            if at is not None and self._alarm_at <= at:
                return
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = None
        if at is not None:
            self._alarm, self._alarm_at = loop.call_at(at, self._look_at_due), at

    def _look_at_due(self) -> None:
        self._alarm = None
        for (key,) in self._expiries.due(asyncio.get_running_loop().time()):
            if key in self._known:
                self._looks.start(self._look(key))
        self._set_alarm()

    async def _look(self, key: str) -> None:
        revision = self._known[key]
        try:
            stored = await self._bucket.stored(key)
            again_s = _LOOK_AGAIN_S
        except GanglineError:
            stored, again_s = None, _MOST_LOOK_AGAIN_S
        if self._known.get(key) != revision or self._seen is not None:
            return  # the feed was faster, or a new snapshot covers it
        if again_s == _LOOK_AGAIN_S and stored is None:
            del self._known[key]
            self._call(KvEntry(key=key, value=b"", revision=revision, operation=KvOperation.DELETE))
        elif stored is None or stored.revision == revision:
            self._expiries.set((key,), asyncio.get_running_loop().time() + again_s)
            self._set_alarm()

    def _reconcile(self) -> None:
        """The snapshot is complete: keys that it lacks were removed while we were disconnected."""
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
