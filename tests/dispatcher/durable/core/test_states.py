"""The table of steps."""

from __future__ import annotations

from gangline.dispatcher.durable.core.task import NEXT, TOLD, TaskStep, states_diagram


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
