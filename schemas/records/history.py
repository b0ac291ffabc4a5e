"""What was decided, by whom and when: messages of the history stream `<NS>_HISTORY`. JSON, so that `nats stream view`
shows it.

Each writer sends batches on its own subject, `<ns>-history.<role>.<name>`, where the server lets nobody else publish.
What is short and went well is counted in groups (`leases`, `attempts`), so that a busy system does not push out what
matters.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from .workers import Record

FOUND: Final = "found"
"""Among the details of a gang's record: a new leader found it so in the ledger. It happened earlier, and the leader of
that time may have recorded it, too."""


class HistoryKind(StrEnum):
    """What happened."""

    LEASE_GRANTED = "lease_granted"
    """A worker's slots are leased. Recorded for leases that last longer than a second."""
    LEASE_ENDED = "lease_ended"
    """Has `since` and, in `reason`, how it ended: released, expired, used, dropped, torn down."""
    LEASES = "leases"
    """Shorter leases of the last minute: `count`, and `seconds`, their slots times their time."""
    GANG_QUEUED = "gang_queued"
    GANG_FORMED = "gang_formed"
    """Has the generation, and in `workers` who has the seats."""
    GANG_READY = "gang_ready"
    GANG_TORN_DOWN = "gang_torn_down"
    """A generation ends; `reason` says why."""
    GANG_RESTARTING = "gang_restarting"
    GANG_MEMBER_LOST = "gang_member_lost"
    GANG_RECOVERED = "gang_recovered"
    GANG_ENDED = "gang_ended"
    ATTEMPT_ENDED = "attempt_ended"
    """An attempt of a job failed, or took longer than a second; `reason` has the error's code."""
    ATTEMPTS = "attempts"
    """Shorter attempts of the last minute that succeeded: `count` and `seconds`."""
    JOB_DEAD = "job_dead"
    """Has the number of its attempts in `attempt`."""
    JOB_CANCELLED = "job_cancelled"
    """Likewise; 0: it never started. Only jobs that a dispatcher had: delayed ones have no record."""
    WORKER_JOINED = "worker_joined"
    WORKER_DRAINING = "worker_draining"
    WORKER_RESIZED = "worker_resized"
    WORKER_EPOCH = "worker_epoch"
    """The worker was frozen, or could not be sure of its id, and voided its leases."""
    WORKER_LEFT = "worker_left"
    WORKER_LOST = "worker_lost"
    """Recorded by the leading coordinator: the worker was killed, frozen or cut off. `details` has the `leases` (public
    ids) and `gangs` that it held."""
    LEADER_ELECTED = "leader_elected"
    LEADER_YIELDED = "leader_yielded"
    QUEUE_TAKEN = "queue_taken"
    """A dispatcher owns an endpoint's queue."""
    QUEUE_LEFT = "queue_left"
    ROUTE_SET = "route_set"
    ROUTE_DELETED = "route_deleted"
    ACTION = "action"
    """What an operator did. Only in what `gangline history` shows: it is stored in the audit trail."""


class HistoryRecord(BaseModel):
    """One thing that happened. Fields that do not apply are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    kind: HistoryKind
    at: float
    """Unix time, by the writer's clock."""
    since: float | None = None
    """When it began, for something that ended."""
    pool: str = ""
    worker: str = ""
    """Name within the pool."""
    epoch: int = 0
    slots: int = 0
    lease: str = ""
    """Public id."""
    owner: str = ""
    gang: str = ""
    generation: int = 0
    job: str = ""
    endpoint: str = ""
    method: str = ""
    """Of attempts."""
    attempt: int = 0
    count: int = 0
    seconds: float = 0.0
    reason: str = ""
    workers: tuple[str, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    by: str = ""
    """Who recorded it: the end of the subject, or an operator. Added by the reader."""


class HistoryBatch(Record):
    """One message of the stream."""

    dropped: int = 0
    """Records that this writer has lost since it started."""
    records: tuple[dict[str, Any], ...] = ()
    """HistoryRecords. Each is read by itself, so that one of a newer version hides no others."""
