"""A local copy of part of a bucket: listed, updated by observed writes, and listed again every few seconds.

Works on any bucket of the port, with the operations that every user may use: list, read a key, observe.

Laws:

1. Storage decides. An observed write may still be refused by storage, or not be visible there yet. So its key is read
   until storage shows the write, for at most `STORED_WITHIN_S`; after that the stored value counts.
2. Lists and reads are sequential, so none undoes another. Only reads of different keys are in flight together.
3. A failure removes nothing. A list may come from a lagging replica: keys that it lacks, or has in an older version,
   are handled as `Absent` says.
4. A value that cannot be parsed changes nothing: the previous one stays.
5. `on_change` is called for all keys of a list, once the whole list is known, and for each key that is read, changed or
   not. A listener that wants only changes compares old and new.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ...runtime.tasks import set_within
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GanglineError,
    InvalidSettings,
    ServerUnsupported,
    Unavailable,
)
from ...telemetry.logs import Log
from ..port.bus import Bus, ConnectionEvent, KeyValue, KvEntry, KvOperation, NotPermitted
from ..port.subjects import SubjectPattern, Subscription

STORED_WITHIN_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.05
_MOST_READ: Final = 1024
"""Keys that are read together."""
_AGAIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 1.0
"""Maximum pause between attempts at the first list; later it is `resync_s`."""

V = TypeVar("V")


class Absent(Enum):
    """What to do if a list lacks a known key."""

    GONE = "gone"
    """It is gone, and the list counts even if it is older: for users who remove nothing because of it."""
    ASK = "ask"
    """Read it, and keys that the list has in an older version than known, from the stream's leader."""
    TWICE = "twice"
    """It is gone when two lists in a row lack it: one alone may be of a bucket that vanished and is being filled again.
    Keys that the list has in an older version than known are read from the leader."""


class _Passed(NamedTuple):
    value: bytes | None
    """None: a deletion."""
    until: float
    """Loop time from which the stored value counts, whatever passed."""


class _Known(NamedTuple, Generic[V]):
    revision: int
    digest: int
    """Revision and digest of the last read value, valid or not."""
    value: V | None
    """The last value that could be parsed, if values are kept."""
    valid: bool

    def is_of(self, entry: KvEntry) -> bool:
        return self.revision == entry.revision and self.digest == hash(entry.value)


