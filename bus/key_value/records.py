"""Reads records of the protocol from entries of a bucket."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from ...schemas.records.workers import Record
from ...telemetry.logs import logger_for
from ..port.bus import KvEntry

_log = logger_for("ledger")
V = TypeVar("V", bound=Record)


def read_record(model: type[V], entry: KvEntry) -> V | None:
    """Parse a record; None if it is invalid, for example because a newer version or a foreign program wrote it."""
    try:
        return model.read(entry.value)
    except ValidationError as error:
        _log.debug("not a %s: %s", model.__name__, error, extra={"action": "ledger.unreadable", "key": entry.key})
        return None
