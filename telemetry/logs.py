"""Logging with a stable `action` and ids on every line.

    log = logger_for("worker", pool="images", worker="w1")
    log.info("serves with %d slots", 4, extra={"action": "worker.started"})

Nothing is logged at INFO per message. The library configures no handlers; the CLI does (see `logformat`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
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
