"""One short-lived push consumer on a bucket: the newest message of each key, then every change, without gaps.

A feed never repairs itself: on a gap, on silence, or when its consumer goes it says BROKEN once and is done. Whoever
uses it opens another.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from ..jetstream.api import STREAM_NOT_FOUND, ApiError
from ..jetstream.ordered_consumer import PushConsumer
from ..port.bus import Message
from .wire import StoredEntry

if TYPE_CHECKING:
    from .wire import BucketOwner


class OrderedMessage(Enum):
    CAUGHT_UP = "caught up"
    """All that was there when the feed opened has been delivered."""
    BROKEN = "broken"
    """Nothing more will come."""


FeedHandler = Callable[[StoredEntry | OrderedMessage], None]


class OrderedFeed:
    """See the module's text. `open` once, then `close`."""

    def __init__(self, bucket: BucketOwner, patterns: tuple[str, ...], handler: FeedHandler) -> None:
        self._bucket = bucket
        self._subjects = [bucket.prefix + text for text in patterns]
        self._handler = handler
        # An idle consumer has nothing more to give: what was pending has been overwritten or has expired meanwhile.
        self._push = PushConsumer(
            bucket.bus, bucket.stream, self._take, lambda: handler(OrderedMessage.BROKEN), self._reach_end
        )
        self._delivered = 0
        self._pending: int | None = None
        """How many messages were waiting when the consumer was made; None until its answer came."""
        self._caught_up = False
        self.close = self._push.close

    async def open(self) -> bool:
        """Make the consumer; False when the bucket does not exist.

        Raises:
            StorageUnavailable, Disconnected.
        """
        try:
            self._pending = await self._push.open(
                f"follow {self._bucket.name}", deliver_policy="last_per_subject", filter_subjects=self._subjects
            )
        except ApiError as error:
            if error.number == STREAM_NOT_FOUND:
                return False
            raise
        if self._delivered >= self._pending:
            self._reach_end()
        return True

    def _take(self, message: Message, of: list[int]) -> None:
        _, sequence, self._delivered, _, pending = of
        self._handler(
            StoredEntry(
                key=message.subject[len(self._bucket.prefix) :],
                value=message.data,
                revision=sequence,
                headers=message.headers or {},
            )
        )
        if pending == 0 or (self._pending is not None and self._delivered >= self._pending):
            self._reach_end()

    def _reach_end(self) -> None:
        if not self._caught_up and self._pending is not None:
            self._caught_up = True
            self._handler(OrderedMessage.CAUGHT_UP)
