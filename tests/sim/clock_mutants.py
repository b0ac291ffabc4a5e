"""Planted bugs that only show in processes whose clocks differ: a time of another process is compared. See mutants."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gangline.dispatcher.calls.call import Call
from gangline.dispatcher.leases import held_slots as hold_module
from gangline.schemas.wire.frames import Frame
from gangline.testing.sim.plan.plan import Plan, draw_plan
from gangline.testing.sim.plan.variants import with_clocks
from gangline.worker.slots.admission_core import AdmissionCore

from .mutants import mutant


def _draw(seed: int) -> Plan:
    return with_clocks(draw_plan(seed))


clock_mutant = functools.partial(mutant, draw=_draw)


@clock_mutant("L5")
def the_margin_of_a_lease_is_for_clocks_that_hardly_differ(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hold_module, "margin_s", lambda ttl_s: min(ttl_s / 4, 0.05 + ttl_s / 100))


@clock_mutant("outcome")
def a_deadline_travels_as_a_time_of_the_callers_clock(patch: pytest.MonkeyPatch) -> None:
    frame, admit = Call.frame, AdmissionCore.admit

    def absolute(self: Call, *args: Any) -> Frame:
        made = frame(self, *args)
        return made if self.deadline is None else (*made[:5], round(self.deadline * 1000), *made[6:])

    def compared(
        self: AdmissionCore, sender: Any, task_id: int, cost: int, token: Any, deadline_at: float, now: float
    ) -> Any:
        return admit(self, sender, task_id, cost, token, deadline_at - now, now)

    patch.setattr(Call, "frame", absolute)
    patch.setattr(AdmissionCore, "admit", compared)
