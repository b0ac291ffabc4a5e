"""The table of steps."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.core.task import NEXT, TOLD, TaskStep, move, states_diagram
from gangline.runtime.state_machine import IllegalMove


class Something:
    def __init__(self, step: TaskStep) -> None:
        self.seq, self.step = 1, step


def test_a_move_that_the_table_does_not_have_raises_and_changes_nothing():
    for before in TaskStep:
        for to in TaskStep:
            thing = Something(before)
            if to in NEXT[before]:
                move(thing, to)
                assert thing.step is to
            else:
                with pytest.raises(IllegalMove):
                    move(thing, to)
                assert thing.step is before


def test_every_step_leads_to_the_end_and_has_a_name_for_people():
    for step in TaskStep:
        reached, todo = set(), [step]
        while todo:
            current = todo.pop()
            reached.add(current)
            todo += [each for each in NEXT[current] if each not in reached]
        assert TaskStep.GONE in reached
    assert set(TaskStep) - set(TOLD) == {TaskStep.ACKING, TaskStep.GONE}


def test_the_diagram_shows_every_step():
    text = states_diagram()
    assert text.startswith("stateDiagram-v2\n    [*] --> new")
    assert "    running --> noting\n" in text and "    admitted --> running\n" in text
