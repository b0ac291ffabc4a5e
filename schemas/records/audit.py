"""What operators did: records of the audit trail. Who did it is in the subject, `<ns>-audit.<user>`, where the server
lets each operator publish in its own name only."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from ..limits import MAX_NAME_CHARS
from .workers import Record

MAX_REASON_CHARS = 1000


class AuditStage(StrEnum):
    BEGUN = "begun"
    """Written before the action. Without a later record of the same id, its outcome is unknown."""
    DONE = "done"
    FAILED = "failed"


class AuditRecord(Record):
    """One action of an operator, before it or after it."""

    id: str = Field(max_length=MAX_NAME_CHARS)
    """The same in both records of one action."""
    stage: AuditStage
    action: str = Field(max_length=MAX_NAME_CHARS)
    """What was done, such as `drain`, `gang release` or `route set`."""
    target: str = ""
    """To what: a worker, gang, endpoint, set, or jobs."""
    reason: str = Field(default="", max_length=MAX_REASON_CHARS)
    """Why, as the operator wrote it."""
    error: str = ""
    """Code of the error, if it failed."""
    node: str = ""
    """Name of the operator's machine, as it says itself."""
