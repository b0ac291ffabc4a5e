"""Items of one try: in order, none twice, none left out."""

from __future__ import annotations

from gangline.dispatcher.durable.messages.entry import ItemTracker


def test_credit_is_given_for_what_is_stored_with_all_before_it() -> None:
    count = ItemTracker(known=True)
    for index in range(4):
        count.take(index)
    assert [count.stored(index) for index in (1, 0, 3, 2)] == [0, 2, 0, 2]
    assert count.credited == 4


def test_what_lacks_at_the_end_is_not_asked_for_twice_in_vain() -> None:
    count = ItemTracker(known=True)
    assert count.may_ask() and not count.may_ask()
    count.take(0)
    assert count.may_ask() and not count.may_ask()


def test_who_stands_still_is_looked_after_ever_more_rarely() -> None:
    count = ItemTracker(known=True)
    assert not count.stands_still(), "the first look only counts"
    found = [number for number in range(1, 17) if count.stands_still()]
    assert found == [1, 2, 4, 8, 16]
    count.take(0)
    assert [count.stands_still() for _ in range(3)] == [False, True, True]


def test_what_does_not_come_is_asked_for_ever_later_and_not_for_ever() -> None:
    count = ItemTracker(known=True)
    count.take(0)
    assert [count.ask_after_s() for _ in range(8)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, None, None]
    count.take(1)
    assert count.ask_after_s() == 0.0, "something came in between"
