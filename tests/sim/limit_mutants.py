"""Planted bugs in limits that hold over all workers of a pool. See mutants."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gangline.schemas.records.workers import HeldShare, LimitRecord
from gangline.testing.sim.plan.histories import draw_contended_plan
from gangline.testing.sim.plan.plan import Plan, draw_plan
from gangline.testing.sim.plan.variants import with_limits
from gangline.worker.registration.limit_shares import LimitShares
from gangline.worker.slots.share_core import ShareCore

from .mutants import mutant


def _draw(seed: int) -> Plan:
    return with_limits(draw_plan(seed))


def _several(plan: Plan) -> bool:
    """Plans in which a pool has several workers."""
    return len(plan.workers) > len({worker.pool for worker in plan.workers})


limit_mutant = functools.partial(mutant, draw=_draw)


@limit_mutant("limit", needs=_several)
def each_worker_keeps_the_limit_for_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareCore, "usable", lambda self, now: self.limit)


@limit_mutant("limit", needs=_several, around=(ShareCore, "_begin"))
def units_that_are_given_up_are_used_until_that_is_stored(original: Any, self: ShareCore, *args: Any) -> LimitRecord:
    allowed = self._allowed
    planned = original(self, *args)
    self._allowed = allowed
    return planned


@limit_mutant("limit", needs=_several, instead_of=(LimitShares, "_lives"))
async def a_silent_worker_is_taken_for_dead_although_its_heartbeat_is_there(
    self: LimitShares, worker: str, instance: str
) -> bool:
    return False


@mutant("limit-waits", draw=draw_contended_plan)
def a_unit_that_is_idle_is_never_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareCore, "_give", lambda *_: False)


@mutant("limit-waits", draw=draw_contended_plan, around=(ShareCore, "_take"))
def a_worker_that_needs_a_unit_does_not_say_so(
    original: Any, self: ShareCore, shares: dict[str, HeldShare], waiting: list[str], *args: Any
) -> bool:
    """So it gets none unless there are free ones, and the law may not rely on who says that he waits."""
    known = list(waiting)
    taken = original(self, shares, waiting, *args)
    waiting[:] = known if not taken else waiting
    return taken


@mutant("limit-waits", draw=draw_contended_plan, around=(ShareCore, "_give"))
def a_worker_whose_own_callers_wait_keeps_its_units(original: Any, self: ShareCore, *args: Any) -> bool:
    *_, pressed, _now = args
    return False if pressed else original(self, *args)


def _rated(plan: Plan) -> bool:
    return _several(plan) and bool(plan.rates)


@limit_mutant("limit-rate", needs=_rated)
def each_worker_keeps_the_rate_for_itself(patch: pytest.MonkeyPatch) -> None:
    usable = ShareCore.usable
    patch.setattr(ShareCore, "usable", lambda self, now: self.limit if self.interval_s else usable(self, now))


@limit_mutant("limit-rate", needs=_rated, around=(ShareCore, "plan"))
def units_of_a_rate_are_given_up_while_they_are_in_use(
    original: Any, self: ShareCore, in_use: int, now: float, **given: Any
) -> LimitRecord | None:
    return original(self, 0 if self.interval_s else in_use, now, **given)


@limit_mutant("limit-rate", needs=_rated)
def units_of_a_worker_that_is_gone_are_taken_for_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareCore, "spent", lambda self: 0)
