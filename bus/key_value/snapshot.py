"""All current keys of a bucket that match a pattern, in as few round trips as possible.

A list has the bucket as it was when the list began; of what is written meanwhile, it may have any part. So it ends even
if writes never pause. Who needs what comes later watches the bucket, or lists again.

Up to 1024 keys are listed by name and read at once; for more, a short-lived consumer delivers them. (The server could
answer one DIRECT.GET with many keys. But anyone who may use that could have any stored message sent to any subject, so
our buckets do not allow it.)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import ClosedError, Disconnected, GanglineError
from ..jetstream.api import STREAM_NOT_FOUND, ApiError
from ..port.bus import ConnectionEvent, KvEntry, NotPermitted, StorageUnavailable
from .watch import OrderedFeed, OrderedMessage
from .wire import StoredEntry
from .writer import NO_LEADER_S

if TYPE_CHECKING:
    from .wire import BucketOwner

_MOST_READ: Final = 1024
_RETRY_S: Final = 0.05
_LEAST_SPAN: Final = 64
_CHAINS: Final = 16
"""Parts of a span that are read concurrently."""


async def snapshot(bucket: BucketOwner, patterns: tuple[str, ...]) -> list[KvEntry]:
    """Current keys in revision order; [] if the bucket vanished.

    Raises:
        StorageUnavailable, Disconnected.
    """
    async with _in_time(bucket, f"{', '.join(patterns)} of"):
        found = await _patiently(bucket, patterns, _MOST_READ)
        if found is None:
            try:
                found = await _by_consumer(bucket, patterns)
            except NotPermitted:  # for example a worker, which can wait a little longer
                found = await _patiently(bucket, patterns, sys.maxsize) or []
    return [stored.entry() for stored in sorted(found, key=lambda one: one.revision) if not stored.marker]


@contextlib.asynccontextmanager
async def _in_time(bucket: BucketOwner, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(bucket.bus.api.timeout_s):
            yield
    except TimeoutError:
        raise StorageUnavailable(
            f"JetStream did not list {what} {bucket.name!r} in time: try again", may_have_started=False
        ) from None


async def _patiently(bucket: BucketOwner, patterns: tuple[str, ...], most: int) -> list[StoredEntry] | None:
    """`_by_name`, with retries while there is no leader; [] if the bucket vanished."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + NO_LEADER_S
    while True:
        try:
            return await _by_name(bucket, patterns, most)
        except StorageUnavailable as error:
            if isinstance(error, ApiError):
                if error.number == STREAM_NOT_FOUND:
                    if bucket.made:  # recreate it, if this user may
                        with contextlib.suppress(NotPermitted):
                            await bucket.restore(NO_LEADER_S)
                    return []
                if not error.temporary:
                    raise
            if error.may_have_started or loop.time() > give_up_at:
                raise
        await asyncio.sleep(_RETRY_S)


async def _by_name(bucket: BucketOwner, patterns: tuple[str, ...], most: int) -> list[StoredEntry] | None:
    """List the keys, then read each: two round trips, however fast the bucket changes meanwhile.

    Returns:
        None: there are more than `most` keys.
    """
    operation, what = f"STREAM.INFO.{bucket.stream}", f"list {bucket.name}"
    filters = [{"subjects_filter": bucket.prefix + pattern} for pattern in patterns]
    answers = await asyncio.gather(*(bucket.bus.api.call(operation, query, what=what) for query in filters))
    bucket.check(answers[0])
    subjects = {subject for answer in answers for subject in answer["state"].get("subjects") or ()}
    keys = sorted(subject[len(bucket.prefix) :] for subject in subjects)
    if len(keys) > most:
        return None
    found: list[StoredEntry] = []
    for start in range(0, len(keys), _MOST_READ):
        read = await asyncio.gather(*map(bucket.stored, keys[start : start + _MOST_READ]))
        found += [stored for stored in read if stored is not None]
    return found


async def newest(bucket: BucketOwner, pattern: str, limit: int, before: int | None) -> list[KvEntry]:
    """See port.KeyValue. Revisions are looked through from the last one backwards, in spans that grow while they hold
    little: the server finds the next key of a pattern, but not the one before.

    Raises:
        StorageUnavailable, Disconnected.
    """
    if (revisions := await _revisions(bucket)) is None:
        return []
    first, last = revisions
    high, span = (last if before is None else min(last, before - 1)), max(_LEAST_SPAN, 2 * limit)
    found: list[StoredEntry] = []
    while high >= max(first, 1) and len(found) < limit:
        low = max(first, 1, high - span + 1)
        step = -(-(high - low + 1) // _CHAINS)
        parts = await asyncio.gather(
            *(_span(bucket, pattern, start, min(start + step - 1, high)) for start in range(low, high + 1, step))
        )
        found += sorted((stored for part in parts for stored in part), key=lambda one: -one.revision)
        high, span = low - 1, span * 4
    return [stored.entry() for stored in found[:limit]]


async def _revisions(bucket: BucketOwner) -> tuple[int, int] | None:
    """The first and the last one; None: the bucket vanished."""
    try:
        answer = await bucket.bus.api.call(f"STREAM.INFO.{bucket.stream}", None, what=f"look at {bucket.name}")
    except ApiError as error:
        if error.number == STREAM_NOT_FOUND:
            return None
        raise
    return int(answer["state"]["first_seq"]), int(answer["state"]["last_seq"])


async def _span(bucket: BucketOwner, pattern: str, low: int, high: int) -> list[StoredEntry]:
    """The current keys of the pattern whose revisions lie between these."""
    found: list[StoredEntry] = []
    while low <= high:
        stored = await bucket.read({"seq": low, "next_by_subj": bucket.prefix + pattern})
        if stored is None or stored.revision > high:
            break
        if not stored.marker:
            found.append(stored)
        low = stored.revision + 1
    return found


async def written(bucket: BucketOwner, after: int, most: int) -> tuple[int, set[str] | None]:
    """See port.KeyValue. What is at the last revision, or has taken its place since, comes last: so nothing is missing,
    whichever replica delivers.

    Raises:
        StorageUnavailable, Disconnected.
    """
    if (revisions := await _revisions(bucket)) is None:
        return 0, None
    _, last = revisions
    if not after < last <= after + most:
        return last, set() if last == after else None
    async with _in_time(bucket, "what is new in"):
        found = await _by_consumer(bucket, (">",), after=after)
    complete = max((stored.revision for stored in found), default=0) >= last
    return last, {stored.key for stored in found} if complete else None


async def _by_consumer(
    bucket: BucketOwner, patterns: tuple[str, ...], *, after: int | None = None
) -> list[StoredEntry]:
    found: dict[str, StoredEntry] = {}  # a key that changes meanwhile is delivered again
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

    feed = OrderedFeed(bucket, patterns, take, after=after)
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
