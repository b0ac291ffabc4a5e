from __future__ import annotations

from dataclasses import dataclass

import pytest

from gangline.coordinator.model.states import TRANSITIONS, GangStep, Move, move, states_diagram
from gangline.runtime.state_machine import IllegalMove


@dataclass
class Thing:
    id: str
    step: GangStep


def test_a_move_that_the_table_does_not_have_raises_and_changes_nothing():
    for step in GangStep:
        for what in Move:
            thing = Thing("g", step)
            if (step, what) in TRANSITIONS:
                move(thing, what)
                assert thing.step is TRANSITIONS[step, what]
            else:
                with pytest.raises(IllegalMove, match=f"gang g cannot be {what.value} while it is {step.value}"):
                    move(thing, what)
                assert thing.step is step


def reachable(start: GangStep) -> set[GangStep]:
    found = {start}
    while True:
        more = {after for (before, _), after in TRANSITIONS.items() if before in found} | found
        if more == found:
            return found
        found = more


def test_every_step_can_be_reached_and_every_step_can_end():
    assert reachable(GangStep.QUEUED) == set(GangStep)
    assert all(GangStep.ENDED in reachable(step) for step in GangStep)
    assert not [before for before, _ in TRANSITIONS if before is GangStep.ENDED]


def test_the_diagram_has_every_transition():
    lines = states_diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(TRANSITIONS) + 3
    assert "    holding --> committing: held" in lines
