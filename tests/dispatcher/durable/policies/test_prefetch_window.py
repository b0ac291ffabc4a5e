"""How much is pulled."""

from __future__ import annotations

import random

from gangline.dispatcher.durable.policies.start_order import PrefetchWindow


def test_the_window_asks_in_batches_and_never_for_more_than_it_has_room_for():
    draw = random.Random(3)
    window, held = PrefetchWindow(count=64, bytes_=1 << 30), []
    on_its_way = asked = requests = 0
    for _ in range(5000):
        count = window.ask()
        on_its_way += count
        asked += count
        requests += bool(count)
        if on_its_way and draw.random() < 0.6:
            on_its_way -= 1
            window.delivered()
            window.add(100)
            held.append(100)
        elif held:
            window.remove(held.pop())
        assert len(held) + on_its_way <= 64
        assert window.asked == on_its_way
    assert asked / requests > 3


def test_a_window_full_of_bytes_asks_for_nothing():
    window = PrefetchWindow(count=1000, bytes_=100_000)
    window.ask()
    for _ in range(10):
        window.delivered()
        window.add(10_000)
    assert window.bytes == 100_000
    assert window.ask() == 0
    for _ in range(10):
        window.remove(10_000)
    assert window.ask() == 0  # what was asked for when messages were small is on its way


def test_no_more_is_on_its_way_at_once_than_is_said_and_requests_are_for_half_of_that():
    window = PrefetchWindow(count=4096, bytes_=1 << 30)
    assert window.ask(128) == 128
    asked = []
    for _ in range(4096):
        window.delivered()
        window.add(100)
        asked.append(window.ask(128))
    assert [count for count in asked if count] == [64] * 62
    assert window.asked == 0
    for _ in range(63):
        window.remove(100)
        assert window.ask(128) == 0
    window.remove(100)
    assert window.ask(128) == 64
