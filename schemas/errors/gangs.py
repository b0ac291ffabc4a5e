"""Errors of gangs, in addition to those of schemas.errors.

::

    InvalidRequest
    ├── GangImpossible      the registered workers could never hold it; says what is missing
    └── ShardConflict       a coordinator was started with pools of another shard
    Unavailable
    └── NoCoordinator       no coordinator leads right now: ask again
    LeaseError
    ├── UnknownGang         never requested here, or ended too long ago
    ├── NotOwner            the owner token is wrong
    ├── StaleGeneration     the gang was restarted since
    └── GangEnded           it ended; carries the reason
    DeadlineExceeded
    └── GangNotFormed       not formed by its deadline; says why
    TaskError
    └── GangFailed          a member failed; carries generation, rank and reason
        └── GangRestarted   the gang was torn down and forms again as the next generation
"""

from __future__ import annotations

from typing import Any

from .base import DeadlineExceeded, InvalidRequest, InvalidSettings, LeaseError, TaskError, Unavailable


class GangImpossible(InvalidRequest):
    """`details["lacks"]`: a list of what is missing, each a sentence."""

    code = "gang_impossible"
    status = 422


class ShardConflict(InvalidSettings):
    code = "shard_conflict"
    status = 409


class NoCoordinator(Unavailable):
    code = "no_coordinator"


class UnknownGang(LeaseError):
    code = "unknown_gang"
    status = 404


class NotOwner(LeaseError):
    code = "not_owner"
    status = 403


class StaleGeneration(LeaseError):
    """`details["generation"]`: the current one."""

    code = "stale_generation"


class GangEnded(LeaseError):
    """`details`: `reason`, `generation`, `rank` (None if no member failed)."""

    code = "gang_ended"
    status = 410


class GangNotFormed(DeadlineExceeded):
    """`details["lacks"]`: a list of what was missing at the deadline, each a sentence."""

    code = "gang_not_formed"


class GangFailed(TaskError):
    """`details`: `generation`, `rank` (None if no member failed), `reason`. At an owner, `__cause__` is the member's
    own error, if it sent one."""

    code = "gang_failed"

    results: dict[int, Any]
    """At an owner: the results, by rank, of members that had finished."""

    def __init__(
        self, message: str = "", *, details: dict[str, Any] | None = None, may_have_started: bool | None = None
    ) -> None:
        super().__init__(message, details=details, may_have_started=may_have_started)
        self.results = {}

    @property
    def generation(self) -> int:
        return int(self.details.get("generation", 0))

    @property
    def rank(self) -> int | None:
        rank = self.details.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def reason(self) -> str:
        return str(self.details.get("reason", ""))


class GangRestarted(GangFailed):
    """The gang continues as its next generation; what was running in this one is lost."""

    code = "gang_restarted"
