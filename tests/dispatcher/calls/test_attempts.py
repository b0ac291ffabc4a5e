"""The engine alone: whom it asks for a try, what it repeats, and what it says of a doubt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.dispatcher.calls.attempts import AttemptLoop, AttemptTarget
from gangline.dispatcher.routing.outcome import TryOutcome, error_of_fate
from gangline.schemas.errors.base import GanglineError, Saturated, TaskFailed, WorkerLost

from ...support.rows import in_rows


class Scripted(AttemptTarget):
    """Each try comes to what is next in the script; an error ends it."""

    def __init__(self, *script: Any, doubt: bool = False, waits: bool = False) -> None:
        self.script = list(script)
        self.story: list[Any] = []
        self.doubt = doubt
        self.waits = waits

    @property
    def uncertain(self) -> bool:
        return self.doubt

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        if self.waits:
            return None
        self.story.append(fate)
        return self

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        await asyncio.sleep(1)
        self.story.append(("waited", fate))
        return self

    async def attempt(self, caller: AttemptLoop, span: Any) -> Any:
        outcome = self.script.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def settle(self, outcome: Any) -> TryOutcome | None:
        return outcome if isinstance(outcome, TryOutcome) else None

    @staticmethod
    def result(outcome: Any, /) -> Any:
        if isinstance(outcome, tuple):
            raise TaskFailed(outcome[0])
        return outcome


class Leads(Scripted):
    """Leads to another target."""

    def __init__(self, to: Scripted) -> None:
        super().__init__()
        self.to = to

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        return self.to.place_nowait(fate)


def run(target: AttemptTarget, **more: Any) -> Any:
    caller = AttemptLoop(None, 8)  # type: ignore[arg-type]  # what is scripted sends nothing
    return asyncio.run(caller.run(target, **more))


def test_a_target_is_asked_again_with_what_became_of_the_try_before():
    target = Scripted(TryOutcome.FULL, TryOutcome.STALE, "done")
    assert run(target) == "done"
    assert target.story == [None, TryOutcome.FULL, TryOutcome.STALE]


def test_one_that_has_to_wait_is_waited_for():
    target = Scripted(TryOutcome.FULL, "done", waits=True)
    assert run(target) == "done"
    assert target.story == [("waited", None), ("waited", TryOutcome.FULL)]


def test_a_first_try_that_was_made_elsewhere_is_settled_and_not_made_again():
    target = Scripted("second")
    assert run(target, tried=(target, "first")) == "first"
    assert run(target, tried=(target, TryOutcome.UNSEEN)) == "second"
    assert target.story == [TryOutcome.UNSEEN]


def test_the_target_that_takes_the_try_says_what_came_of_it():
    other = Scripted(TryOutcome.GONE, "there")
    assert run(Leads(other)) == "there"
    assert other.story == [None, TryOutcome.GONE]


@in_rows("end", [Saturated("none has room"), ("it failed",)])
def test_an_error_says_that_an_earlier_try_may_have_started(end):
    with pytest.raises(GanglineError) as caught:
        run(Scripted(TryOutcome.LOST, end, doubt=True))
    assert caught.value.may_have_started
    with pytest.raises(Saturated) as sure:
        run(Scripted(Saturated("none has room")))
    assert not sure.value.may_have_started


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