class BucketInformer(Generic[V]):
    """See the module's docstring. Nothing is read before `start`, `ready` or `refresh`."""

    def __init__(
        self,
        bus: Bus,
        bucket: Callable[[], Awaitable[KeyValue]],
        *,
        observed: str | Sequence[str],
        parse: Callable[[KvEntry], V | None],
        on_change: Callable[[str, V | None, V | None], Awaitable[None] | None],
        on_passing: Callable[[KvEntry], bool] | None = None,
        on_unreadable: Callable[[KvEntry, Exception], None] | None = None,
        listed: Callable[[], Iterable[str]] | None = None,
        subscribe: Callable[[], Awaitable[Subscription]] | None = None,
        absent: Absent = Absent.ASK,
        keep: bool = True,
        resync_s: float,
        patience_s: float | None = None,
        without_after_s: float | None = None,
        kind: str,
        what: str,
        owner: str = "this router",
        log: Log,
    ) -> None:
        """
        Args:
            bucket: opens the bucket; repeated until it succeeds.
            observed: patterns of keys whose writes are observed as they pass.
            parse: returns the value of an entry; None: it is not ours. Raises GanglineError or ValueError: it cannot be
                parsed.
            on_change: called with key, old and new value; None: there is none. An awaitable that it returns is awaited
                before the next list or read begins, so it must not wait for `refresh`.
            on_passing: called first with each passing write; True: it need not be read.
            on_unreadable: called once with each value that cannot be parsed; by default it is logged.
            listed: the patterns to list, one by one, each after the changes of the previous one were reported. By
                default all of `observed` at once.
            subscribe: makes another subscription, before the first list.
            keep: whether values are kept. If not, `on_change` never gets an old one, and `get` returns None.
            resync_s: how often everything is listed again, in case a write was missed.
            patience_s: the longest wait in `ready`.
            without_after_s: if connected but without an answer from storage, `ready` returns after this long. None: it
                waits on, and raises errors that waiting cannot fix.
            kind, what, owner: for logs and errors, as in action `KIND.pull_failed`, `cannot read WHAT`, `OWNER was
                stopped`.
        """
        self._bus = bus
        self._bucket = bucket
        self._observed = (observed,) if isinstance(observed, str) else tuple(observed)
        self._parse = parse
        self._on_change = on_change
        self._on_passing = on_passing
        self._on_unreadable = on_unreadable or self._log_unreadable
        self._listed = listed
        self._subscribe = subscribe
        self._absent = absent
        self._keep = keep
        self._resync_s = resync_s
        self._patience_s = patience_s
        self._without_after_s = without_after_s
        self._kind = kind
        self._what = what
        self._owner = owner
        self._log = log
        self._known: dict[str, _Known[V]] = {}
        self._deleted: dict[str, int] = {}
        """Last revisions of keys that are gone: a lagging replica may still show them."""
        self._missing: set[str] = set()
        """Known keys that the last list lacked."""
        self._lookups: dict[str, _Passed] = {}
        """Keys to read, with the last passing write."""
        self._kv: KeyValue | None = None
        self._subscriptions: list[Subscription] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        """Done when everything has been listed or that has failed."""
        self._asked: list[asyncio.Future[None]] = []
        """Waiters for the next list."""
        self._list_at = 0.0
        """Loop time of the next list."""
        self._connected_at = 0.0
        self._wake = asyncio.Event()
        self._failing = False
        self._stopped = False
        self.pulls = 0
        """How often everything was listed."""

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Future[None]:
        """Start to follow. Returns a future that is done when everything has been listed once. Idempotent.

        Raises:
            ClosedError: it was stopped.
        """
        self._check()
        first = self._first
        if first is None or (self._task is not None and self._task.done()):
            loop = asyncio.get_running_loop()
            first = self._first = loop.create_future()
            self._connected_at = self._list_at = loop.time()
            self._unlisten = self._bus.on_connection(self._on_connection)
            self._task = loop.create_task(self._follow(), name=f"gangline-informer-{self._kind}")
        return first

    async def ready(self, deadline: float | None = None) -> None:
        """Wait until everything has been listed.

        Args:
            deadline: loop time.

        Raises:
            Disconnected, Unavailable: it was not listed before the deadline, or cannot be; nothing was sent.
            ClosedError: it was stopped, before or meanwhile.
        """
        if not self.settled:
            first = self.start()
            if self._patience_s is not None:
                limit = asyncio.get_running_loop().time() + self._patience_s
                deadline = limit if deadline is None else min(limit, deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(first)
            except TimeoutError as error:
                if not self._bus.connected:
                    raise Disconnected("no connection to the server; nothing was sent") from error
                raise Unavailable(f"{self._what} could not be read in time; nothing was sent") from error
        self._check()

    async def refresh(self, *keys: str) -> None:
        """List now.

        Args:
            keys: on return, at least these are as fresh as the call. (The list may come from a lagging replica.)

        Raises:
            Disconnected, StorageUnavailable: the list or a key could not be read.
            ClosedError: it was stopped.
        """
        self.start()
        self.look_up(*keys)
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(read)
        self._list_at = 0.0
        self._wake.set()
        await read

    def look_up(self, *keys: str) -> None:
        """Read these keys soon, in this order."""
        if not self._stopped:
            now = asyncio.get_running_loop().time()
            for key in keys:
                under_way = self._lookups.pop(key, None)
                if under_way is None or under_way.until <= now:  # the read in progress may be older than this request
                    under_way = _Passed(None, now)
                self._lookups[key] = under_way
            self._wake.set()

    def close(self) -> None:
        """Stop following; known values stay. Waiters get an error at once."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        self._refuse(self._closed())

    async def stop(self) -> None:
        """`close`, and wait until everything has ended. Idempotent; safe before `start`."""
        self.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, None
        for subscription in subscriptions or ():
            with contextlib.suppress(GanglineError):
                await subscription.unsubscribe()

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._owner} was stopped")

    def _check(self) -> None:
        if self._stopped:
            raise self._closed()

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def pulled(self) -> bool:
        """Whether everything has ever been listed."""
        return self.pulls > 0

    @property
    def settled(self) -> bool:
        """Whether `ready` would return at once."""
        first = self._first
        return not self._stopped and first is not None and first.done() and first.exception() is None

    def get(self, key: str) -> V | None:
        """The value, as last read."""
        known = self._known.get(key)
        return None if known is None else known.value

    def revision(self, key: str) -> int:
        """Revision of the last read value, valid or not; 0: there is none."""
        known = self._known.get(key)
        return 0 if known is None else known.revision

    def __iter__(self) -> Iterator[str]:
        """Keys that have a value."""
        return (key for key, known in self._known.items() if known.value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"BucketInformer({self._what}: {len(self)} known, pulls={self.pulls})"

    # -- following ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """The one loop: see law 2."""
        loop = asyncio.get_running_loop()
        again_s = _AGAIN_S
        while True:
            self._wake.clear()
            began_at = loop.time()
            try:
                await self._step()
                again_s, self._failing = _AGAIN_S, False
                pause_s = _LOOK_AGAIN_S if self._lookups else max(0.0, self._list_at - loop.time())
            except (Unavailable, InvalidSettings) as error:
                final = isinstance(error, (ServerUnsupported, NotPermitted, InvalidSettings))
                hopeless = final and self._without_after_s is None
                if hopeless and not self.pulled:
                    await self._unsubscribe()
                    self._refuse(error)
                    return
                self._failed(error)
                pause_s = again_s
                again_s = min(self._resync_s if self.pulled else _AGAIN_MAX_S, 2 * again_s)
                if self._connected_at <= began_at:  # otherwise the connection has come back since
                    self._list_at = max(self._list_at, loop.time() + pause_s)
                if not self._bus.connected:
                    self._connected_at = loop.time()
                elif self._without_after_s is not None and loop.time() - self._connected_at >= self._without_after_s:
                    self._settle()
            except Exception as error:  # a bug in one step must not end the loop
                if isinstance(error, GanglineError):
                    self._failed(error)
                else:
                    self._log.exception("a step of %s failed", self._what, extra=self._extra("bug"))
                pause_s = self._resync_s
                if self._without_after_s is not None:
                    self._settle()
            await set_within(self._wake, pause_s)

    def _failed(self, error: GanglineError) -> None:
        # Log a warning once; the lost connection has already been logged.
        quiet = self._failing or isinstance(error, Disconnected) or not self._bus.connected
        self._failing = not isinstance(error, Disconnected) and self._bus.connected
        level = logging.DEBUG if quiet else logging.WARNING
        self._log.log(level, "cannot read %s: %s", self._what, error, extra=self._extra("pull_failed"))
        self._refuse_asked(error)

    def _refuse(self, error: GanglineError) -> None:
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            self._first.exception()  # perhaps nobody awaits it
        self._refuse_asked(error)

    def _refuse_asked(self, error: GanglineError) -> None:
        asked, self._asked = self._asked, []
        for read in asked:
            if not read.done():
                read.set_exception(error)

    def _settle(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    async def _step(self) -> None:
        kv = await self._open()
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Future[None]] = []
        listing = loop.time() >= self._list_at
        try:
            if listing:
                asked, self._asked = self._asked, []
                self._list_at = loop.time() + self._resync_s  # a reconnect meanwhile resets it
                await self._list_all(kv)
            await self._look_all_up(kv)
        except BaseException:
            self._asked = [*asked, *self._asked]
            if listing:
                self._list_at = 0.0
            raise
        if listing:
            self.pulls += 1
            self._settle()
        for read in asked:
            if not read.done():
                read.set_result(None)

    async def _open(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._bucket()
        if self._subscriptions is None:
            self._subscriptions = []
            try:
                for pattern in self._observed:
                    self._subscriptions.append(await self._kv.observe(pattern, self._passed))
                if self._subscribe is not None:
                    self._subscriptions.append(await self._subscribe())
            except BaseException:
                await self._unsubscribe()
                raise
        return self._kv

    def _passed(self, entry: KvEntry) -> None:
        if self._on_passing is not None and self._on_passing(entry):
            return
        value = None if entry.operation is KvOperation.DELETE else entry.value
        self._lookups[entry.key] = _Passed(value, asyncio.get_running_loop().time() + STORED_WITHIN_S)
        self._wake.set()

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self._connected_at = asyncio.get_running_loop().time()
            self._list_at = 0.0
            self._wake.set()

    # -- reading --------------------------------------------------------------------------------------------------

    async def _list_all(self, kv: KeyValue) -> None:
        if self._listed is None:
            await self._list(kv, self._observed)
        else:
            for pattern in self._listed():
                await self._list(kv, (pattern,))

    async def _list(self, kv: KeyValue, patterns: Sequence[str]) -> None:
        entries = {entry.key: entry for entry in await kv.entries(*patterns)}
        subjects = [SubjectPattern(text) for text in patterns]

        def lacks(key: str) -> bool:
            return key not in entries and any(subject.matches(key) for subject in subjects)

        missing = [key for key in self._known if lacks(key)]
        for key in [key for key in self._deleted if lacks(key)]:
            del self._deleted[key]
        told = []
        for key, entry in entries.items():
            before = self.revision(key) or self._deleted.get(key, 0)
            if entry.revision > before or self._absent is Absent.GONE or self._is_known(entry):
                told.append(self._take(entry))
            else:
                self.look_up(key)
        match self._absent:
            case Absent.GONE:
                told += [self._drop(key) for key in missing]
            case Absent.ASK:
                self.look_up(*missing)
            case Absent.TWICE:
                told += [self._drop(key) for key in missing if key in self._missing]
                self._missing -= entries.keys()
                self._missing ^= set(missing)  # those that were in it have just been dropped
        for change in told:
            await self._tell(change)

    async def _look_all_up(self, kv: KeyValue) -> None:
        loop = asyncio.get_running_loop()
        lookups = list(self._lookups.items())
        for start in range(0, len(lookups), _MOST_READ):
            part = lookups[start : start + _MOST_READ]
            entries = await asyncio.gather(*(kv.get(key) for key, _ in part))
            for (key, passed), entry in zip(part, entries, strict=True):
                change = self._take(entry) if entry is not None else self._drop(key)
                stored = None if entry is None else entry.value
                seen = stored == passed.value or loop.time() >= passed.until
                if seen and self._lookups.get(key) is passed:  # otherwise another write has passed meanwhile
                    del self._lookups[key]
                await self._tell(change)

    def _is_known(self, entry: KvEntry) -> bool:
        known = self._known.get(entry.key)
        return known is not None and known.is_of(entry)

    def _take(self, entry: KvEntry) -> tuple[str, V | None, V | None] | None:
        """Returns the change to report."""
        key = entry.key
        known = self._known.get(key)
        old = None if known is None else known.value
        news = known is None or not known.is_of(entry)
        if known is not None and not news and (self._keep or not known.valid):
            return (key, old, old) if known.valid and old is not None else None
        value, valid = None, True
        try:
            value = self._parse(entry)
        except (ValueError, GanglineError) as error:
            valid = False
            self._on_unreadable(entry, error)
        if news:
            kept = None if not self._keep else value if valid else old
            self._known[key] = _Known(entry.revision, hash(entry.value), kept, valid)
            self._deleted.pop(key, None)
        return (key, old, value) if valid and (old, value) != (None, None) else None

    def _drop(self, key: str) -> tuple[str, V | None, V | None] | None:
        known = self._known.pop(key, None)
        if known is None:
            return None
        self._deleted[key] = known.revision
        return key, known.value, None

    async def _tell(self, change: tuple[str, V | None, V | None] | None) -> None:
        if change is None:
            return
        try:
            more = self._on_change(*change)
            if more is not None:
                await more
        except GanglineError:
            raise  # it will be reported again
        except Exception:
            self._log.exception("a change of %s failed: %s", self._what, change[0], extra=self._extra("bug"))

    def _log_unreadable(self, entry: KvEntry, error: Exception) -> None:
        first = str(error).splitlines()[0]
        extra = {"action": "record.unreadable", "key": entry.key}
        self._log.warning("unreadable record %s: %s", entry.key, first, extra=extra)

    def _extra(self, action: str) -> dict[str, Any]:
        return {"action": f"{self._kind}.{action}"}
