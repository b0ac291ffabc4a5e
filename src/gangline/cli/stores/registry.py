"""Reading the ledger: who serves, how busy, who holds what."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from ...bus.port.bus import KeyValue, KvEntry
from ...schemas.names import Names, WorkerId
from ...schemas.public_id import public_id
from ...schemas.records.workers import Heartbeat, LeaseRecord, Record, Registration
from ...telemetry.logs import logger_for

_log = logger_for("cli")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One registered worker."""

    registration: Registration
    heartbeat: Heartbeat | None
    """None: registered, but not heard of for three seconds."""

    @property
    def id(self) -> WorkerId:
        return WorkerId(self.registration.pool, self.registration.worker)

    @property
    def state(self) -> str:
        """`serving`, `draining`, or `lost`."""
        if self.heartbeat is None:
            return "lost"
        return "draining" if self.heartbeat.draining else self.registration.state

    def to_json(self) -> dict[str, object]:
        beat = self.heartbeat
        load = {"running": beat.running, "reserved": beat.reserved, "total": beat.total} if beat else None
        return {**self.registration.model_dump(mode="json", exclude={"v"}), "state": self.state, "load": load}


async def read_workers(ledger: KeyValue, names: Names, pool: str = "*") -> list[WorkerRow]:
    """All registered workers, by name."""
    beats = {
        names.parse_worker_key(entry.key): beat
        for entry in await ledger.entries(names.alive_of(pool))
        if (beat := parse(Heartbeat, entry)) is not None
    }
    rows = [
        WorkerRow(registration=registration, heartbeat=beats.get(names.parse_worker_key(entry.key)))
        for entry in await ledger.entries(names.registrations_of(pool))
        if (registration := parse(Registration, entry)) is not None
    ]
    return sorted(rows, key=lambda row: str(row.id))


def parse(model: type[R], entry: KvEntry) -> R | None:
    """A record; None, with a warning, for what somebody else wrote under that key."""
    try:
        return model.model_validate_json(entry.value)
    except ValidationError as error:
        _log.warning("not a %s: %s", model.__name__, error, extra={"action": "ledger.unreadable", "key": entry.key})
        return None


def lease_json(lease: LeaseRecord) -> dict[str, object]:
    """For people and scripts that look on: without the token, which would let them release it."""
    told = lease.model_dump(mode="json", exclude={"v"})
    return {**told, "token": public_id(lease.token), "expires_in_s": round(lease.expires_at - time.time(), 3)}
