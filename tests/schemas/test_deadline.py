"""The deadline that code runs under."""

from __future__ import annotations

import contextvars

from gangline.schemas.deadline import UNDER, current_deadline

from ..support.deadlines import Surrounding, deadline


def under(at: float | None) -> contextvars.Context:
    """A context that is a task's own."""
    variables = contextvars.copy_context()
    variables.run(UNDER.set, Surrounding(at))
    return variables


def test_there_is_none_outside_of_all_tasks():
    assert current_deadline() is None


def test_it_is_in_force_inside_the_block_and_the_outer_one_again_afterwards():
    with deadline(10.0):
        with deadline(5.0):
            assert current_deadline() == 5.0
        assert current_deadline() == 10.0
    assert current_deadline() is None


def test_a_task_has_its_own_and_what_is_around_it_does_not_count():
    with deadline(10.0):
        assert under(20.0).run(current_deadline) == 20.0
        assert under(None).run(current_deadline) is None


def test_a_deadline_that_is_moved_moves_for_all_who_ask():
    surrounding = Surrounding(20.0)
    variables = contextvars.copy_context()
    variables.run(UNDER.set, surrounding)
    surrounding.deadline = 15.0
    assert variables.run(current_deadline) == 15.0
