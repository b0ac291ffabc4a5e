"""Golden transcripts: what the core decides, event by event, in the main stories of gangs.

After a change that is meant, write them anew with `GOLDEN=write pytest tests/coordinator/core/test_stories.py` and
read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.coordinator.model import events as on
from gangline.schemas.messages.gangs import MemberCause

from ...support.coordinator.model import SimWorker
from ...support.coordinator.world import World

GOLDEN = Path(__file__).parent / "golden"
STORIES: dict[str, Callable[[World], None]] = {}


def story(function: Callable[[World], None]) -> Callable[[World], None]:
    STORIES[function.__name__] = function
    return function


def begin(world: World, *slots: int) -> list[SimWorker]:
    workers = [world.add_worker(f"w{number}", count) for number, count in enumerate(slots)]
    world.elect(flush=True)
    world.story.clear()
    return workers


@story
def a_gang_forms_and_is_released(world: World) -> None:
    begin(world, 2, 2)
    world.acquire("a", 3, flush=True)
    world.release("a", flush=True)


@story
def a_gang_with_a_range_of_sizes_has_as_many_members_as_there_is_room_for(world: World) -> None:
    workers = begin(world, 2, 2, 1)
    world.acquire("a", (2, 4), backoff_s=0.0, flush=True)
    world.acquire("b", 1, flush=True)
    world.crash(workers[1], noticed=True)
    world.advance(0.1)
    world.restart(workers[1], flush=True)
    world.report(workers[0], "a", MemberCause.FAILED)
    world.advance(0.1)


@story
def a_hold_is_refused_and_tried_again(world: World) -> None:
    workers = begin(world, 1, 1)
    workers[1].plain = 1  # the view does not know yet
    world.acquire("a", 2, flush=True)
    workers[1].plain = 0
    world.heartbeat(workers[1])
    world.advance(0.2)


@story
def a_commit_is_refused_because_a_worker_registered_anew(world: World) -> None:
    workers = begin(world, 1, 1)
    world.acquire("a", 2)
    for _ in range(4):
        world.deliver()
    world.register(workers[0])
    world.flush()
    world.advance(0.1)


@story
def a_member_crashes_and_the_gang_is_generation_2(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("a", 2, flush=True)
    worker = world.holder("a")
    world.report(worker, "a", flush=True)
    world.advance(0.49)


@story
def both_members_crash_and_it_counts_once(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("a", 2, flush=True)
    for worker in world.workers.values():
        world.report(worker, "a")
    world.flush()
    world.advance(0.49)
    found = world.core.get("a")
    assert found is not None
    assert (found.generation, found.restarts) == (2, 1)


@story
def the_owner_dies(world: World) -> None:
    begin(world, 2)
    world.acquire("a", 2, ttl_s=1.0, flush=True)
    world.advance(0.8)
    world.renew("a")
    world.advance(1.1)


@story
def the_coordinator_dies_before_the_batch_is_written(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("a", 2)
    for _ in range(4):
        world.deliver()
    assert world.network[0][0] == "commit form a"
    world.elect(keep_zombie=True, flush=True)
    world.acquire("a", 2)
    for worker in world.workers.values():
        world.heartbeat(worker)
    world.flush()


@story
def the_coordinator_dies_after_the_batch_and_before_it_tells(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("a", 2)
    for _ in range(5):
        world.deliver()
    assert world.network[0][0] == "acked form a"
    world.elect(flush=True)
    world.acquire("a", 2)


@story
def the_fate_of_a_commit_is_unknown(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("a", 2)
    for _ in range(5):
        world.deliver()
    world.lose()
    world.flush()


@story
def a_standing_gang_moves_away_from_a_draining_worker(world: World) -> None:
    begin(world, 1, 1, 1, 1)
    world.declare("web", 1, size=2, flush=True)
    worker = world.holder()
    worker.draining = True
    world.register(worker)
    world.flush()
    world.advance(2.1)


@story
def a_replacement_finds_no_room_and_comes_in_the_place_of_the_old_gang(world: World) -> None:
    begin(world, 1, 1)
    world.declare("web", 1, size=2, retire_s=0.2)
    world.advance(0.1)
    world.acquire("a", 1)
    world.story.clear()
    world.declare("web", 1, size=2, owner="version 2", surge_wait_s=0.8, retire_s=0.2)
    world.advance(1.2)
    assert world.states() == {"a": "queued", "web-1-2": "formed"}


@story
def a_gang_leaves_a_draining_worker_though_there_is_no_room_elsewhere(world: World) -> None:
    begin(world, 1, 1)
    world.declare("web", 1, size=2, flush=True)
    world.story.clear()
    draining = next(iter(world.workers.values()))
    world.drain(draining, 5.0)
    world.advance(2.0)
    assert not draining.members
    world.restart(draining, flush=True)
    assert world.states() == {"web-1-2": "formed"}


@story
def a_roll_waits_for_gangs_that_are_ready(world: World) -> None:
    begin(world, 1, 1)
    world.declare("web", 1, size=1)
    world.advance(1.5)
    world.story.clear()
    world.slow_starts = lambda gang, worker: True
    world.declare("web", 1, size=1, owner="version 2", retire_s=0.2)
    world.advance(0.4)
    world.start_all("web-1-2")
    world.advance(1.5)
    assert world.states() == {"web-1-2": "formed"}


@story
def a_roll_to_gangs_that_fail_at_their_start_is_stopped(world: World) -> None:
    begin(world, 1, 1)
    world.declare("web", 1, size=1)
    world.advance(1.5)
    world.story.clear()
    world.slow_starts = lambda gang, worker: True
    world.declare("web", 1, size=1, owner="version 2", roll_failures=2, backoff_s=0.1)
    for _ in range(2):
        world.advance(0.2)
        world.fail_starts("web-1-2")
    world.advance(0.2)
    assert world.states() == {"web-1-1": "formed"}


@story
def only_the_lost_member_is_replaced(world: World) -> None:
    begin(world, 1, 1, 1)
    world.acquire("a", 2, restart="restart_member", strategy="spread", flush=True)
    worker = world.holder()
    world.crash(worker)
    world.to_leader(on.WorkerGone, worker=worker.id, reason="heartbeat expired")
    world.flush()


@story
def a_gang_of_higher_priority_preempts(world: World) -> None:
    begin(world, 1, 1)
    world.acquire("low", 2, flush=True)
    world.acquire("high", 2, priority=1, preempt=True, flush=True)
    world.release("high", flush=True)


@story
def a_starving_gang_has_slots_kept(world: World) -> None:
    workers = begin(world, 1, 1)
    for worker in workers:
        worker.plain = 1
        world.heartbeat(worker)
    world.acquire("a", 2)
    world.advance(5.0)
    workers[0].plain = 0
    world.advance(0.5)
    workers[1].plain = 0
    world.advance(0.5)


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_as_it_was_written(name: str) -> None:
    world = World()
    STORIES[name](world)
    world.check()
    found = "\n".join(world.story) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(found)
    assert found == file.read_text()


def test_no_transcript_is_left_without_its_story() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(STORIES)
