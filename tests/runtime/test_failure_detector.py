"""Who is lost, and who is only silent: the laws of the failure detector."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.runtime.failure_detector import CONFIRM_S, LOOK_S, PROMPT_S, FailureDetector


def detector(unconfirmed_after_s: float = 30.0) -> FailureDetector[str]:
    return FailureDetector(unconfirmed_after_s)


def suspecting() -> FailureDetector[str]:
    """Since 10.0, of w1."""
    suspects = detector()
    suspects.suspect("w1", "silent", 10.0)
    return suspects


def answer(suspects: FailureDetector[str], at: float, *, alive: bool, after_s: float = 0.0) -> str | None:
    return suspects.answered("w1", asked_at=at, now=at + after_s, alive=alive)


def test_silence_alone_loses_nobody():
    suspects = detector()
    assert suspects.suspect("w1", "not heard of for 3 s", 10.0)
    assert not suspects.suspect("w1", "again", 11.0)
    assert suspects.unconfirmed(39.9) == [] and "w1" in suspects


def test_two_questions_that_are_answered_at_the_same_moment_are_one():
    """A server that wakes answers at once all that it was asked while it stood still."""
    suspects = suspecting()
    assert answer(suspects, 10.0, alive=False, after_s=0.9) is None
    assert answer(suspects, 10.5, alive=False, after_s=0.4) is None
    assert answer(suspects, 10.9 + CONFIRM_S, alive=False) is not None


def test_a_late_answer_says_nothing():
    suspects = suspecting()
    assert answer(suspects, 10.0, alive=False, after_s=PROMPT_S + 0.01) is None
    assert answer(suspects, 11.5, alive=False) is None  # it is the first that counts
    assert answer(suspects, 12.0, alive=False) is not None
    suspects.suspect("w1", "silent", 20.0)
    answer(suspects, 20.0, alive=False)
    assert answer(suspects, 20.5, alive=True, after_s=8.0) is None
    assert answer(suspects, 29.0, alive=False) is not None


def test_an_answer_to_a_question_about_an_earlier_suspicion_says_nothing_of_a_new_one():
    suspects = suspecting()
    suspects.clear("w1")
    suspects.suspect("w1", "silent", 10.4)
    assert suspects.answered("w1", asked_at=10.3, now=10.5, alive=False) is None
    assert answer(suspects, 10.5 + CONFIRM_S, alive=False) is None, "the first of this suspicion"
    assert answer(suspects, 10.5 + 2 * CONFIRM_S, alive=False) is not None


def test_a_ledger_that_says_nothing_leaves_it_unconfirmed_and_any_answer_that_counts_begins_anew():
    suspects = detector(unconfirmed_after_s=30.0)
    suspects.suspect("w1", "silent", 10.0)
    answer(suspects, 20.0, alive=True)
    answer(suspects, 30.0, alive=True, after_s=9.0)
    assert suspects.unconfirmed(49.9) == []
    assert suspects.unconfirmed(50.0) == ["w1"] and "w1" in suspects


def test_suspects_are_asked_about_in_turn_and_none_too_often():
    suspects = detector()
    assert suspects.due(10.0) is None
    suspects.suspect("w1", "silent", 10.0)
    suspects.suspect("w2", "silent", 10.0)
    assert [suspects.due(10.0), suspects.due(10.0), suspects.due(10.0)] == ["w1", "w2", None]
    assert [suspects.due(10.0 + LOOK_S), suspects.due(10.0 + LOOK_S)] == ["w1", "w2"]
    assert "suspects=2" in repr(suspects)


@given(
    st.lists(st.tuples(st.sampled_from(["gone", "gone", "alive", "late", "heard"]), st.floats(0.01, 1.0)), max_size=30)
)
def test_whoever_is_lost_was_gone_in_two_prompt_answers_with_nothing_between(steps):
    suspects, now = detector(), 0.0
    suspects.suspect("w1", "silent", now)
    gone_since: float | None = None
    for what, wait_s in steps:
        now += wait_s
        suspects.suspect("w1", "silent", now)
        if what == "heard":
            suspects.clear("w1")
            gone_since = None
        elif what == "late":
            assert answer(suspects, now, alive=False, after_s=PROMPT_S + 1) is None
        elif what == "alive":
            assert answer(suspects, now, alive=True) is None
            gone_since = None
        else:
            lost = answer(suspects, now, alive=False)
            assert (lost is not None) == (gone_since is not None and now - gone_since >= CONFIRM_S)
            gone_since = now if gone_since is None else gone_since
            if lost is not None:
                gone_since = None
