"""VirtualLoop: time, order, executors, nodes."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings

import pytest

from gangline.testing import loop as loop_module
from gangline.testing.loop import Deadlock, NodeClock, VirtualLoop, VirtualTimeout, current_node, node_context


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_an_hour_passes_at_once(loop):
    start = loop.time()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == start + 3600


def test_timers_of_one_instant_fire_in_the_order_they_were_set(loop):
    seen = []
    for number in range(20):
        loop.call_at(1010.0, seen.append, number)
    loop.run_until_complete(asyncio.sleep(11))
    assert seen == list(range(20))


def test_a_cancelled_timer_moves_no_time(loop):
    loop.call_later(50, print).cancel()
    loop.run_until_complete(asyncio.sleep(1))
    assert loop.time() == 1001


def test_a_deadlock_names_who_waits(loop):
    async def stuck():
        await loop.create_future()

    async def main():
        await asyncio.create_task(stuck(), name="the-stuck-one")

    with pytest.raises(Deadlock, match="the-stuck-one.*stuck"):
        loop.run_until_complete(main())


def test_the_limit_ends_an_endless_wait():
    loop = VirtualLoop(limit_s=100)

    async def forever():
        for _ in range(1_000_000):
            await asyncio.sleep(1)

    with pytest.raises(VirtualTimeout, match="forever"):
        loop.run_until_complete(forever())
    loop.close()


def test_an_endless_circle_without_time_is_ended(monkeypatch):
    monkeypatch.setattr(loop_module, "MAX_CALLBACKS_AT_ONCE", 1000)
    loop = VirtualLoop()

    async def spin():
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    with pytest.raises(VirtualTimeout, match="time has not moved"):
        loop.run_until_complete(spin())
    loop.close()


def test_time_stands_still_while_a_thread_works(loop):
    def work():
        time.sleep(0.05)
        return "done"

    async def main():
        before = loop.time()
        result = await loop.run_in_executor(None, work)
        return result, loop.time() - before

    loop.call_later(10, print)
    assert loop.run_until_complete(main()) == ("done", 0)


def test_a_job_nobody_waits_for_holds_no_time(loop):
    free = threading.Event()

    async def main():
        job = loop.run_in_executor(None, free.wait)
        await asyncio.sleep(0)
        job.cancel()
        await asyncio.sleep(5)
        free.set()

    loop.run_until_complete(main())
    assert loop.time() == 1005


def test_nodes_are_inherited_by_tasks_and_callbacks(loop):
    seen = []

    async def child():
        seen.append(current_node())
        loop.call_soon(lambda: seen.append(current_node()))

    async def main():
        await loop.spawn("n1", child())
        await asyncio.sleep(0)
        seen.append(current_node())

    loop.run_until_complete(main())
    assert seen == ["n1", "n1", None]


def test_a_frozen_node_gets_its_messages_before_its_timers_and_time_went_on(loop):
    seen = []

    async def main():
        context = node_context("n1")
        loop.call_later(1, lambda: seen.append(("timer", loop.time() - 1000)), context=context)
        loop.freeze("n1")
        await asyncio.sleep(5)
        loop.call_soon(lambda: seen.append(("message", loop.time() - 1000)), context=context)
        await asyncio.sleep(1)
        assert seen == []
        loop.thaw("n1")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert seen == [("message", 6), ("timer", 6)]


def test_what_comes_for_a_node_in_the_turn_in_which_it_thaws_comes_last(loop):
    seen = []

    async def main():
        context = node_context("n1")
        loop.freeze("n1")
        loop.call_soon(seen.append, "connection lost", context=context)
        await asyncio.sleep(1)
        loop.call_soon(seen.append, "connection regained", context=context)
        loop.thaw("n1")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert seen == ["connection lost", "connection regained"]


def test_a_crashed_node_runs_nothing_any_more_not_even_finally(loop):
    seen = []

    async def work():
        try:
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def main():
        task = loop.spawn("n1", work())
        await asyncio.sleep(0.5)
        loop.crash("n1")
        task.cancel()
        await asyncio.sleep(5)
        assert seen == []

    loop.run_until_complete(main())


def test_what_crashed_nodes_leave_behind_is_collected_without_a_complaint():
    loop = VirtualLoop()

    async def more():
        await asyncio.sleep(1)

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            loop.create_task(more())

    async def main():
        loop.spawn("n1", work())
        await asyncio.sleep(0.5)
        loop.crash("n1")

    loop.run_until_complete(main())
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    assert [str(warning.message) for warning in said] == []


def test_sets_of_tasks_have_the_same_order_every_time():
    async def main():
        tasks = {asyncio.create_task(asyncio.sleep(1), name=str(number)) for number in range(50)}
        order = [task.get_name() for task in tasks]
        await asyncio.wait(tasks)
        return order

    orders = []
    for _ in range(3):
        clutter = [object() for _ in range(len(orders) * 1000)]
        loop = VirtualLoop()
        orders.append(loop.run_until_complete(main()))
        loop.close()
        del clutter
    assert orders[0] == orders[1] == orders[2]


async def test_async_tests_run_on_virtual_time():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with asyncio.timeout(2000):
        await asyncio.sleep(1500)


@pytest.mark.realtime
async def test_marked_tests_run_on_the_real_loop():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "ahead_s"), [(0.9, 1e6), (1.0, 0.0), (2.0, 1e6)])
def test_a_node_waits_by_its_own_clock(rate, ahead_s):
    loop = VirtualLoop()
    loop.set_clock("w1", NodeClock(rate, ahead_s))
    seen = []

    async def wait():
        began, true = loop.time(), loop.true_time
        await asyncio.sleep(9.0)
        seen.append((loop.time() - began, loop.true_time - true))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(9.0):
                await asyncio.sleep(100.0)
        seen.append((loop.time() - began, loop.true_time - true))

    loop.run_until_complete(loop.spawn("w1", wait()))
    loop.close()
    assert seen == [pytest.approx((9.0, 9.0 / rate)), pytest.approx((18.0, 18.0 / rate))]


def test_a_timer_never_fires_before_its_nodes_time_for_it():
    loop = VirtualLoop()
    early = []
    for number in range(200):
        node = f"w{number}"
        loop.set_clock(node, NodeClock(0.9 + number / 1000, number * 13_007.3))
        context = node_context(node)
        due = context.run(loop.time) + 0.1 + number / 7
        loop.call_at(due, lambda due=due: loop.time() < due and early.append(due), context=context)
    loop.call_later(60.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert early == []


def test_clocks_of_nodes_touch_nobody_else():
    loop = VirtualLoop()
    loop.set_clock("w1", NodeClock(2.0, 500.0))
    assert loop.time() == loop.true_time == node_context("w2").run(loop.time)
    assert node_context("w1").run(loop.time) == loop.true_time + 500.0
    loop.close()
