"""The engine alone: whom it asks for a try, what it repeats, and what it says of a doubt."""

from __future__ import annotations

from gangline.dispatcher.routing.outcome import TryOutcome, error_of_fate
from gangline.schemas.errors.base import WorkerLost

from ...support.rows import in_rows


@in_rows("fate", TryOutcome)
def test_the_error_of_a_fate_is_sure_that_nothing_started_or_says_that_it_may_have(fate):
    error = error_of_fate(fate, "images.w1", attempts=3)
    assert error.may_have_started == fate.may_have_started
    assert error.details == {"worker": "images.w1", "attempts": 3}
    assert "images.w1" in error.message
    if not fate.may_have_started:
        assert type(error_of_fate(fate, "images.w1", lost=[fate])) is WorkerLost


@in_rows("fate", [fate for fate in TryOutcome if fate.may_have_started])
def test_only_the_author_of_a_task_that_is_not_idempotent_is_told_to_mark_it_so(fate):
    advice = "mark the task idempotent"
    assert advice in error_of_fate(fate, "images.w1").message
    assert advice not in error_of_fate(fate, "images.w1", idempotent=True).message
