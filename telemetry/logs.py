"""Logging with a stable `action` and ids on every line.

    log = logger_for("worker", pool="images", worker="w1")
    log.info("serves with %d slots", 4, extra={"action": "worker.started"})

Nothing is logged at INFO per message. The library configures no handlers; the CLI does (see `logformat`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

ROOT: Final = "gangline"
"""Parent of all loggers of this package."""

RECORD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Names that a log record uses itself: an `extra` of such a name would raise, and an error path would lose its log."""


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds bound ids to each line; a line's own `extra` wins."""

    def __init__(self, logger: logging.Logger, ids: Mapping[str, object] | None = None) -> None:
        super().__init__(logger, dict(ids or {}))

    def bind(self, **ids: object) -> Log:
        """The same logger with further ids."""
        return Log(self.logger, {**(self.extra or {}), **ids})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        merged = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        kwargs["extra"] = {f"{name}_" if name in RECORD_FIELDS else name: value for name, value in merged.items()}
        return msg, kwargs


def logger_for(part: str, **ids: object) -> Log:
    """The logger of one part of the package, `gangline.<part>`, with ids for each of its lines."""
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
