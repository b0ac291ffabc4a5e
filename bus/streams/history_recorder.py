"""Writes the history: what a process decided, in batches, behind the decision.

Laws:

1. `record` never waits, never fails, and makes no request: the decision does not depend on its record.
2. At most MOST_KEPT records wait. What does not fit is dropped and counted, and every batch says how many were.
3. One batch is in flight at a time. One that may have been stored is sent again under the same message id.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...runtime.clock import Environment
from ...runtime.timers import Backoff
from ...schemas.errors.base import ClosedError, GanglineError, InvalidSettings
from ...schemas.limits import WIRE_VERSION
from ...schemas.names import Names
from ...schemas.records.history import HistoryKind
from ...schemas.text import parse_duration
from ...schemas.wire import codec, headers
from ...telemetry.logs import Log
from ...telemetry.metrics.catalogue import history_records
from ..port.bus import (
    MEBIBYTE,
    BucketSettings,
    Bus,
    NoResponders,
    Storage,
    StorageUnavailable,
    StreamSettings,
    bytes_from,
)

FLUSH_S: Final = 1.0
"""How long records are collected."""
MOST_KEPT: Final = 10_000
BATCH: Final = 200
_TIMEOUT_S: Final = 5.0
_FIRST_RETRY_S: Final = 1.0
_MOST_RETRY_S: Final = 30.0
LAST_WORDS_S: Final = 1.0
"""How long `close` waits for the last batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """What is kept of the history, and how the stream is created if it does not exist.

    Raises:
        InvalidSettings: a value is out of bounds.
    """

    enabled: bool = True
    """Whether this process records what it decides."""
    max_age_s: float = 7 * 86_400.0
    """How long records are kept; 0: forever."""
    max_bytes: int = 256 * MEBIBYTE
    """Maximum size of the history; when it is full, the oldest records are lost. -1: a share of what the server can
    still reserve."""
    storage: Storage = Storage.FILE
    """File storage survives a restart of the server."""
    replicas: int = 1
    """Number of servers in a cluster that keep a copy, 1 to 5."""

    def __post_init__(self) -> None:
        BucketSettings(replicas=self.replicas, max_bytes=self.max_bytes)  # has the same bounds
        if not 0 <= self.max_age_s < float("inf"):
            raise InvalidSettings(f"max_age_s is {self.max_age_s!r}, it must be a number of seconds, or 0 for no limit")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> HistorySettings:
        """From `GANGLINE_HISTORY` (`on` or `off`), `GANGLINE_HISTORY_MAX_AGE` (such as `7d`) and
        `GANGLINE_HISTORY_MAX_BYTES`; `GANGLINE_STORAGE`, `GANGLINE_REPLICAS` and `GANGLINE_MAX_BYTES` as for other
        streams.

        Raises:
            InvalidSettings: names the variable and its allowed values.
        """
        environ = os.environ if environ is None else environ
        switch = environ.get("GANGLINE_HISTORY", "") or "on"
        if switch not in ("on", "off"):
            raise InvalidSettings(f"GANGLINE_HISTORY is {switch!r}: give on or off")
        stored = {name: value for name, value in environ.items() if value}
        bucket = BucketSettings.from_environment({"GANGLINE_STORAGE": Storage.FILE.value, **stored})
        given: dict[str, Any] = {"enabled": switch == "on", "storage": bucket.storage, "replicas": bucket.replicas}
        if age := environ.get("GANGLINE_HISTORY_MAX_AGE", ""):
            given["max_age_s"] = _seconds(age)
        if size := environ.get("GANGLINE_HISTORY_MAX_BYTES", ""):
            given["max_bytes"] = _whole(size)
        elif (most := bytes_from(environ)) is not None:
            given["max_bytes"] = most
        return cls(**given)

    def stream(self, names: Names) -> StreamSettings:
        """The stream. No record disappears earlier because its writer says so."""
        return StreamSettings(
            subjects=(names.history(">"),),
            storage=self.storage,
            replicas=self.replicas,
            max_age_s=self.max_age_s,
            max_bytes=self.max_bytes,
            share=1 / 16,
            expiring=False,
        )


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidSettings(f"GANGLINE_HISTORY_MAX_AGE: {error}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidSettings(f"GANGLINE_HISTORY_MAX_BYTES is {text!r}: give a whole number of bytes") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatistics:
    """Counts since the start, and what waits now."""

    written: int
    dropped: int
    waiting: int


class HistoryRecorder:
    """The history of one process. See the module's docstring; create it on its event loop."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        writer: str,
        *,
        settings: HistorySettings | None = None,
        makes_stream: bool = False,
        ambient: Environment,
        log: Log,
    ) -> None:
        """
        Args:
            writer: see Names.history.
            makes_stream: whether this user may create the stream. If not, records wait for it, and the oldest are
                dropped.
        """
        self.settings = settings or HistorySettings()
        self._bus = bus
        self._names = names
        self._subject = names.history(writer)
        self._role = writer.partition(".")[0]
        self._makes_stream = makes_stream
        self._ambient = ambient
        self._log = log
        self._waiting: deque[tuple[HistoryKind, float, str, dict[str, Any]]] = deque()
        """Kind, time, the id under which it is stored once, and the facts."""
        self._sending: tuple[str, list[tuple[HistoryKind, float, str, dict[str, Any]]]] | None = None
        """A batch that may have been stored, with its message id."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(_FIRST_RETRY_S, _MOST_RETRY_S)
        self._closing = False
        """No further attempt follows."""
        self._closed = False
        self._told = False
        self._written = 0
        self._dropped = 0
        self._counts = history_records.of(self, names.namespace)
        for outcome in ("written", "dropped"):
            self._counts[self._role, outcome] = 0  # so that the first is an increase

    @classmethod
    def of_service(
        cls,
        bus: Bus,
        names: Names,
        writer: str,
        settings: HistorySettings | None,
        *,
        makes_stream: bool = False,
        ambient: Environment,
        log: Log,
    ) -> HistoryRecorder | None:
        """The history of a service with these settings; None: it records nothing.

        Args:
            settings: None: those of the environment, which record unless GANGLINE_HISTORY is `off`.
        """
        settings = HistorySettings.from_environment() if settings is None else settings
        if not settings.enabled:
            return None
        return cls(bus, names, writer, settings=settings, makes_stream=makes_stream, ambient=ambient, log=log)

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded. Callers with many events ask first."""
        return self.settings.enabled and not self._closed

    def record(self, kind: HistoryKind, *, once: str = "", **facts: Any) -> None:
        """Record something that has just happened.

        Args:
            once: several processes may record the same; it is stored once under this id.
            facts: fields of HistoryRecord. Those that are empty are left out.
        """
        if not self.enabled:
            return
        if len(self._waiting) >= MOST_KEPT:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append((kind, self._ambient.wall(), once, facts))
        if self._timer is None and self._task is None:
            self._wake(FLUSH_S)

    def abandon(self) -> None:
        """Record and write nothing more; what waits is dropped. Call `close` as well."""
        self._closed = True
        self._stop()

    async def close(self) -> None:
        """Write what waits, for at most LAST_WORDS_S; the rest is dropped. Nothing is retried. Idempotent."""
        self._closing = True
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                while not self._closed and (self._waiting or self._task is not None):
                    if self._task is None:
                        self._flush()
                    task = self._task
                    assert task is not None
                    await asyncio.wait([task])
                    if self._backoff.failures:
                        break
        except TimeoutError:
            pass
        self._closed = True
        task = self._task
        self._stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
        self._drop(len(self._waiting) + (0 if self._sending is None else len(self._sending[1])))
        self._waiting.clear()
        self._sending = None

    def statistics(self) -> HistoryStatistics:
        waiting = len(self._waiting) + (0 if self._sending is None else len(self._sending[1]))
        return HistoryStatistics(written=self._written, dropped=self._dropped, waiting=waiting)

    def __repr__(self) -> str:
        return f"HistoryRecorder({self._subject}, {self.statistics()})"

    # -- writing --------------------------------------------------------------------------------------------------

    def _wake(self, after_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(after_s, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write_all(), name="gangline history")

    async def _write_all(self) -> None:
        try:
            while self._waiting or self._sending is not None:
                await self._write(*self._next())
                self._sending = None
                self._backoff.reset()
                self._told = False
        except GanglineError as error:
            self._failed(error)
        except Exception:
            self._log.exception("the history cannot be written", extra={"action": "history.bug"})
            self._drop(len(self._sending[1]) if self._sending is not None else 0)
            self._sending = None
        finally:
            self._task = None
            if (self._waiting or self._sending) and not self._closed:
                self._wake(max(self._backoff.delay_s, FLUSH_S) if self._backoff.failures else FLUSH_S)

    def _failed(self, error: GanglineError) -> None:
        self._backoff.failures += 1
        if isinstance(error, ClosedError):
            self._drop(len(self._waiting))
            self._waiting.clear()
        unkept = isinstance(error, NoResponders) and not self._makes_stream
        why = "there is no stream for it; a coordinator or dispatcher creates one" if unkept else error.message
        # Where no history is kept, there is nothing to say about its last records.
        log = self._log.debug if self._told or (self._closing and unkept) else self._log.info
        if self._closing:
            log("the last records of the history are lost: %s", why, extra={"action": "history.lost"})
        else:
            log("the history is not written: %s", why, extra={"action": "history.retry"})
        self._told = True

    def _next(self) -> tuple[str, list[tuple[HistoryKind, float, str, dict[str, Any]]]]:
        """The batch to send, with its message id: one that may have been stored first."""
        if self._sending is None:
            first = self._waiting[0]
            batch = [self._waiting.popleft()]
            while not first[2] and self._waiting and len(batch) < BATCH and not self._waiting[0][2]:
                batch.append(self._waiting.popleft())
            self._sending = first[2] or self._ambient.token(), batch
        return self._sending

    async def _write(self, id: str, batch: list[tuple[HistoryKind, float, str, dict[str, Any]]]) -> None:
        records = [
            {"kind": kind.value, "at": round(at, 3), **{name: fact for name, fact in facts.items() if fact}}
            for kind, at, _, facts in batch
        ]
        body = codec.to_json({"v": WIRE_VERSION, "dropped": self._dropped, "records": records})
        fields = {headers.MESSAGE_ID: id}
        try:
            answer = await self._bus.request(self._subject, body, timeout_s=_TIMEOUT_S, headers=fields)
        except NoResponders:
            if not self._makes_stream:
                raise
            # Made again each time that it is lost.
            stream = await self._bus.stream(self._names.history_stream, self.settings.stream(self._names))
            await stream.publish(self._subject, body, headers=fields, timeout_s=_TIMEOUT_S)
        else:
            told = codec.from_json(answer.data)
            error = told.get("error") if isinstance(told, dict) else None
            if isinstance(error, dict):
                why = error.get("description") or f"error {error.get('code')}"
                raise StorageUnavailable(f"storage refuses it: {why}", may_have_started=False)
            if not isinstance(told, dict) or "stream" not in told:
                raise StorageUnavailable(f"something other than JetStream answers on {self._subject}")
        self._written += len(batch)
        self._counts[self._role, "written"] += len(batch)

    def _drop(self, count: int) -> None:
        if count:
            self._dropped += count
            self._counts[self._role, "dropped"] += count


class HistorySummary:
    """Counts what is short and went well, by group, and records it once a minute."""

    PERIOD_S: Final = 60.0

    def __init__(self, recorder: HistoryRecorder, kind: HistoryKind) -> None:
        self._recorder = recorder
        self._kind = kind
        self._groups: dict[tuple[str, str, str, str], list[float]] = {}
        """Pool, worker, endpoint and method -> count, and seconds."""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, seconds: float, *, pool: str = "", worker: str = "", endpoint: str = "", method: str = "") -> None:
        """One of them took so long."""
        key = pool, worker, endpoint, method
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = [0, 0.0]
        group[0] += 1
        group[1] += seconds
        if self._timer is None:
            self._since = self._recorder._ambient.wall()
            self._timer = asyncio.get_running_loop().call_later(self.PERIOD_S, self.flush)

    def flush(self) -> None:
        """Record now what was counted; call it before the recorder closes. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        groups, self._groups = self._groups, {}
        for (pool, worker, endpoint, method), (count, seconds) in groups.items():
            self._recorder.record(
                self._kind,
                since=round(self._since, 3),
                pool=pool,
                worker=worker,
                endpoint=endpoint,
                method=method,
                count=int(count),
                seconds=round(seconds, 3),
            )
