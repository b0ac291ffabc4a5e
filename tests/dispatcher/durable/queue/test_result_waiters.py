"""Who waits for results of a queue is told once, when they are stored, and within limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from pydantic import BaseModel

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.durable.core.effects import Persist, RecordKind
from gangline.dispatcher.durable.queue import result_waiters as module
from gangline.dispatcher.durable.queue.result_waiters import JobPlace, ResultWaiters
from gangline.schemas.errors.base import GanglineError, NoDispatcher, QueueFull
from gangline.schemas.messages.jobs import WaitReply, WaitRequest
from gangline.schemas.records.jobs import JobState, ResultRecord
from gangline.testing.loop import VirtualLoop

from ....scale import repetitions


class Asked:
    """Stands in for a Responder, and counts answers."""

    def __init__(self) -> None:
        self.replies: list[WaitReply] = []
        self.errors: list[Exception] = []

    def reply_json(self, encoded: bytes, model: type[BaseModel]) -> None:
        assert model is WaitReply
        self.replies.append(WaitReply.model_validate_json(encoded))

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    @property
    def told(self) -> dict[str, Any]:
        [reply] = self.replies
        return {record.job: record.result for record in reply.results}

    @property
    def look_up(self) -> set[str]:
        [reply] = self.replies
        return set(reply.look_up)

    @property
    def answers(self) -> int:
        return len(self.replies) + len(self.errors)


class PlacedWaiters:
    """Waiters of a queue in which each job is where the test says; by default it is fetched."""

    def __init__(self) -> None:
        self.places: dict[str, JobPlace] = {}
        self.waiters = ResultWaiters(
            MemoryServer().connect("d"), locate=lambda job, sequence: self.places.get(job, JobPlace.FETCHED)
        )

    def ask(self, *jobs: str, client: str = "c", wait_s: float = 2.0, sequences: tuple[int, ...] = ()) -> Asked:
        asked = Asked()
        request = WaitRequest(jobs=jobs, wait_s=wait_s, client=client, sequences=sequences)
        self.waiters.add(request, asked)  # type: ignore[arg-type]
        self.waiters.check()
        return asked

    def store(self, job: str, result: Any = None, *, seq: int = 0, state: JobState = JobState.DONE) -> None:
        final: Any = state
        record = ResultRecord(job=job, endpoint="work", method="echo", state=final, result=result)
        kind = RecordKind.RESULT if state is JobState.DONE else RecordKind.DEAD_LETTER
        effect = Persist(seq=seq, job=job, kind=kind, state=final, result_ttl_s=60.0)
        self.waiters.stored(effect, record.model_dump_json().encode())
        self.waiters.check()


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_all_results_of_a_turn_are_told_in_one_answer() -> None:
    placed = PlacedWaiters()
    asked, other = placed.ask("a", "b", "c"), placed.ask("d")
    placed.store("a", 1)
    placed.store("c", {"x": [2]})
    assert not asked.answers, "more may be stored in this turn"
    await turn()
    assert asked.told == {"a": 1, "c": {"x": [2]}} and not asked.look_up and not other.answers
    placed.store("b", 3)
    await asyncio.sleep(10)
    assert asked.answers == 1, "it is answered once; its client asks for the rest again"
    assert not placed.waiters._waits


async def test_a_client_is_told_of_a_job_under_the_id_that_it_asked_for() -> None:
    placed, asked = PlacedWaiters(), Asked()
    placed.places["e.t3-lab-c"] = JobPlace.UNSEEN
    ids = {f"e.t3-lab-{name}": f"e.{name}" for name in "abc"}
    placed.waiters.add(WaitRequest(jobs=tuple(ids), client="c"), asked, ids)  # type: ignore[arg-type]
    placed.store("e.t3-lab-a", {"job": "e.t3-lab-a"})
    placed.waiters.left("e.t3-lab-b")
    await turn()
    assert asked.told == {"e.a": {"job": "e.t3-lab-a"}} and asked.look_up == {"e.b"}
    unseen = Asked()
    placed.waiters.add(WaitRequest(jobs=("e.t3-lab-c",), client="c"), unseen, ids)  # type: ignore[arg-type]
    await asyncio.sleep(3)
    assert unseen.replies == [WaitReply(unseen=("e.c",))]
    placed.waiters.check()


async def test_a_result_that_came_before_the_request_is_told_if_it_is_of_the_same_message() -> None:
    placed = PlacedWaiters()
    placed.places["a"] = JobPlace.UNKNOWN
    placed.store("a", 1, seq=7)
    same, earlier, unsure = placed.ask("a", sequences=(7,)), placed.ask("a", sequences=(6,)), placed.ask("a")
    await turn()
    assert same.told == {"a": 1} and earlier.look_up == unsure.look_up == {"a"}
    await asyncio.sleep(6)
    late = placed.ask("a", sequences=(7,))
    await turn()
    assert late.look_up == {"a"}, "it is kept for a few seconds"


async def test_the_end_of_a_dead_task_is_not_kept_because_it_may_be_replayed() -> None:
    placed = PlacedWaiters()
    waiting = placed.ask("a", sequences=(7,))
    placed.store("a", seq=7, state=JobState.DEAD)
    placed.places["a"] = JobPlace.UNKNOWN
    later = placed.ask("a", sequences=(7,))
    await turn()
    assert list(waiting.told) == ["a"] and later.look_up == {"a"}


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 100)
    placed = PlacedWaiters()
    for number in range(120):
        placed.store(f"j{number}", seq=number + 1)
    assert len(placed.waiters._kept) == 100 and "j119" in placed.waiters._kept and "j0" not in placed.waiters._kept
    for number in range(100):
        placed.store(f"k{number}", "x" * 12_000, seq=number + 1)
    assert placed.waiters._kept_bytes <= 1024 * 1024


async def test_what_does_not_fit_into_an_answer_is_left_to_its_client_to_look_up() -> None:
    placed = PlacedWaiters()
    jobs = [f"j{number}" for number in range(40)]
    asked = placed.ask("large", *jobs)
    placed.store("large", "x" * 20_000)
    for job in jobs:
        placed.store(job, "x" * 10_000)
    await turn()
    assert "large" in asked.look_up and {*asked.told} | asked.look_up == {"large", *jobs}
    assert 20 < len(asked.told) < 30


async def test_a_client_that_waits_for_too_many_jobs_is_refused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CLIENT_JOBS", 4)
    monkeypatch.setattr(module, "MAX_JOBS", 6)
    placed = PlacedWaiters()
    placed.ask("a", "b", "c")
    with pytest.raises(QueueFull, match="this client waits for 3 jobs of this queue already, and 4 is the limit"):
        placed.ask("d", "e")
    placed.ask("d", "e", client="another")
    with pytest.raises(QueueFull, match="clients wait for 5 jobs"):
        placed.ask("f", "g", client="a third")
    placed.waiters.check()
    placed.store("a")
    await turn()
    placed.ask("d", "e")


async def test_when_the_queue_is_lost_everybody_is_answered_at_once() -> None:
    placed = PlacedWaiters()
    asked, due = placed.ask("a"), placed.ask("b")
    placed.store("b", 1)
    gone = NoDispatcher("changing hands")
    placed.waiters.close(gone)
    placed.waiters.close(gone)
    placed.store("a", 1)
    await asyncio.sleep(5)
    assert asked.errors == [gone] == due.errors and not asked.replies + due.replies
    with pytest.raises(NoDispatcher):
        placed.ask("a")


async def test_after_a_takeover_what_has_ended_before_is_not_waited_for() -> None:
    placed = PlacedWaiters()
    placed.places = dict.fromkeys("ab", JobPlace.UNSEEN)
    asked = placed.ask("a", "b")
    placed.places = {"a": JobPlace.UNKNOWN, "b": JobPlace.FETCHED}
    placed.waiters.locate_again()
    await turn()
    assert asked.look_up == {"a"} and not asked.told


NAMES = st.sampled_from("abcdef")


class Waiting(RuleBasedStateMachine):
    """Whatever happens in whatever order: one answer to each request, and nothing told that was not stored."""

    asked = Bundle("asked")

    @initialize()
    def begin(self) -> None:
        self.loop = VirtualLoop()
        self.stored: dict[str, int] = {}
        self.all: list[Asked] = []
        self.numbers: Iterator[int] = itertools.count(1)

        async def placed() -> PlacedWaiters:
            return PlacedWaiters()

        self.placed = self.loop.run_until_complete(placed())

    def _do(self, work: Any) -> None:
        async def do() -> None:
            work()

        self.loop.run_until_complete(do())

    @rule(target=asked, jobs=st.sets(NAMES, min_size=1), client=st.sampled_from("xy"), given=st.booleans())
    def ask(self, jobs: set[str], client: str, given: bool) -> Asked:
        asked = Asked()
        sequences = tuple(self.stored.get(job, 99) for job in sorted(jobs)) if given else ()

        def add() -> None:
            request = WaitRequest(jobs=tuple(sorted(jobs)), sequences=sequences, client=client)
            self.placed.waiters.add(request, asked)  # type: ignore[arg-type]

        self._do(add)
        self.all.append(asked)
        return asked

    @rule(job=NAMES)
    def store(self, job: str) -> None:
        number = self.stored[job] = next(self.numbers)
        self._do(lambda: self.placed.store(job, number, seq=number))

    @rule(job=NAMES)
    def leave(self, job: str) -> None:
        self._do(lambda: self.placed.waiters.left(job))

    @rule(job=NAMES, place=st.sampled_from(JobPlace))
    def move(self, job: str, place: JobPlace) -> None:
        self.placed.places[job] = place
        self._do(self.placed.waiters.locate_again)

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(one=consumes(asked))
    def wait_for_its_answer(self, one: Asked) -> None:
        self.loop.run_until_complete(asyncio.sleep(3.0))
        assert one.answers == 1

    @invariant()
    def nothing_is_told_that_was_not_stored(self) -> None:
        self.placed.waiters.check()
        for asked in self.all:
            assert asked.answers <= 1 and not asked.errors
            for reply in asked.replies:
                for record in reply.results:
                    assert record.result in range(1, self.stored[record.job] + 1)

    def teardown(self) -> None:
        self._do(lambda: self.placed.waiters.close(GanglineError("over")))
        assert all(asked.answers == 1 for asked in self.all)
        self.loop.close()


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=repetitions(10, whole=40), stateful_step_count=30, deadline=None)
