"""Planted bugs in what becomes of a gang whose owner dies or is cut off at a step of its request. See mutants."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

import pytest

from gangline.coordinator.core.commit_pipeline import GrantPipeline
from gangline.coordinator.model.gang import ManagedGang
from gangline.dispatcher.gangs.owner import GangOwner
from gangline.testing.sim.plan.gang_draw import draw_gang_plan
from gangline.testing.sim.plan.plan import OF_OWNERS, Accident, Moment, Plan
from gangline.testing.sim.plan.variants import with_aims

from .mutants import mutant


def _draw(seed: int) -> Plan:
    return with_aims(draw_gang_plan(seed))


def _kills_owners(plan: Plan) -> bool:
    """Plans in which an owner is killed while its gang is being granted."""
    return any(
        aim.accident is Accident.CLIENT_CRASH and aim.moment in OF_OWNERS and aim.moment is not Moment.FORMED
        for aim in plan.aims
    )


@mutant("L12", needs=_kills_owners, seeds=60, draw=_draw)
def an_owner_is_missed_only_once_it_has_renewed(patch: pytest.MonkeyPatch) -> None:
    original = GrantPipeline.committed

    def committed(self: GrantPipeline, gang: ManagedGang, revision: int) -> None:
        original(self, gang, revision)
        self._state.agenda.cancel(("owner", gang.id))

    patch.setattr(GrantPipeline, "committed", committed)


def _late_runs(plan: Plan) -> bool:
    """Plans in which an owner is cut off while a member of its gang is replaced."""
    return any(aim.moment is Moment.TO_RUN for aim in plan.aims)


@mutant("outcome", needs=_late_runs, seeds=200, draw=_draw)
def runs_are_counted_anew_in_each_generation(patch: pytest.MonkeyPatch) -> None:
    counts: WeakKeyDictionary[GangOwner, Counter[int]] = WeakKeyDictionary()

    def next_run(self: GangOwner) -> int:
        assert self.formation is not None
        runs = counts.setdefault(self, Counter())
        runs[self.formation.generation] += 1
        return runs[self.formation.generation]

    patch.setattr(GangOwner, "next_run", next_run)
