"""Tasks that were read beyond the window, and may be delivered by the consumer later."""

from __future__ import annotations

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.messages.submission import Submission

from ....support.durable.world import World


def crowded() -> World:
    """The tenant `lab` fills the window of four; `shop` has a task behind it."""
    world = World(settings=DispatcherSettings(node="n", window_tasks=4))
    world.pool()
    world.open()
    for _ in range(8):
        world.submit(tenant="lab")
    world.submit("hidden", tenant="shop")
    world.flush()
    return world


def test_the_queue_is_crowded_until_the_window_has_room_and_the_stream_has_no_more():
    world = crowded()
    assert world.core.crowded
    world.credit(8)
    for _ in range(9):
        world.settle_all()
    assert not world.core.crowded
    assert not world.stream


def test_a_task_that_was_read_starts_at_its_turn_and_takes_no_room_in_the_window():
    world = crowded()
    world.read_ahead(9)
    assert world.ahead == ["hidden"]
    world.credit(2)
    assert [job for job, _ in world.started] == ["j1", "hidden"]
    world.settle("hidden")
    assert 9 in world.acked
    assert not world.ahead


def test_a_task_that_was_read_counts_in_the_window_when_it_is_delivered_and_is_not_started_again():
    world = crowded()
    world.read_ahead(9)
    world.credit(2)
    for _ in range(8):
        for run in [run for run in world.runs if not run.ended and run.job != "hidden"]:
            world.end(run.job)
        world.flush()
    assert world.stream[9].delivered
    assert not world.ahead
    assert [job for job, _ in world.started].count("hidden") == 1
    assert world.core.statistics().seen == 1


def test_a_delivery_that_comes_after_the_message_was_removed_is_acknowledged_and_starts_nothing():
    world = crowded()
    world.read_ahead(9)
    world.credit(2)
    world.settle("hidden")
    submission = Submission(endpoint="e", method="run", job="hidden", tenant="shop", published_at=1000.0)
    effects = world.core.handle(on.TaskArrived(now=world.now, wall=world.now, seq=9, submission=submission, size=100))
    assert [effect for effect in effects if isinstance(effect, do.Ack)] == [do.Ack(seq=9, job="", tried=False)]
    assert not [effect for effect in effects if isinstance(effect, do.StartAttempt)]
    world.core.check()


def test_a_task_that_was_delivered_is_not_read_again():
    world = crowded()
    world.read_ahead(1)
    assert not world.ahead
    world.core.check()
