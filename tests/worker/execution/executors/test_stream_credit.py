"""Room for items, between a thread that takes and a thread that gives."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from gangline.schemas.errors.base import TaskCancelled
from gangline.worker.execution.executors.blocking_stream import StreamCredit

from ....support.rows import in_rows

PATIENCE_S = 10


def test_room_that_is_there_is_taken_without_a_wait():
    parked = []
    room = StreamCredit(3, on_park=lambda: parked.append(True))
    for _ in range(3):
        room.take()
    assert not parked


def test_a_taker_without_room_parks_until_somebody_gives():
    parked = threading.Event()
    story: list[str] = []

    def park() -> None:
        story.append("park")
        parked.set()

    room = StreamCredit(0, on_park=park, on_unpark=lambda: story.append("unpark"))

    def take() -> None:
        room.take()
        story.append("taken")

    taker = threading.Thread(target=take)
    taker.start()
    assert parked.wait(PATIENCE_S)
    room.add(0)
    assert story == ["park"]
    room.add(1)
    taker.join(PATIENCE_S)
    assert story == ["park", "unpark", "taken"]


def test_a_debt_must_be_paid_before_there_is_room():
    room = StreamCredit(-2)
    room.add(2)
    with pytest.raises(TaskCancelled):
        room.close(TaskCancelled("done"))
        room.take()
    room = StreamCredit(-2)
    room.add(3)
    room.take()


def test_closing_wakes_a_parked_taker_with_the_first_reason():
    parked = threading.Event()
    room = StreamCredit(0, on_park=parked.set)
    raised: list[BaseException] = []

    def take() -> None:
        try:
            room.take()
        except TaskCancelled as error:
            raised.append(error)

    taker = threading.Thread(target=take)
    taker.start()
    assert parked.wait(PATIENCE_S)
    reason = TaskCancelled("first")
    room.close(reason)
    room.close(TaskCancelled("second"))
    taker.join(PATIENCE_S)
    assert raised == [reason]
    room.add(5)
    with pytest.raises(TaskCancelled, match="first"):
        room.take()


async def test_a_coroutine_waits_without_blocking_its_loop():
    room = StreamCredit(1)
    await room.take_async()
    taking = asyncio.create_task(room.take_async())
    await asyncio.sleep(1)
    assert not taking.done()
    room.add(1)
    await taking
    taking = asyncio.create_task(room.take_async())
    await asyncio.sleep(1)
    room.close(TaskCancelled("over"))
    with pytest.raises(TaskCancelled):
        await taking


async def test_a_waiting_coroutine_can_be_cancelled_and_loses_no_room():
    room = StreamCredit(0)
    taking = asyncio.create_task(room.take_async())
    await asyncio.sleep(1)
    room.add(1)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await room.take_async()


@in_rows("seed", range(5))
def test_no_item_is_lost_or_taken_twice_between_two_threads(seed):
    rng = random.Random(seed)
    room = StreamCredit(2)
    total, taken = 2000, 0

    def take() -> None:
        nonlocal taken
        for _ in range(total):
            room.take()
            taken += 1

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    given = 2
    while given < total:
        step = min(rng.randint(1, 5), total - given)
        room.add(step)
        given += step
    taker.join(PATIENCE_S)
    assert taken == total
