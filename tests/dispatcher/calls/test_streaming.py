"""Streamed results: in order, complete, within the window, and stopped when nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gangline import errors
from gangline.schemas.wire.frames import AnswerOp, Frame, RequestOp, TaskFlag, TaskState

from ...support.dispatcher.fakes import FakeWorker, Rig, obedient, silent, turns


def yields(count: int, **changes: Any) -> Any:
    """Sends so many items at once, and the end."""

    def behave(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] != RequestOp.TASK:
            return obedient(worker, frame)
        items = [(AnswerOp.ITEM, frame[1], n, n * 10) for n in range(count)]
        for index in changes.get("without", ()):
            items[index] = None  # type: ignore[call-overload]
        doubled = [item for item in items if item for _ in range(changes.get("times", 1))]
        return [*doubled, (AnswerOp.END, frame[1], changes.get("says", count))]

    return behave


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize(("count", "times"), [(5, 1), (4, 2), (0, 1)], ids=["once", "twice", "none"])
async def test_items_come_in_order_to_the_end_and_once(rig: Rig, count: int, times: int) -> None:
    worker = await rig.worker(behave=yields(count, times=times))
    assert await collect(rig.client.stream("images.items", 5)) == [10 * number for number in range(count)]
    assert worker.heard_of(RequestOp.TASK)[0][8] & TaskFlag.STREAM
    assert worker.heard_of(RequestOp.CANCEL) == []


async def test_a_lost_item_breaks_the_stream_and_stops_the_task(rig: Rig) -> None:
    worker = await rig.worker(behave=yields(4, without=[2]))
    read = []
    with pytest.raises(errors.StreamBroken, match="item 2 is missing"):
        async for item in rig.client.stream("images.items"):
            read.append(item)
    assert read == [0, 10]
    await turns()
    assert len(worker.heard_of(RequestOp.CANCEL)) == 1


async def test_lost_last_items_break_the_stream(rig: Rig) -> None:
    await rig.worker(behave=yields(4, says=6))
    with pytest.raises(errors.StreamBroken, match="of 6 items sent, 4 arrived"):
        await collect(rig.client.stream("images.items"))


@pytest.mark.router(stream_window=8)
async def test_credit_is_given_as_items_are_read(rig: Rig) -> None:
    worker = await rig.worker(behave=yields(20))
    items = rig.client.stream("images.items")
    async with contextlib.aclosing(items):
        for _ in range(9):
            await anext(items)
        await turns()
    # The end was there before the first was read: nothing to give credit for.
    assert worker.heard_of(RequestOp.CREDIT) == []

    worker.behave = silent
    worker.heard.clear()
    items = rig.client.stream("images.items")
    reading = asyncio.ensure_future(anext(items))
    [task] = await worker.hears(RequestOp.TASK)
    assert task[9] == {"window": 8}, "a worker that went by its own would wait for credit that never comes"
    worker.answer(*((AnswerOp.ITEM, task[1], n, n) for n in range(8)))
    assert [await reading, *[await anext(items) for _ in range(7)]] == list(range(8))
    credits = await worker.hears(RequestOp.CREDIT, 2)
    assert credits == [[RequestOp.CREDIT, task[1], 4]] * 2
    await items.aclose()


class Meters:
    """A worker that sends so many items, as far as there is credit; what is lost with a connection is scripted."""

    def __init__(self, count: int, window: int, *, without: range = range(0), deaf_to: int = 0) -> None:
        self.left = list(range(count))
        self.count = count
        self.room = window
        self.uncredited = 0
        self.without = without
        """These items get lost."""
        self.deaf_to = deaf_to
        """So many CREDITs get lost."""

    def __call__(self, worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] == RequestOp.CHECK:
            return [(AnswerOp.CHECKED, frame[1], [int(TaskState.RUNNING)] * len(frame[2]))]
        if frame[0] == RequestOp.CREDIT:
            if self.deaf_to:
                self.deaf_to -= 1
                return None
            items = min(frame[2], self.uncredited)
            self.uncredited -= items
            self.room += items
            return self.send(frame[1])
        return self.send(frame[1]) if frame[0] == RequestOp.TASK else None

    def send(self, id: int) -> list[Frame]:
        going, self.left = self.left[: self.room], self.left[self.room :]
        self.room -= len(going)
        self.uncredited += len(going)
        answers: list[Frame] = [(AnswerOp.ITEM, id, n, n) for n in going if n not in self.without]
        return answers if self.left else [*answers, (AnswerOp.END, id, self.count)]


@pytest.mark.router(stream_window=8)
async def test_credit_that_was_lost_with_a_connection_is_given_again(rig: Rig) -> None:
    await rig.worker(behave=Meters(20, 8, deaf_to=2))
    async with asyncio.timeout(20):
        assert await collect(rig.client.stream("images.items")) == list(range(20))


@pytest.mark.router(stream_window=8)
async def test_the_last_items_of_a_window_are_missed_when_they_were_lost(rig: Rig) -> None:
    worker = await rig.worker(behave=Meters(20, 8, without=range(3, 8)))
    async with asyncio.timeout(20):
        with pytest.raises(errors.StreamBroken, match="item 3 is missing"):
            await collect(rig.client.stream("images.items"))
    await turns()
    assert len(worker.heard_of(RequestOp.CANCEL)) == 1


@pytest.mark.router(stream_window=8)
async def test_a_stream_of_which_nothing_is_read_gets_no_credit_for_that(rig: Rig) -> None:
    worker = await rig.worker(behave=Meters(20, 8))
    items = rig.client.stream("images.items")
    assert await anext(items) == 0
    await asyncio.sleep(60)
    assert worker.heard_of(RequestOp.CHECK) and not worker.heard_of(RequestOp.CREDIT)
    await items.aclose()


async def test_leaving_the_loop_early_cancels_the_task(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    items = rig.client.stream("images.items")
    reading = asyncio.ensure_future(anext(items))
    [task] = await worker.hears(RequestOp.TASK)
    worker.answer((AnswerOp.ITEM, task[1], 0, "first"))
    assert await reading == "first"
    await items.aclose()
    [cancel] = await worker.hears(RequestOp.CANCEL)
    assert cancel[1] == task[1]


async def test_an_error_comes_after_the_items_before_it(rig: Rig) -> None:
    def failing(worker: FakeWorker, frame: Frame) -> Any:
        return [(AnswerOp.ITEM, frame[1], 0, 1), (AnswerOp.ERROR, frame[1], "task_failed", "boom", None, True)]

    await rig.worker(behave=failing)
    read = []
    with pytest.raises(errors.TaskFailed):
        async for item in rig.client.stream("images.items"):
            read.append(item)
    assert read == [1]


async def test_a_worker_lost_in_the_middle_is_never_repeated(rig: Rig) -> None:
    worker = await rig.worker("w1", silent)
    read: list[Any] = []

    async def reading() -> None:
        async for item in rig.client.options(idempotent=True).stream("images.items"):
            read.append(item)

    task = asyncio.ensure_future(reading())
    [frame] = await worker.hears(RequestOp.TASK)
    worker.answer((AnswerOp.ITEM, frame[1], 0, "a"))
    await rig.worker("w2", yields(3))
    worker.stop_beating()
    with pytest.raises(errors.WorkerLost):
        await task
    assert read == ["a"]


async def test_before_the_first_item_an_idempotent_stream_is_repeated(rig: Rig) -> None:
    worker = await rig.worker("w1", silent)
    task = asyncio.ensure_future(collect(rig.client.options(idempotent=True).stream("images.items")))
    await worker.hears(RequestOp.TASK)
    await rig.worker("w2", yields(3))
    worker.stop_beating()
    assert await task == [0, 10, 20]


async def test_the_deadline_covers_the_whole_stream(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    task = asyncio.ensure_future(collect(rig.client.options(timeout_s=2).stream("images.items")))
    [frame] = await worker.hears(RequestOp.TASK)
    worker.answer((AnswerOp.ITEM, frame[1], 0, "a"))
    with pytest.raises(errors.DeadlineExceeded):
        await task
    await worker.hears(RequestOp.CANCEL)


async def test_a_task_that_does_not_stream_is_refused_before_anything_is_sent(rig: Rig) -> None:
    worker = await rig.worker()
    with pytest.raises(errors.InvalidRequest, match="images.echo does not stream.*use call"):
        await collect(rig.client.stream("images.echo"))
    async with rig.client.lease("images") as lease:
        with pytest.raises(errors.InvalidRequest, match="images.echo does not stream"):
            await collect(lease.stream("echo"))
    assert worker.heard_of(RequestOp.TASK) == []


async def test_a_task_that_turns_out_not_to_stream_is_refused_too(rig: Rig) -> None:
    waiting = asyncio.ensure_future(collect(rig.client.stream("images.echo")))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    worker = await rig.worker()  # only now it is known what the pool has
    with pytest.raises(errors.InvalidRequest, match="does not stream"):
        await waiting
    assert worker.heard_of(RequestOp.TASK) == []


async def test_one_result_instead_of_items_is_a_broken_stream(rig: Rig) -> None:
    await rig.worker()  # answers `items` with OK
    with pytest.raises(errors.StreamBroken, match="use call"):
        await collect(rig.client.stream("images.items"))


async def test_a_stream_on_a_lease(rig: Rig) -> None:
    worker = await rig.worker(behave=yields(3))
    async with rig.client.lease("images") as lease:
        assert await collect(lease.stream("items")) == [0, 10, 20]
        assert worker.heard_of(RequestOp.TASK)[0][6] == lease.token
        assert lease.used == 0


async def test_closing_the_client_ends_a_stream(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    task = asyncio.ensure_future(collect(rig.client.stream("images.items")))
    await worker.hears(RequestOp.TASK)
    await rig.client.close()
    with pytest.raises(errors.ClosedError):
        await task


# -- from a worker that was chosen --------------------------------------------------------------------------------


async def test_items_stream_from_a_worker_that_was_chosen_on_its_token(rig: Rig) -> None:
    worker = await rig.worker(behave=yields(3))
    async with rig.client.choose_worker("images") as selection:
        assert await collect(rig.client.stream(selection, "items", 3)) == [0, 10, 20]
        (task,) = worker.heard_of(RequestOp.TASK)
        assert task[6] == selection.token and task[8] & TaskFlag.STREAM and task[3] == [3]
        with pytest.raises(errors.SelectionUsed):
            await collect(rig.client.stream(selection, "items"))
    await turns()
    assert worker.heard_of(RequestOp.RELEASE) == [], "the task has used the slot up"
    with pytest.raises(errors.InvalidRequest, match="give the name of the method next"):
        rig.client.stream(selection)


async def test_leaving_a_stream_from_a_selection_early_stops_the_task_and_gives_the_slot_back(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.choose_worker("images") as selection:
        worker.behave = silent
        reading = asyncio.ensure_future(anext(rig.client.stream(selection, "items")))
        await turns()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    await turns()
    assert len(worker.heard_of(RequestOp.CANCEL)) == 1 and len(worker.heard_of(RequestOp.RELEASE)) == 1


async def test_what_cannot_be_sent_leaves_no_slot_behind(rig: Rig) -> None:
    worker = await rig.worker(behave=yields(3))
    async with rig.client.choose_worker("images") as selection:
        with pytest.raises(errors.InvalidRequest):
            await collect(rig.client.stream(selection, "items", object()))
    await turns()
    assert len(worker.heard_of(RequestOp.RELEASE)) == 1 and worker.heard_of(RequestOp.TASK) == []


async def test_a_stream_from_a_worker_that_has_gone_comes_from_another_one_and_tells_which(rig: Rig) -> None:
    first = await rig.worker(behave=yields(2))
    async with rig.client.choose_worker("images") as selection:
        chosen = selection.worker
        await rig.worker("w2", behave=yields(3))
        await first.die()
        assert await collect(rig.client.stream(selection, "items")) == [0, 10, 20]
        assert selection.worker == "images.w2" != chosen
