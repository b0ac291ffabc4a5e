"""The streams and buckets of durable tasks: their names, settings and retention.

The first client or dispatcher creates them; existing ones are used as they are. Requests to storage are repeated as
long as it takes: a lost leader or a restarted server is no reason to give up a task.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from ...bus.port.bus import (
    MEBIBYTE,
    BucketSettings,
    Bus,
    Conflict,
    ConsumerLost,
    ConsumerTaken,
    KeyValue,
    KvEntry,
    NoResponders,
    NotPermitted,
    ObjectStore,
    PublishRefused,
    RequestTimeout,
    Retention,
    Storage,
    StorageUnavailable,
    Stream,
    StreamSettings,
    StreamSource,
    bytes_from,
)
from ...bus.streams.history_recorder import HistorySettings
from ...runtime.timers import Backoff
from ...schemas.errors.base import InvalidSettings, MalformedMessage, ServerUnsupported, Unavailable
from ...schemas.names import Names, is_name
from ...schemas.permissions.nats_config import ACCOUNT
from ...schemas.permissions.roles import USER_INFO
from ...schemas.records.jobs import ResultRecord
from ...schemas.wire.codec import from_json
from ...telemetry.logs import Log

DUPLICATES_S: Final = 120.0
"""Within this time, the same `Nats-Msg-Id` means the same task."""

_RESULTS_SHARE: Final = 1 / 2
"""Where the server has little room, see StreamSettings. The record of a small result has up to five times the size of
its task, and what waits must not take the room of its results."""
_OBJECTS_SHARE: Final = 1 / 4
_SHARE: Final = 1 / 16
"""Of other streams."""

_ACCOUNT_S: Final = 5.0
_OWN_ACCOUNTS: Final = frozenset((ACCOUNT, "$G"))
"""Names of Gangline's own account: in accounts of their own, and in a server without accounts."""
T = TypeVar("T")
_BOUNDS: Final = tuple(
    f"{name}_max_bytes" for name in ["tasks", "schedules", "results", "objects", "dead", "jobs", "routes", "audit"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStorage:
    """How to create the streams and buckets of durable tasks if they do not exist.

    Raises:
        InvalidSettings: a value is out of bounds.
    """

    storage: Storage = Storage.FILE
    """File storage survives a restart of the server; with memory, tasks last as long as the server's process."""
    replicas: int = 1
    """Number of servers in a cluster that keep a copy, 1 to 5. With 3, any one of them may fail; a single server needs
    1."""
    dead_max_age_s: float = 30 * 86_400.0
    """How long dead letters are kept; 0: forever."""
    jobs_max_age_s: float = 3600.0
    """How long events, progress and items of jobs are kept for later readers; 0: forever."""

    tasks_max_bytes: int = 1024 * MEBIBYTE
    """Maximum size of the queues, in bytes, reserved on the server; when they are full, submissions wait and are
    refused. -1, here and below, or if the server cannot reserve so much: a share of what it can still reserve."""
    schedules_max_bytes: int = -1
    """Maximum size of tasks that wait for their time or repeat. When full, the oldest would be lost, so it is unlimited
    by default. But where the queues have only a share, what exceeds four times that share is refused: it becomes a dead
    letter."""
    results_max_bytes: int = 1024 * MEBIBYTE
    """Maximum size of the results bucket; when it is full, tasks end only when older results have expired."""
    objects_max_bytes: int = 4096 * MEBIBYTE
    """Maximum size of large results."""
    dead_max_bytes: int = 1024 * MEBIBYTE
    """Maximum size of dead letters; when they are full, the oldest are lost."""
    jobs_max_bytes: int = 256 * MEBIBYTE
    """Maximum size of events, progress and items; when they are full, the oldest are lost."""
    routes_max_bytes: int = 64 * MEBIBYTE
    """Maximum size of routes; -1: as much as the server allows."""
    audit_max_bytes: int = 64 * MEBIBYTE
    """Maximum size of the audit trail; when it is full, the oldest records are lost."""
    audit_max_age_s: float = 90 * 86_400.0
    """How long operators' actions are kept; 0: forever."""

    def __post_init__(self) -> None:
        for name in _BOUNDS:
            BucketSettings(replicas=self.replicas, max_bytes=getattr(self, name))  # has the same bounds
        for name in ("dead_max_age_s", "jobs_max_age_s", "audit_max_age_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidSettings(f"{name} is {value!r}, it must be a number of seconds, or 0 for no limit")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TaskStorage:
        """The values of `GANGLINE_STORAGE` and `GANGLINE_REPLICAS`, as for the ledger; file storage if the first is
        unset.

        Raises:
            InvalidSettings: names the variable and its allowed values.
        """
        environ = os.environ if environ is None else environ
        given = BucketSettings.from_environment({"GANGLINE_STORAGE": Storage.FILE.value, **_set(environ)})
        most = bytes_from(environ)
        bounds = {} if most is None else dict.fromkeys(_BOUNDS, most) | {"schedules_max_bytes": -1}
        return cls(storage=given.storage, replicas=given.replicas, **bounds)

    def _bucket(self, max_bytes: int, share: float = 0.0) -> BucketSettings:
        return BucketSettings(storage=self.storage, replicas=self.replicas, max_bytes=max_bytes, share=share)

    @property
    def routes(self) -> BucketSettings:
        return self._bucket(self.routes_max_bytes)

    @property
    def results(self) -> BucketSettings:
        return self._bucket(self.results_max_bytes, _RESULTS_SHARE)

    @property
    def objects(self) -> BucketSettings:
        return self._bucket(self.objects_max_bytes, _OBJECTS_SHARE)

    def tasks(self, names: Names) -> StreamSettings:
        """A work queue: a message is kept until its task has ended, however long that takes. Messages published by
        schedules come from their own stream."""
        schedules = StreamSource(
            name=names.schedules_stream, settings=self.schedules(names), subjects=names.due, to=names.tasks, start=1
        )
        return StreamSettings(
            subjects=(names.tasks,),
            sources=(schedules,),
            expiring=False,
            max_bytes=self.tasks_max_bytes,
            share=_SHARE,
            keeps_old=True,
            retention=Retention.WORK_QUEUE,
            storage=self.storage,
            replicas=self.replicas,
            duplicates_s=DUPLICATES_S,
        )

    def schedules(self, names: Names) -> StreamSettings:
        """The stream of tasks that wait for their time or repeat. Only dispatchers write to it, so that nobody
        schedules a task for somebody else's endpoint."""
        return StreamSettings(
            subjects=(names.schedules, names.due),
            schedules=True,
            max_bytes=self.schedules_max_bytes,
            storage=self.storage,
            replicas=self.replicas,
            duplicates_s=DUPLICATES_S,
        )

    def dead(self, names: Names) -> StreamSettings:
        return self._kept(names.all_dead, self.dead_max_age_s, self.dead_max_bytes)

    def jobs(self, names: Names) -> StreamSettings:
        return self._kept(names.jobs, self.jobs_max_age_s, self.jobs_max_bytes)

    def audit(self, names: Names) -> StreamSettings:
        kept = self._kept(names.audit("*"), self.audit_max_age_s, self.audit_max_bytes)
        return replace(kept, expiring=False)  # no record disappears earlier because its writer says so

    def _kept(self, subjects: str, max_age_s: float, max_bytes: int) -> StreamSettings:
        return StreamSettings(
            subjects=(subjects,),
            storage=self.storage,
            replicas=self.replicas,
            max_age_s=max_age_s,
            max_bytes=max_bytes,
            share=_SHARE,
            duplicates_s=DUPLICATES_S,
        )


def _set(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if value}


class TaskStreams:
    """Opens each stream or bucket on first use. Methods raise like `Bus.stream` and `Bus.bucket`.

    `make=False` creates nothing, for those who only read: who looks does not decide how things are stored, and may not
    be permitted to create them. What does not exist then looks empty.
    """

    def __init__(self, bus: Bus, names: Names, storage: TaskStorage | None = None) -> None:
        """
        Args:
            storage: None: from the environment, so that all processes of a system agree.
        """
        self.names = names
        self._bus = bus
        self._storage = storage or TaskStorage.from_environment()
        self._opened: dict[tuple[str, bool], Any] = {}
        self._opening: dict[tuple[str, bool], asyncio.Lock] = {}
        self.known_tenant: str | None = None
        """What `tenant` answers; None: it was not asked yet."""

    @property
    def tasks_wanted_bytes(self) -> int:
        """The limit that the stream of tasks should have; -1: none."""
        return self._storage.tasks_max_bytes

    async def tasks(self, *, make: bool = True) -> Stream:
        """Tasks that wait or run."""
        return await self._stream("tasks", make, lambda names: (names.tasks_stream, self._storage.tasks(names)))

    async def schedules(self, *, make: bool = True) -> Stream:
        """Tasks that wait for their time."""
        return await self._stream(
            "schedules", make, lambda names: (names.schedules_stream, self._storage.schedules(names))
        )

    async def dead(self, *, make: bool = True) -> Stream:
        return await self._stream("dead", make, lambda names: (names.dead_stream, self._storage.dead(names)))

    async def jobs(self) -> Stream:
        """Events, progress and items of jobs."""
        return await self._stream("jobs", True, lambda names: (names.jobs_stream, self._storage.jobs(names)))

    async def audit(self) -> Stream:
        """What operators did. The first record creates it."""
        return await self._stream("audit", False, lambda names: (names.audit_stream, self._storage.audit(names)))

    async def history(self) -> Stream:
        """What was decided, to read it."""
        settings = HistorySettings.from_environment
        return await self._stream("history", False, lambda names: (names.history_stream, settings().stream(names)))

    async def results(self, *, make: bool = True) -> KeyValue:
        """Results, and the attempts of jobs without one."""
        return await self._once(
            ("results", make),
            lambda: self._bus.bucket(self.names.results_bucket, self._storage.results, make=make),
        )

    async def routes(self) -> KeyValue:
        return await self._once(
            ("routes", True), lambda: self._bus.bucket(self.names.routes_bucket, self._storage.routes)
        )

    async def objects(self) -> ObjectStore:
        """Results that are too large for the bucket."""
        return await self._once(
            ("objects", True), lambda: self._bus.object_store(self.names.objects_store, self._storage.objects)
        )

    async def tenant(self) -> str:
        """The tenant of this user, which is the name of its account; empty: the account is Gangline's own, or the
        server does not say.

        Raises:
            Disconnected, StorageUnavailable: the server did not answer.
        """
        if self.known_tenant is None:
            told: Any = None
            try:
                answer = await self._bus.request(USER_INFO, b"", timeout_s=_ACCOUNT_S)
                told = from_json(answer.data)["data"]
                accounts = [told.get("account"), told.get("account_name")]  # with JWTs its public key and its name
            except (NotPermitted, NoResponders, MalformedMessage):
                accounts = []
            except RequestTimeout as error:
                raise StorageUnavailable("the server did not say which account this user has: try again") from error
            except (TypeError, KeyError, AttributeError):  # an error of the server
                accounts = []
            names = [name for name in accounts if isinstance(name, str) and is_name(name)]
            self.known_tenant = "" if not names or _OWN_ACCOUNTS.intersection(names) else names[-1]
        return self.known_tenant

    async def _stream(self, what: str, make: bool, told: Callable[[Names], tuple[str, StreamSettings]]) -> Stream:
        return await self._once((what, make), lambda: self._bus.stream(*told(self.names), make=make))

    async def _once(self, what: tuple[str, bool], make: Callable[[], Awaitable[T]]) -> T:
        if what not in self._opened:
            async with self._opening.setdefault(what, asyncio.Lock()):
                if what not in self._opened:
                    self._opened[what] = await make()
        opened: T = self._opened[what]
        return opened

    def __repr__(self) -> str:
        return f"TaskStreams({self.names.namespace}, open={sorted(self._opened)})"


FIRST_S: Final = 0.05
MOST_S: Final = 2.0
LOUD_AFTER: Final = 5
"""Number of failures before a warning is logged."""
_SAID_AGAIN: Final = 30


FINAL: Final = (Conflict, ConsumerLost, ConsumerTaken, PublishRefused, NotPermitted, ServerUnsupported)
"""Answers of storage, as opposed to no answer."""


def result_in(entry: KvEntry | None) -> ResultRecord | None:
    """The record of an entry of the results bucket; None: there is none, or it is invalid, since anybody can write
    there."""
    try:
        return None if entry is None else ResultRecord.model_validate_json(entry.value)
    except ValidationError:
        return None


def storage_backoff() -> Backoff:
    """Pauses between attempts: 50 ms, doubling to 2 s."""
    return Backoff(FIRST_S, MOST_S)


async def until_answered(what: str, ask: Callable[[], Awaitable[T]], log: Log) -> T:
    """The result of `ask`, repeated while storage or the connection is unavailable.

    Raises:
        Conflict, ConsumerLost, ConsumerTaken, PublishRefused, NotPermitted, ServerUnsupported: storage's answer.
    """
    backoff = storage_backoff()
    while True:
        try:
            return await ask()
        except FINAL:
            raise
        except Unavailable as error:
            delay_s = backoff.next_s()
            say = log.warning if backoff.failures == LOUD_AFTER else log.debug
            say("%s: %s; asking again", what, error, extra={"action": "storage.retry", "what": what})
            await asyncio.sleep(delay_s)


async def until_taken(what: str, ask: Callable[[], Awaitable[T]], log: Log) -> T:
    """The result of `ask`, repeated whatever storage answers: there is no other place for the end of a task, and an
    operator can restore a permission or free space.

    Raises:
        GanglineError: an error that is not an answer of storage.
    """
    tries = 0
    while True:
        try:
            return await until_answered(what, ask, log)
        except FINAL as error:
            if tries % _SAID_AGAIN == 0:
                log.error("%s: %s; asking again", what, error, extra={"action": "storage.refused", "what": what})
            tries += 1
            await asyncio.sleep(MOST_S)
