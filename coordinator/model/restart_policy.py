"""What becomes of a gang when it loses a member: a decision, without state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...runtime.timers import exponential_s
from ...schemas.records.gangs import GangSpec, RestartPolicy
from ..settings import CoordinatorSettings
from .events import Cause

UNCOUNTED = frozenset({Cause.DRAINED, Cause.PREEMPTED})
"""Planned: no fault of the gang, so they are no failures, which `max_restarts` bounds."""

FINAL = frozenset(
    {Cause.RELEASED, Cause.BY_OPERATOR, Cause.OWNER_LOST, Cause.REPLACED, Cause.DEADLINE, Cause.RESHARDED}
)
"""Nobody wants it any more."""


class RestartDecision(StrEnum):
    END = "end"
    RESTART = "restart"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fate: RestartDecision
    counted: bool = False
    """As one failure of the gang, however many members failed."""
    delay_s: float = 0.0
    """Before the next generation is queued."""


def decide(
    spec: GangSpec, cause: Cause, *, failures: int, streak: int, draw: float, settings: CoordinatorSettings
) -> Verdict:
    """Args:
    failures: those before this one that counted.
    streak: failures since the gang was last stable; the backoff doubles with each.
    draw: from [0, 1); the wait is between half of the backoff and all of it.
    """
    if cause in FINAL:
        return Verdict(fate=RestartDecision.END)
    counted = cause not in UNCOUNTED
    if spec.restart is RestartPolicy.FAIL:
        return Verdict(fate=RestartDecision.END, counted=counted)
    if counted and spec.max_restarts is not None and failures >= spec.max_restarts:
        return Verdict(fate=RestartDecision.END)
    if not counted:
        return Verdict(fate=RestartDecision.RESTART)
    if spec.restart is RestartPolicy.RESTART_MEMBER and cause is not Cause.NOT_REPAIRED:
        return Verdict(fate=RestartDecision.REPAIR, counted=True)
    return Verdict(fate=RestartDecision.RESTART, counted=counted, delay_s=backoff_s(spec, streak, draw, settings))


def backoff_s(spec: GangSpec, streak: int, draw: float, settings: CoordinatorSettings) -> float:
    """Exponential with jitter: half of it is certain, so that a gang which fails at once never restarts in a loop."""
    full = exponential_s(spec.backoff_s, settings.restart_max_s, streak)
    return full * (0.5 + draw / 2)
