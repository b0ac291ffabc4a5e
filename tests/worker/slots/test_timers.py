"""The heap of things that fall due."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.runtime.timers import NEVER, DeadlineHeap


class Item:
    def __init__(self, due_at: float) -> None:
        self.due_at = due_at
        self.queued_at = NEVER


def test_what_is_over_before_anybody_looks_is_gone_at_the_first_look_and_may_come_again():
    heap: DeadlineHeap[Item] = DeadlineHeap()
    items = [Item(1.0 + number) for number in range(1000)]
    for item in items:
        heap.push(item)
    for item in items[1:]:
        item.due_at = NEVER
    assert heap.next_at() == 1.0
    assert len(heap) == 1
    items[5].due_at = 0.5
    heap.push(items[5])
    assert heap.pop_due(1.0) == [items[5], items[0]]


def test_a_look_drops_dead_entries_where_there_are_many_more_than_the_living():
    heap: DeadlineHeap[Item] = DeadlineHeap()
    first = Item(1.0)
    heap.push(first)
    items = [Item(10.0) for _ in range(1000)]
    for item in items:
        heap.push(item)
    heap.next_at()
    for item in items:
        item.due_at = NEVER
    assert heap.next_at(1) == 1.0
    assert len(heap) == 1


def test_dead_entries_do_not_pile_up():
    heap: DeadlineHeap[Item] = DeadlineHeap()
    for number in range(10_000):
        item = Item(1000.0 + number)
        heap.push(item)
        item.due_at = NEVER
        heap.compact(0)
    assert len(heap) <= 65


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "move", "kill", "pop", "compact"]), st.integers(0, 9), st.integers(0, 50))
    )
)
def test_it_behaves_like_a_plain_list_whatever_is_done_to_it(steps):
    heap: DeadlineHeap[Item] = DeadlineHeap()
    items = [Item(NEVER) for _ in range(10)]
    now = 0.0
    for what, which, value in steps:
        item = items[which]
        if what in ("push", "move"):
            item.due_at = now + value
            heap.push(item)
        elif what == "kill":
            item.due_at = NEVER
        elif what == "compact":
            heap.compact(sum(i.due_at != NEVER for i in items))
        else:
            now += value
            expected = {i for i in items if i.due_at <= now}
            due = heap.pop_due(now)
            assert set(due) == expected
            assert len(due) == len(expected)
            for i in due:
                i.due_at = NEVER
        living = [i.due_at for i in items if i.due_at != NEVER]
        next_at = heap.next_at()
        assert (next_at is None) == (not living)
        assert next_at is None or next_at <= min(living), "early rather than late"
