"""Golden transcripts: what the core decides, event by event, in the main stories of durable tasks.

After a change that is meant, write them anew with `GOLDEN=write pytest tests/dispatcher/durable/core/test_stories.py`
and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.dispatcher.durable.core import events as on
from gangline.schemas.errors.base import InvalidArguments, LeaseExpired, TaskFailed
from gangline.schemas.records.routes import QueueRules, RouteRecord

from ....support.durable.world import World

GOLDEN = Path(__file__).parent / "golden"
STORIES: dict[str, Callable[[World], None]] = {}


def story(function: Callable[[World], None]) -> Callable[[World], None]:
    STORIES[function.__name__] = function
    return function


def begin(world: World, *free: int, **rules) -> None:
    world.reroute(RouteRecord(queue=QueueRules(**rules)))
    world.pool()
    world.open()
    world.credit(*free)
    world.story.clear()


@story
def a_task_fails_once_and_is_done(world: World) -> None:
    begin(world, 1)
    world.arrive("a", events=True)
    world.end("a", TaskFailed("no"))
    world.advance(1.0)
    world.settle("a")


@story
def a_poisonous_task_becomes_a_dead_letter(world: World) -> None:
    begin(world, 1, max_attempts=3)
    world.arrive("a")
    for _ in range(3):
        world.end("a", TaskFailed("poison"))
        world.advance(4.0)


@story
def wrong_arguments_and_nonsense_are_dead_at_once(world: World) -> None:
    begin(world, 1)
    world.arrive("a")
    world.end("a", InvalidArguments("width: not a number"))
    world.malformed("the body is no JSON")
    world.flush()


@story
def at_most_three_of_a_key_run(world: World) -> None:
    begin(world, 8, per_key=3)
    for number in range(5):
        world.arrive(f"a{number}", key="a")
    world.arrive("b", key="b")
    world.settle("a1")
    world.tell(on.Cancel, job="a0")
    world.settle("a0")


@story
def an_ordered_key_waits_through_a_retry_and_goes_on_after_a_death(world: World) -> None:
    begin(world, 4, max_attempts=2)
    world.arrive("first", key="k", ordered=True)
    world.arrive("second", key="k", ordered=True, priority=5)
    world.end("first", TaskFailed("no"))
    world.advance(1.0)
    world.settle("first", TaskFailed("no again"))
    world.settle("second")


@story
def a_takeover_attaches_to_what_runs_and_starts_the_rest(world: World) -> None:
    begin(world, 2, max_running=2)
    world.arrive("a")
    world.arrive("b", backoff_s=8.0)
    world.arrive("c", "d")
    world.end("b", TaskFailed("no"))
    world.deliver()
    world.end("a")
    world.take_over(flush=False)
    world.credit(2)
    world.flush()
    world.settle("d")


@story
def a_dispatcher_dies_after_the_result_and_before_the_acknowledgement(world: World) -> None:
    begin(world, 1)
    world.arrive("a")
    world.end("a")
    world.die(applied=lambda: True)
    world.open()


@story
def a_task_is_cancelled_in_line_while_it_runs_and_while_it_waits(world: World) -> None:
    begin(world, 1)
    world.arrive("runs", "lined")
    world.tell(on.Cancel, job="lined")
    world.tell(on.Cancel, job="runs")
    world.settle("runs")
    world.arrive("waits")
    world.end("waits", TaskFailed("no"))
    world.tell(on.Cancel, job="waits")
    world.flush()


@story
def a_rate_lets_one_start_every_half_second(world: World) -> None:
    begin(world, 8, rate_per_s=2.0)
    world.arrive("a", "b", "c")
    world.advance(2.0)


@story
def a_deadline_passes_in_line_and_while_it_runs(world: World) -> None:
    begin(world, 1)
    world.arrive("runs", deadline_at=world.now + 2.0)
    world.arrive("lined", deadline_at=world.now + 1.0)
    world.advance(2.0)
    world.settle("runs")


@story
def a_lease_ends_before_the_task_gets_there(world: World) -> None:
    begin(world, 1)
    world.arrive("a")
    world.refuse("a", LeaseExpired("its time ran out"))
    world.settle("a")


@story
def the_queue_is_in_doubt_and_ours_after_all(world: World) -> None:
    begin(world, 2)
    world.arrive("a")
    world.tell(on.OwnershipDoubted)
    world.end("a")
    world.arrive("b")
    world.advance(0.5)
    world.tell(on.OwnershipConfirmed)
    world.flush()


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_as_it_was_written(name: str) -> None:
    world = World(explicit=True)
    STORIES[name](world)
    found = "\n".join(world.story) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(found)
    assert found == file.read_text()


def test_no_transcript_is_left_without_its_story() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(STORIES)
