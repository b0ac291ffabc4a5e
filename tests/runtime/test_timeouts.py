"""Many waits by one timer."""

from __future__ import annotations

import asyncio

from gangline.runtime.failure_detector import TimeoutQueue


def alarms() -> tuple[TimeoutQueue[str], list[tuple[str, float]]]:
    """And what rang, with the time since now."""
    loop = asyncio.get_running_loop()
    began, rung = loop.time(), []
    return TimeoutQueue(lambda item: rung.append((item, round(loop.time() - began, 3)))), rung


async def test_each_rings_once_at_its_time():
    made, rung = alarms()
    now = asyncio.get_running_loop().time()
    made.add("a", now + 1.0)
    made.add("b", now + 1.5)
    await asyncio.sleep(3)
    assert rung == [("a", 1.0), ("b", 1.5)]
    assert len(made) == 0


async def test_what_was_dropped_does_not_ring():
    made, rung = alarms()
    now = asyncio.get_running_loop().time()
    for number in range(100):
        made.add(str(number), now + 1.0)
    for number in range(99):
        made.drop(str(number))
    assert not made.drop("unknown") and list(made) == ["99"]
    await asyncio.sleep(2)
    assert rung == [("99", 1.0)]


async def test_one_that_is_overtaken_rings_with_those_before_it():
    made, rung = alarms()
    now = asyncio.get_running_loop().time()
    made.add("first", now + 1.0)
    made.add("sooner", now + 0.9)
    await asyncio.sleep(2)
    assert rung == [("first", 1.0), ("sooner", 1.0)]


async def test_a_ring_may_add_and_drop_others():
    rung: list[str] = []
    loop = asyncio.get_running_loop()

    def ring(item: str) -> None:
        rung.append(item)
        if item == "a":
            made.add("c", loop.time() + 1.0)

    made: TimeoutQueue[str] = TimeoutQueue(ring)
    made.add("a", loop.time() + 1.0)
    await asyncio.sleep(5)
    assert rung == ["a", "c"]


async def test_closed_it_rings_no_more():
    made, rung = alarms()
    made.add("a", asyncio.get_running_loop().time() + 1.0)
    made.close()
    made.close()
    await asyncio.sleep(2)
    assert rung == []
