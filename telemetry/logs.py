"""Logging with a stable `action` and ids on every line.

    log = logger_for("worker", pool="images", worker="w1")
    log.info("serves with %d slots", 4, extra={"action": "worker.started"})

Nothing is logged at INFO per message. The library configures no handlers; command-line
processes do, with the formats below: one JSON object a line for machines, or one readable line for people.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from ..schemas.text import printable
from .exceptions import MAX_TEXT_CHARS, cut, traceback_text

ROOT: Final = "gangline"
"""Parent of all loggers of this package."""

RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attribute names of log records: an `extra` with such a name would raise, and the log line of an error would be
lost."""


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds bound ids to each line; the `extra` of a line overrides them."""

    def __init__(self, logger: logging.Logger, ids: Mapping[str, object] | None = None) -> None:
        super().__init__(logger, dict(ids or {}))

    def bind(self, **ids: object) -> Log:
        """A copy of the logger with more ids."""
        return Log(self.logger, {**(self.extra or {}), **ids})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        merged = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        kwargs["extra"] = {f"{name}_" if name in RECORD_FIELDS else name: value for name, value in merged.items()}
        return msg, kwargs


def logger_for(part: str, **ids: object) -> Log:
    """The logger of one part of the package, `gangline.<part>`, which adds these ids to each line."""
    name = part if part == ROOT or part.startswith(f"{ROOT}.") else f"{ROOT}.{part}"
    return Log(logging.getLogger(name), ids)


class LineLimit:
    """Keeps lines that repeat from flooding a log: of each key, some at once, then one every so often.

    Args:
        now: a monotonic clock, in seconds.
        burst: lines of one key that may come at once.
        every_s: seconds between later ones.
    """

    def __init__(self, now: Callable[[], float], *, burst: int = 10, every_s: float = 1.0) -> None:
        self._now = now
        self._room_s = (burst - 1) * every_s
        self._every_s = every_s
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def admit(self, key: str) -> int | None:
        """None: leave this line out. Else write it, with how many of its key were left out since the last one.

        Keys are kept, so there must be a bounded number of them.
        """
        now = self._now()
        due = max(now, self._next.get(key, now))
        if due - now > self._room_s:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return None
        self._next[key] = due + self._every_s
        return self._left_out.pop(key, 0)

    def write(self, say: Callable[..., None], text: str, *args: object, extra: Mapping[str, object]) -> None:
        """Write a line by a method of a log, such as `log.info`, unless there were too many of its action."""
        if self.admit(str(extra["action"])) is not None:
            say(text, *args, extra=extra, stacklevel=2)


class FloodFilter(logging.Filter):
    """Keeps the warnings and errors of this package that others can cause (unreadable records, dead letters) from
    flooding a log: of each kind, BURST at once, then one a second. The next one has `left_out`, how many were not
    written since the last."""

    BURST: Final = 200
    _MOST_KINDS: Final = 1000

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._limit = LineLimit(now, burst=self.BURST)
        self._kinds: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith(ROOT):
            return True
        kind = f"{record.name} {record.levelno} {getattr(record, 'action', record.msg)}"
        if kind not in self._kinds:
            if len(self._kinds) >= self._MOST_KINDS:
                self._kinds, self._limit = set(), LineLimit(self._now, burst=self.BURST)
            self._kinds.add(kind)
        left_out = self._limit.admit(kind)
        if left_out:
            record.left_out = left_out
        return left_out is not None


LogFormat = Literal["human", "json"]


def action_of(record: logging.LogRecord) -> str:
    """The line's `action`; for a library that has none, the name of its logger."""
    return str(getattr(record, "action", None) or f"log.{record.name}")


def ids_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The fields that were passed as `extra`, without `action`. Long texts are cut."""
    for name, value in record.__dict__.items():
        if name not in RECORD_FIELDS and name != "action":
            yield name, cut(value) if type(value) is str and len(value) > MAX_TEXT_CHARS else value


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return cut(text) if len(text) > MAX_TEXT_CHARS else text


class _Formatter(logging.Formatter):
    def _traceback(self, record: logging.LogRecord) -> str:
        """Empty without one. A line from a child process has it as text."""
        error = record.exc_info[1] if record.exc_info else None
        return (traceback_text(error) if error is not None else cut(record.exc_text or "")).rstrip("\n")


class JsonFormatter(_Formatter):
    """`{"time", "level", "action", "message", "logger", ...ids, "exception"}` in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": action_of(record),
            "message": _message(record),
            "logger": record.name,
        }
        for name, value in ids_of(record):
            line.setdefault(name, value)
        if trace := self._traceback(record):
            line["exception"] = trace
        return printable(json.dumps(line, ensure_ascii=False, default=str))


_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_ESCAPES_IN_TRACEBACK = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\t\n"} | {10: "\n  "}


class HumanFormatter(_Formatter):
    """`12:00:01.250 WARNING  worker.draining  leaves after 3 tasks  pool=images worker=w1`, in local time.

    Control characters, and those that set the direction of text, are escaped and tracebacks are indented: what others
    send cannot look like a line of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        clock = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
        ids = " ".join(f"{name}={value}" for name, value in ids_of(record))
        line = f"{clock} {record.levelname:<7}  {action_of(record)}  {_message(record)}"
        if ids:
            line = f"{line}  {ids}"
        line = line.translate(_ESCAPES)
        if trace := self._traceback(record):
            line += f"\n{trace}".translate(_ESCAPES_IN_TRACEBACK)
        return printable(line)


_LIBRARIES = ("asyncio", "nats", "opentelemetry", "watchfiles")
"""What Gangline itself uses: only its warnings are of interest."""


def configure_logging(
    *,
    level: str = "INFO",
    fmt: LogFormat = "human",
    stream: TextIO | None = None,
    task_ids: Callable[[logging.LogRecord], bool] | None = None,
) -> None:
    """Print this package's logs from `level` up, and warnings of other libraries, to stderr.

    Replaces the effect of an earlier call. Only for command-line processes: a library must not configure logging.

    Args:
        task_ids: where users' code runs, a logging filter that adds the ids of the task. Users' logs are printed from
            `level` up, too.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if fmt == "json" else HumanFormatter())
    handler.addFilter(FloodFilter())
    if task_ids is not None:
        handler.addFilter(task_ids)
    others = logging.WARNING if task_ids is None else level.upper()
    logging.basicConfig(level=others, handlers=[handler], force=True)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
