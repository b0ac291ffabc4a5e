"""The gang part of a plan: who acquires which gangs, what they do with them, which sets are declared."""

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
    """As other languages do it: acquired, polled, renewed, a stranger tries to release it, released."""
    VANISH = "gang whose owner vanishes"
    """Nobody ever renews or releases it."""
    SET_CALL = "call to a standing set"


class Breaking(StrEnum):
    """What one rank does after it has met the others. All others return."""

    NOTHING = "nothing"
    RAISE = "raise"
    FAIL = "fail"
    """Declares its member failed."""
    NEVER = "never"
    """Sleeps until it is cancelled."""
    STUBBORN = "stubborn"
    """... and ignores the first cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStep:
    """One thing that one client does. `at_s` counts from the beginning of the traffic."""

    number: int
    at_s: float
    client: str
    kind: GangKind
    bundles: tuple[Bundle, ...]
    strategy: Strategy
    priority: int
    preempt: bool
    restart: RestartPolicy
    max_restarts: int
    backoff_s: float
    grace_s: float
    ttl_s: float
    deadline_s: float
    runs: int
    """Runs on all ranks one after another, or calls."""
    together: bool
    """The calls: all at once."""
    meets: bool
    """The ranks of a run meet at a barrier and gather."""
    duration_s: float
    breaking: Breaking
    timeout_s: float
    """Of each run or call."""
    retries: int
    partial: bool
    hold_s: float
    cancel_after_s: float | None
    """Cancel the whole step then, whatever it is doing."""
    target: str = ""
    """The standing set that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStep:
    """An operator declares a standing set again, or deletes it (no `record`)."""

    at_s: float
    name: str
    gangs: int
    record: str | None
    """As it is written to the ledger."""


class BadStart(StrEnum):
    """What members of one version of the standing sets do when they start."""

    NOTHING = "nothing"
    RAISE = "raise"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Of members of standing gangs."""

    takes_s: float = 0.0
    bad: BadStart = BadStart.NOTHING
    """... those of this version; the others start well."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTraffic:
    """The part of a plan that is about gangs."""

    coordinators: tuple[str, ...]
    steps: tuple[GangStep, ...]
    sets: tuple[SetStep, ...]
    starve_after_s: float
    """When slots begin to be reserved for the head of the queue."""
    failing_starts: float
    """How many members fail in their start hook, where the pool has one."""
    starts: Starts = field(default_factory=lambda: Starts())
    """What the start hooks of standing gangs do, where the pool has one, as long as there is traffic."""

    def summary(self) -> str:
        return (
            f"{len(self.coordinators)} coordinators, {len(self.steps)} gang steps, "
            f"{len({each.name for each in self.sets})} standing sets"
        )
