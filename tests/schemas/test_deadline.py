"""The deadline that code runs under."""

from __future__ import annotations

import contextvars

from gangline.schemas.deadline import UNDER, current_deadline, deadline


class Surrounding:
    def __init__(self, at: float | None) -> None:
        self.deadline = at


def under(at: float | None) -> contextvars.Context:
    """A context that is a task's own."""
    variables = contextvars.copy_context()
    variables.run(UNDER.set, Surrounding(at))
    return variables


def test_there_is_none_outside_of_all_tasks():
    assert current_deadline() is None


def test_the_earlier_of_two_is_in_force_and_the_outer_one_again_afterwards():
    with deadline(10.0):
        with deadline(20.0):
            assert current_deadline() == 10.0
        with deadline(5.0):
            assert current_deadline() == 5.0
        with deadline(None):
            assert current_deadline() == 10.0
        assert current_deadline() == 10.0
    assert current_deadline() is None


def test_a_task_has_its_own_and_what_is_around_it_does_not_count():
    with deadline(10.0):
        assert under(20.0).run(current_deadline) == 20.0
        assert under(None).run(current_deadline) is None


def test_a_block_in_a_task_can_only_bring_it_forward():
    def inside() -> list[float | None]:
        seen = [current_deadline()]
        with deadline(30.0):
            seen.append(current_deadline())
        with deadline(7.0):
            seen.append(current_deadline())
        return [*seen, current_deadline()]

    assert under(20.0).run(inside) == [20.0, 20.0, 7.0, 20.0]
    assert under(None).run(inside) == [None, 30.0, 7.0, None]


def test_a_deadline_that_is_moved_moves_for_all_who_ask():
    surrounding = Surrounding(20.0)
    variables = contextvars.copy_context()
    variables.run(UNDER.set, surrounding)
    surrounding.deadline = 15.0
    assert variables.run(current_deadline) == 15.0
