"""Log formats of command-line processes: one JSON object per line for programs, or one readable line for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, TextIO

from .logs import RECORD_FIELDS, ROOT

LogFormat = Literal["human", "json"]


def action_of(record: logging.LogRecord) -> str:
    """The line's `action`; for a library that has none, the name of its logger."""
    return str(getattr(record, "action", None) or f"log.{record.name}")


def ids_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The fields that were passed as `extra`, without `action`."""
    for name, value in record.__dict__.items():
        if name not in RECORD_FIELDS and name != "action":
            yield name, value


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "action", "message", "logger", ...ids, "exception"}` in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": action_of(record),
            "message": record.getMessage(),
            "logger": record.name,
        }
        for name, value in ids_of(record):
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class HumanFormatter(logging.Formatter):
    """`12:00:01.250 WARNING  worker.draining  leaves after 3 tasks  pool=images worker=w1`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        clock = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
        ids = " ".join(f"{name}={value}" for name, value in ids_of(record))
        line = f"{clock} {record.levelname:<7}  {action_of(record)}  {record.getMessage()}"
        if ids:
            line = f"{line}  {ids}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def configure_logging(*, level: str = "INFO", fmt: LogFormat = "human", stream: TextIO | None = None) -> None:
    """Print this package's logs from `level` up, and warnings of other libraries, to stderr.

    Replaces the effect of an earlier call. Only for command-line processes: a library must not configure logging.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if fmt == "json" else HumanFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(ROOT).setLevel(level.upper())
