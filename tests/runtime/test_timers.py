"""What is to be done when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.dispatcher.durable.core.task import TaskTimers, TimerKind
from gangline.runtime.timers import TimerQueue

Timers = TimerQueue[tuple[str, ...]]


def test_timers_are_moved_and_cancelled_and_come_out_in_order():
    timers = Timers()
    timers.set(("a",), 3.0)
    timers.set(("b",), 1.0)
    timers.set(("c",), 2.0)
    timers.set(("b",), 2.5)
    timers.cancel(("c",))
    assert timers.next_at == 2.5
    assert list(timers.due(2.4)) == []
    assert list(timers.due(9.0)) == [("b",), ("a",)]
    assert timers.next_at is None


def test_what_becomes_due_while_looking_comes_too():
    timers = Timers()
    timers.set(("a",), 1.0)
    seen = []
    for name in timers.due(2.0):
        seen.append(name)
        if len(seen) == 1:
            timers.set(("b",), 1.5)
    assert seen == [("a",), ("b",)]


def test_a_queue_whose_timers_are_moved_often_does_not_grow():
    timers = Timers()
    for number in range(10_000):
        timers.set(("a",), float(number))
    assert len(timers._heap) < 200
    assert timers.next_at == 9_999.0


def test_all_that_is_to_be_done_about_one_task_is_forgotten_together():
    timers = TaskTimers()
    timers.set((TimerKind.RETRY, 1), 5.0)
    timers.set((TimerKind.DEADLINE, 2), 3.0)
    timers.set((TimerKind.RETRY, 1), 2.0)
    timers.set((TimerKind.TIMEOUT, 3), 9.0)
    timers.set((TimerKind.MISFIT, 4), 1.0)
    timers.set((TimerKind.DEADLINE, 4), 1.0)
    timers.forget(4)
    assert list(timers.due(4.0)) == [(TimerKind.RETRY, 1), (TimerKind.DEADLINE, 2)]
    assert timers.next_at == 9.0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.just("due"), st.integers(0, 20)))))
def test_it_behaves_like_a_sorted_dictionary(steps):
    timers, plain = Timers(), {}
    for name, at in steps:
        if at is None:
            timers.cancel((name,))
            plain.pop((name,), None)
        elif at == "due":
            expected = sorted((when, key) for key, when in plain.items() if when <= 10)
            assert list(timers.due(10)) == [key for _, key in expected]
            plain = {key: when for key, when in plain.items() if when > 10}
        else:
            timers.set((name,), float(at))
            plain[name,] = float(at)
    assert set(timers) == set(plain) and bool(timers) == bool(plain)
    assert timers.next_at == min(plain.values(), default=None)
    assert all(timers.at(key) == at for key, at in plain.items())
