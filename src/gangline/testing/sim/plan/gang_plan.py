"""The gang part of a plan: gangs and their use, and standing sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ....schemas.records.gangs import Bundle, RestartPolicy, Strategy


class GangKind(StrEnum):
    """What a client does in one step."""

    RUN = "gang, run on all ranks"
    CALL = "gang, call single ranks"
    HOLD = "gang held idle"
    QUEUE = "gang asked for without waiting"
    """As in other languages: acquired, polled, renewed, a release attempt without the token, released."""
    VANISH = "gang whose owner vanishes"
    """It is never renewed or released."""
    SET_CALL = "call to a standing set"


class Breaking(StrEnum):
    """What one rank does after the barrier. All others return."""

    NOTHING = "nothing"
    RAISE = "raise"
    FAIL = "fail"
    """Declares its member failed."""
    NEVER = "never"
    """Sleeps until it is cancelled."""
    STUBBORN = "stubborn"
    """Like SLEEP, and ignores the first cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStep:
    """One step of one client. `at_s` is measured from the beginning of the traffic."""

    number: int
    at_s: float
    client: str
    kind: GangKind
    bundles: tuple[Bundle, ...]
    strategy: Strategy
    priority: int = 0
    preempt: bool = False
    restart: RestartPolicy
    max_restarts: int = 3
    backoff_s: float = 0.05
    grace_s: float = 0.2
    ttl_s: float
    deadline_s: float
    runs: int = 1
    """Number of runs on all ranks, one after another, or of calls."""
    together: bool = False
    """Whether all calls are made at once."""
    meets: bool = False
    """Whether the ranks of a run meet at a barrier and gather values."""
    duration_s: float
    breaking: Breaking = Breaking.NOTHING
    timeout_s: float
    """Timeout of each run or call."""
    retries: int = 0
    partial: bool = False
    hold_s: float = 0.0
    cancel_after_s: float | None = None
    """When the whole step is cancelled."""
    target: str = ""
    """The standing set that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStep:
    """An operator declares a standing set again, or deletes it (no `record`)."""

    at_s: float
    name: str
    gangs: int
    record: str | None
    """The record as written to the ledger."""


class BadStart(StrEnum):
    """How members of one version of the standing sets fail to start."""

    NOTHING = "nothing"
    RAISE = "raise"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """How members of standing gangs start."""

    takes_s: float = 0.0
    bad: BadStart = BadStart.NOTHING
    """Members of this version start as `bad` says; the others start well."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTraffic:
    """The part of a plan that concerns gangs."""

    coordinators: tuple[str, ...]
    steps: tuple[GangStep, ...] = ()
    sets: tuple[SetStep, ...] = ()
    starve_after_s: float
    """Setting of all coordinators."""
    failing_starts: float = 0.0
    """Share of members that fail in their start hook, if the pool has one."""
    starts: Starts = field(default_factory=lambda: Starts())
    """What the start hooks of standing gangs do while there is traffic, if the pool has one."""

    def summary(self) -> str:
        return (
            f"{len(self.coordinators)} coordinators, {len(self.steps)} gang steps, "
            f"{len({each.name for each in self.sets})} standing sets"
        )
