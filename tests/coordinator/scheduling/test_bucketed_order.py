from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.coordinator.model.timers import Agenda
from gangline.coordinator.scheduling.bucketed_order import Ranked


def test_the_highest_come_first_and_equals_in_the_order_they_came():
    ranked: Ranked[str] = Ranked()
    for key, level in [("a", 1), ("b", 3), ("c", 3), ("d", 0)]:
        ranked.set(key, level)
    assert list(ranked.descending(1)) == ["b", "c", "a"]
    assert list(ranked.ascending(1)) == ["a", "b", "c"]
    assert ranked.top == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 4)))), st.integers(0, 5))
def test_it_is_a_sorted_dictionary(steps, floor):
    ranked: Ranked[int] = Ranked()
    plain: dict[int, int] = {}
    for key, level in steps:
        if level is None:
            ranked.discard(key)
            plain.pop(key, None)
        else:
            ranked.set(key, level)
            plain[key] = level
    there = {key: level for key, level in plain.items() if level >= floor}
    assert {key: ranked.get(key) for key in ranked.descending(floor)} == there
    assert [ranked.get(key) for key in ranked.descending(floor)] == sorted(there.values(), reverse=True)
    assert [ranked.get(key) for key in ranked.ascending(floor)] == sorted(there.values())
    assert (len(ranked), ranked.top) == (len(plain), max(plain.values(), default=0))


def test_an_agenda_moves_cancels_and_gives_what_is_due_in_order():
    agenda = Agenda()
    agenda.set(("a",), 3.0)
    agenda.set(("b",), 1.0)
    agenda.set(("c",), 2.0)
    agenda.set(("b",), 2.5)
    agenda.cancel(("c",))
    assert agenda.next_at == 2.5
    assert list(agenda.due(2.4)) == []
    assert list(agenda.due(9.0)) == [("b",), ("a",)]
    assert agenda.next_at is None


def test_what_becomes_due_while_looking_comes_too():
    agenda = Agenda()
    agenda.set(("a",), 1.0)
    seen = []
    for name in agenda.due(2.0):
        seen.append(name)
        if len(seen) == 1:
            agenda.set(("b",), 1.5)
    assert seen == [("a",), ("b",)]


def test_an_agenda_that_is_moved_often_does_not_grow():
    agenda = Agenda()
    for number in range(10_000):
        agenda.set(("a",), float(number))
    assert len(agenda._heap) < 200
    assert agenda.next_at == 9_999.0
