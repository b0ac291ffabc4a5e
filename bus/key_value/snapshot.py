"""All living keys of a bucket that match a pattern, in as few round trips as possible.

Up to 1024 keys come with one direct get; JetStream refuses more, and then a short-lived consumer delivers them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import ClosedError, Disconnected, GanglineError
from ..port.bus import ConnectionEvent, KvEntry, Message, StorageUnavailable
from .watch import OrderedFeed, OrderedMessage
from .wire import StoredEntry
from .writer import NO_LEADER_S

if TYPE_CHECKING:
    from .wire import BucketOwner

_MOST_DIRECT: Final = 1024
_RETRY_S: Final = 0.05
_NO_RESULTS: Final = "No Results"
"""A 404 with other words ends a list in the middle: the server could not load one of its messages."""


async def snapshot(bucket: BucketOwner, patterns: tuple[str, ...]) -> list[KvEntry]:
    """Living keys in the order of their revisions; [] when the bucket vanished.

    Raises:
        StorageUnavailable, Disconnected.
    """
    try:
        async with asyncio.timeout(bucket.bus.api.timeout_s):
            found = await _direct(bucket, patterns)
            if found is None:
                found = await _by_consumer(bucket, patterns)
    except TimeoutError:
        raise StorageUnavailable(
            f"JetStream did not list {', '.join(patterns)} of {bucket.name!r} in time: try again",
            may_have_started=False,
        ) from None
    return [stored.entry() for stored in found if not stored.marker]


async def _direct(bucket: BucketOwner, patterns: tuple[str, ...]) -> list[StoredEntry] | None:
    """None: too many keys for this way."""
    found: list[StoredEntry] = []
    whole: dict[str, Any] = {"multi_last": [bucket.prefix + text for text in patterns], "batch": _MOST_DIRECT}
    query = whole
    give_up_at = asyncio.get_running_loop().time() + NO_LEADER_S
    while True:
        page, end = await _page(bucket, query)
        found += page
        headers = end.headers or {}
        status = headers.get("Status")
        if status == "413":
            return None
        if status == "503":
            if await bucket.vanished():
                return []
            # It has no leader, or vanished and somebody made it anew just now.
            if asyncio.get_running_loop().time() > give_up_at:
                raise StorageUnavailable(
                    f"nobody serves the bucket {bucket.name!r} right now: try again", may_have_started=False
                )
            await asyncio.sleep(_RETRY_S)
            found, query = [], whole
            continue
        if status == "404" and headers.get("Description") == _NO_RESULTS:
            return found
        if status == "204" and headers.get("Nats-Num-Pending", "0") == "0":
            return found
        if status != "204" or not page:
            why = f"{status} {headers.get('Description', '')}"
            raise StorageUnavailable(
                f"JetStream ended a list of {bucket.name!r} early ({why}): try again", may_have_started=False
            )
        # The server cut the answer at a number of bytes: go on behind it.
        query = {**query, "seq": page[-1].revision + 1, "up_to_seq": int(headers["Nats-UpTo-Sequence"])}


async def _page(bucket: BucketOwner, query: dict[str, Any]) -> tuple[list[StoredEntry], Message]:
    """One request with many answers; the last is a status."""
    page: list[StoredEntry] = []
    end: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        headers = message.headers or {}
        if "Status" in headers:
            if not end.done():
                end.set_result(message)
            return
        page.append(
            StoredEntry(
                key=headers["Nats-Subject"][len(bucket.prefix) :],
                value=message.data,
                revision=int(headers["Nats-Sequence"]),
                headers=headers,
            )
        )

    def refused(error: GanglineError) -> None:
        if not end.done():
            end.set_exception(error)

    bus = bucket.bus
    subject = f"$JS.API.DIRECT.GET.{bucket.stream}"
    reply = bus.open_stream(take, subject, refused)
    stop = bus.on_connection(_fail_on_loss(end))
    try:
        bus.publish(subject, json.dumps(query).encode(), reply=reply)
        return page, await end
    finally:
        stop()
        bus.close_stream(reply)


async def _by_consumer(bucket: BucketOwner, patterns: tuple[str, ...]) -> list[StoredEntry]:
    found: dict[str, StoredEntry] = {}  # a key that changes meanwhile comes again
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: StoredEntry | OrderedMessage) -> None:
        if event is OrderedMessage.CAUGHT_UP:
            if not done.done():
                done.set_result(None)
        elif event is OrderedMessage.BROKEN:
            if not done.done():
                done.set_exception(StorageUnavailable(f"a list of {bucket.name!r} was cut off: try again"))
        elif isinstance(event, StoredEntry):
            found[event.key] = event

    feed = OrderedFeed(bucket, patterns, take)
    stop = bucket.bus.on_connection(_fail_on_loss(done))
    try:
        if not await feed.open():
            return []
        await done
        return list(found.values())
    finally:
        stop()
        feed.close()


def _fail_on_loss(future: asyncio.Future[Any]) -> Callable[[ConnectionEvent], None]:
    def lost(event: ConnectionEvent) -> None:
        if future.done() or event is ConnectionEvent.RECONNECTED:
            return
        error: GanglineError = Disconnected("the connection was lost while listing: try again when it is back")
        if event is ConnectionEvent.CLOSED:
            error = ClosedError("this connection was closed while listing")
        future.set_exception(error)
        future.exception()

    return lost
