"""Queues change hands: how soon, and that what runs is attached to and not started again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gangline.bus.memory.connection import MemorySubscription
from gangline.bus.port.bus import NoResponders, StreamMessage
from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.messages.entry import QueuedMessage, read_message
from gangline.dispatcher.durable.operations import QueueOperations
from gangline.dispatcher.durable.ownership.verifier import OwnershipProof
from gangline.dispatcher.durable.persistence.outcome_store import Answer, OutcomeStore
from gangline.dispatcher.durable.persistence.records import schedule_of
from gangline.dispatcher.durable.queue import queue_runner as queue
from gangline.dispatcher.durable.queue.effect_executor import QueueEffectExecutor
from gangline.dispatcher.durable.queue.queue_runner import QueueRunner
from gangline.schemas.errors.base import GanglineError, JobCancelled, JobError
from gangline.schemas.messages import submission
from gangline.schemas.names import Names, job_of_tenant
from gangline.schemas.records.jobs import JobState, TryRecord
from gangline.testing.loop import current_node

from ....scale import repetitions
from ....support.durable.site import DispatcherNode, Site, WorkerNode, simulate, simulated

SEEDS = range(0, 10, 10 // repetitions(1, whole=5))


def long(*values: Any) -> Any:
    """A row for the whole suite: others make the same check in the quick one."""
    return pytest.param(*values, marks=pytest.mark.long)


async def _two(site: Site) -> None:
    await site.serve(workers=2)
    site.dispatcher()
    await asyncio.sleep(3.0)


async def _next_start(site: Site) -> float:
    """Publish a task and wait until it starts; when."""
    before = len(site.starts)
    await site.submit("square", {"x": 1})
    await site.eventually(lambda: len(site.starts) > before)
    return site.starts[-1][3]


@pytest.mark.parametrize("seed", SEEDS)
@simulated()
async def test_a_killed_dispatchers_queue_is_served_by_another_within_two_seconds(site: Site, seed: int) -> None:
    await _two(site)
    await asyncio.sleep(seed / 10)
    long = await site.running("square", {"x": 9, "seconds": 20.0})
    site.holder().kill()
    killed_at = site.loop.time()
    assert await _next_start(site) - killed_at < 2.0
    record = await site.ended(long)
    assert (record.result, record.attempts, site.attempts(long)) == (81, 1, [1])


@simulated()
async def test_a_dispatcher_without_private_subjects_keeps_its_queue(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.worker()
    with monkeypatch.context() as earlier:
        earlier.setattr(Names, "both", staticmethod(lambda subject: (subject,)))
        earlier.setattr(queue, "PRIVATELY", "not-yet")
        first = site.dispatcher()
        await site.taken()
    site.dispatcher()
    await asyncio.sleep(10.0)
    assert site.holder() is first


@pytest.mark.parametrize("seed", SEEDS)
@simulated()
async def test_a_frozen_dispatchers_queue_is_served_by_another_within_four_seconds(site: Site, seed: int) -> None:
    await _two(site)
    await asyncio.sleep(seed / 10)
    long = await site.running("square", {"x": 9, "seconds": 20.0})
    victim = site.holder()
    victim.freeze()
    frozen_at = site.loop.time()
    assert await _next_start(site) - frozen_at < 4.0
    await asyncio.sleep(2.0)
    victim.thaw()
    await asyncio.sleep(1.0)
    assert site.pool not in victim.dispatcher.queues, "it has noticed that it lost the queue"
    assert (await site.ended(long)).attempts == 1 and site.attempts(long) == [1]
    assert site.twice() == []


async def test_a_stopped_dispatcher_hands_its_queues_over_at_once_and_what_runs_goes_on() -> None:
    async with Site() as site:
        await _two(site)
        long = await site.running("square", {"x": 9, "seconds": 20.0})
        leaver = site.holder()
        stopped_at = site.loop.time()
        await site.loop.spawn(leaver.name, leaver.dispatcher.stop())
        assert await _next_start(site) - stopped_at < 0.3
        assert (await site.ended(long)).result == 81 and site.attempts(long) == [1]


@pytest.mark.long
async def test_a_try_that_is_noted_after_the_takeover_is_removed_when_it_belongs_to_no_task() -> None:
    async with Site(backoff_s=300.0, backoff_max_s=300.0) as site:
        await site.serve()
        ended = await site.submit("square", {"x": 1})
        await site.ended(ended)
        waiting = await site.submit("fail", {"times": 1})
        await site.eventually(site.tries)
        results = await site.streams.results()
        [noted] = await results.entries(site.names.tries_of("work"))
        late = TryRecord(job=ended, sequence=1, attempts=1, not_before=0.0)
        again = TryRecord(job=waiting, sequence=1, attempts=1, not_before=0.0)
        assert TryRecord.model_validate_json(noted.value).sequence == 2
        await results.put(site.names.try_key("work", ended), late.model_dump_json().encode())
        await results.put(noted.key, again.model_dump_json().encode())
        await asyncio.sleep(70.0)
        assert await site.tries() == [noted.key], "what stands under a living job is its own"
        await site.ended(waiting, within_s=600.0)
        assert not await site.tries()


async def test_tries_that_somebody_wrote_for_jobs_that_cannot_be_stop_no_queue() -> None:
    async with Site() as site:
        results = await site.streams.results()
        for number, job in enumerate(("another", "\u2028", "work.odd", "", "x" * 300)):
            record = TryRecord(job=job, sequence=0, attempts=1, not_before=0.0)
            await results.put(site.names.try_key("work", f"odd{number}"), record.model_dump_json().encode())
        await site.serve()
        assert (await site.ended(await site.submit("square", {"x": 9}))).result == 81


@pytest.mark.parametrize("away_s", [0.05, 2.0])
@simulated()
async def test_after_a_restart_of_everything_but_the_workers_nothing_is_started_twice(
    site: Site, away_s: float
) -> None:
    """The ledger was in memory: for a moment it knows of no worker."""
    workers = [site.worker() for _ in range(2)]
    first = site.dispatcher()
    await site.taken()
    jobs = [await site.submit("square", {"x": 9, "seconds": 20.0}) for _ in range(3)]
    await site.eventually(lambda: len(site.starts) == 3)
    first.kill()
    site.hub.stop()
    await asyncio.sleep(1.0)
    for worker in workers:
        site.hub.disconnect(worker.bus)
    site.hub.start()
    for worker in workers:
        site.hub.disconnect(worker.bus)
        site.loop.call_later(away_s, site.hub.reconnect, worker.bus)
    site.dispatcher()
    for job in jobs:
        assert (await site.ended(job)).result == 81 and site.attempts(job) == [1]


@pytest.mark.parametrize("delay_s", [0.0, long(0.5), 1.0, long(1.1), long(1.2), long(2.0)])
@simulated()
async def test_a_job_can_be_cancelled_while_its_queue_changes_hands(site: Site, delay_s: float) -> None:
    await _two(site)
    jobs = [
        await site.submit("square", {"x": 9, "seconds": 20.0}),
        await site.submit("items", {"count": 200, "pause_s": 0.1}),
    ]
    await site.eventually(lambda: len(site.starts) == 2)
    silent = site.worker()
    await asyncio.sleep(1.0)
    silent.freeze()  # so that it takes a while to know who runs what
    site.holder().kill()
    await asyncio.sleep(delay_s)
    for job in jobs:
        await site.eventually(lambda job=job: site.cancel(job))
    for job in jobs:
        assert (await site.ended(job)).state is JobState.CANCELLED
        assert site.attempts(job) == [1]


@pytest.mark.parametrize("recovering", [False, True])
@simulated()
async def test_a_cancellation_that_was_confirmed_survives_the_dispatcher(site: Site, recovering: bool) -> None:
    await _two(site)
    job = await site.running("square", {"x": 9, "seconds": 20.0})
    silent = site.worker()
    await asyncio.sleep(1.0)
    silent.freeze()  # so that it takes a while to know who runs what
    if recovering:
        site.holder().kill()
        site.dispatcher()
        await asyncio.sleep(1.5)
    for node in site.workers:
        node.kill()  # nothing will come of a stop
    await site.eventually(lambda: site.cancel(job))
    site.holder().kill()
    for _ in range(2):
        site.worker()
    assert (await site.ended(job)).state is JobState.CANCELLED
    assert site.attempts(job) == [1]


async def test_what_is_cancelled_while_its_dispatcher_is_cut_off_is_not_started_when_that_is_back() -> None:
    """Nobody else takes the queue over: whoever cancels finds no dispatcher, and leaves a record."""
    async with Site() as site:
        node = await site.serve(slots=1)
        first = await site.running("square", {"x": 1, "seconds": 5.0})
        waiting = [await site.submit("square", {"x": 2}) for _ in range(3)]
        fails = await site.submit("fail", {"times": 5}, Gangline_Priority="-1000")
        await asyncio.sleep(3.0)
        async with site.client() as client:
            site.hub.disconnect(node.bus)
            assert await client.job(waiting[1], site.pool).cancel()
            assert await client.job(fails, site.pool).cancel()
            site.hub.reconnect(node.bus)
            for job in (first, waiting[0], waiting[2]):
                assert (await site.ended(job)).state is JobState.DONE
            await site.empty()
        assert (await site.ended(waiting[1])).state is JobState.CANCELLED
        assert site.attempts(waiting[1]) == site.attempts(fails) == []


async def test_a_stop_with_grace_starts_nothing_more_and_waits_for_what_runs() -> None:
    async with Site() as site:
        site.worker(slots=1)
        node = site.dispatcher()
        first = await site.running("square", {"x": 9, "seconds": 2.0})
        second = await site.submit("square", {"x": 3})
        await site.loop.spawn(node.name, node.dispatcher.stop(grace_s=10.0))
        record = await site.result(first)
        assert record is not None and record.result == 81
        assert site.attempts(second) == [] and await site.result(second) is None
        site.dispatcher()
        assert (await site.ended(second)).result == 9


@pytest.mark.long
async def test_dispatchers_share_the_endpoints_and_a_newcomer_gets_some() -> None:
    async with Site() as site:
        nodes = [site.dispatcher()]
        for number in range(6):
            site.worker(pool=f"p{number}")
        for most in (6, 3):
            await site.eventually(lambda most=most: sorted(_shares(nodes)) == [most] * (6 // most))
            nodes.append(site.dispatcher())
        await site.eventually(lambda: sorted(_shares(nodes)) == [2, 2, 2])
        assert len({name for node in nodes for name in node.dispatcher.queues}) == 6
        assert (await site.ended(await site.submit("square", {"x": 3}, endpoint="p5"))).result == 9


async def test_the_queue_of_a_mistyped_endpoint_is_given_up_when_nothing_is_left_in_it() -> None:
    async with Site(unknown_after_s=1.0) as site:
        site.worker()
        node = site.dispatcher()
        job = await site.submit("square", {"x": 3}, endpoint="wrok")
        ended = await site.ended(job)
        assert ended.reason == "unknown_endpoint"
        assert ended.error is not None and "(did you mean 'work'?)" in ended.error.message
        await site.eventually(lambda: set(node.dispatcher.queues) == {"work"})
        assert [each.filter for each in await (await site.streams.tasks()).consumers()] == [site.names.tasks_of("work")]
        again = await site.submit("square", {"x": 3}, endpoint="wrok")
        assert (await site.ended(again)).reason == "unknown_endpoint"


@pytest.mark.long
async def test_a_newcomer_gets_queues_of_which_nothing_runs_before_those_that_work() -> None:
    async with Site() as site:
        first = site.dispatcher()
        for number in range(6):
            site.worker(pool=f"p{number}")
        await site.eventually(lambda: len(first.dispatcher.queues) == 6)
        for pool in ("p0", "p1", "p2"):
            await site.ended(await site.submit("square", {"x": 3}, endpoint=pool))
        second = site.dispatcher()
        await site.eventually(lambda: len(second.dispatcher.queues) == 3)
        assert sorted(first.dispatcher.queues) == ["p0", "p1", "p2"]


@pytest.mark.long
async def test_many_new_endpoints_do_not_come_to_storage_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that mistypes endpoints must not make the tasks of others wait for storage."""
    count = repetitions(40, whole=200)
    at_once, most = Counter[str](), Counter[str]()

    def slow(name: str, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(self: QueueRunner, *args: Any, **kwargs: Any) -> Any:
            at_once[name] += 1
            most[name] = max(most[name], at_once[name])
            await asyncio.sleep(0.01)
            at_once[name] -= 1
            return await step(self, *args, **kwargs)

        return counted

    for name in ("take", "close"):
        monkeypatch.setattr(QueueRunner, name, slow(name, getattr(QueueRunner, name)))
    async with Site(unknown_after_s=3.0) as site:
        node = await site.serve()
        jobs = [await site.submit("square", {"x": 3}, endpoint=f"wrok{number}") for number in range(count)]
        await site.eventually(lambda: len(node.dispatcher.queues) == count + 1)
        for job in jobs:
            assert (await site.ended(job)).reason == "unknown_endpoint"
        await site.eventually(lambda: set(node.dispatcher.queues) == {"work"})
        assert 10 < most["take"] <= 32 and 10 < most["close"] <= 64


async def test_a_queue_whose_consumer_somebody_removes_is_had_again_at_once() -> None:
    async with Site() as site:
        node = await site.serve()
        long = await site.running("square", {"x": 3, "seconds": 5.0})
        removed_at = await site.remove_consumer()
        # At most what workers get to come back after a restart of the server, which a takeover cannot rule out.
        assert await _next_start(site) - removed_at < 3.0
        assert (await site.ended(long)).result == 9 and site.attempts(long) == [1]
        assert node.dispatcher.statistics().counts["lost"] == 1


async def test_the_levels_of_a_queue_go_with_it_and_not_with_the_next_search() -> None:
    async with Site(look_s=5.0) as site:
        node = await site.serve()
        metrics = node.dispatcher.metrics
        await site.eventually(lambda: [levels.endpoint for levels in metrics.levels] == ["work"])
        await site.remove_consumer()
        await site.eventually(lambda: node.dispatcher.statistics().counts["lost"] == 1)
        assert metrics.levels == ()


async def test_a_queue_that_is_lost_ends_without_waiting_for_a_server_that_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop, dropped = QueueRunner.drop, list[float]()

    async def noted(self: QueueRunner, *, delete: bool = False) -> None:
        dropped.append(site.loop.time())
        await drop(self, delete=delete)

    async def unconfirmed(_: MemorySubscription) -> None:
        await asyncio.sleep(5.0)

    async with Site() as site:
        await site.serve()
        with monkeypatch.context() as patch:
            patch.setattr(QueueRunner, "drop", noted)
            patch.setattr(MemorySubscription, "drain", unconfirmed)
            removed_at = await site.remove_consumer()
            await site.eventually(lambda: bool(dropped))
        assert dropped[0] - removed_at < 3.0
        assert (await site.ended(await site.submit("square", {"x": 3}))).result == 9


def test_a_task_that_is_cancelled_while_its_message_is_on_its_way_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_message, held, holding = QueueRunner._on_message, list[Any](), False

    def slowly(self: QueueRunner, message: StreamMessage) -> None:
        if holding:
            held.append((self, message))
        else:
            on_message(self, message)

    async def story() -> None:
        nonlocal holding
        async with Site() as site:
            await site.serve()
            assert (await site.ended(await site.submit("square", {"x": 2}))).result == 4
            await asyncio.sleep(1.0)
            holding = True
            job = await site.submit("square", {"x": 3})
            await site.eventually(lambda: bool(held))
            async with site.client() as client:
                assert await client.job(job, site.pool).cancel()
            [(queue_runner, message)] = held
            on_message(queue_runner, message)
            await asyncio.sleep(1.0)
            assert site.attempts(job) == [] and (await site.ended(job)).state is JobState.CANCELLED

    monkeypatch.setattr(QueueRunner, "_on_message", slowly)
    simulate(story())


@simulated()
async def test_results_of_jobs_that_ended_under_the_previous_dispatcher_are_told_at_once(site: Site) -> None:
    """No message of theirs will come, nor any with a higher sequence; only an earlier task still runs."""
    first = await site.serve()
    async with site.client() as client:
        await site.submit("square", {"x": 1, "seconds": 3600.0})
        jobs = [await client.submit("work.square", 2) for _ in range(5)]
        for job in jobs:
            await site.ended(job.id)
        await site.loop.spawn(first.name, first.dispatcher.stop())
        site.dispatcher()
        await site.taken()
        await asyncio.sleep(2.0)
        asked_at = site.loop.time()
        assert await asyncio.gather(*(job.result() for job in jobs)) == [4] * 5
        assert site.loop.time() - asked_at < 0.5


@simulated(window_tasks=16)
async def test_all_waiting_tasks_are_listed_however_few_of_them_the_new_dispatcher_has_fetched(site: Site) -> None:
    first = await site.serve(slots=1)
    await site.submit("square", {"x": 1, "seconds": 3600.0})
    jobs = [await site.submit("square", {"x": 2}) for _ in range(50)]
    first.kill()
    site.dispatcher()
    await site.taken()
    async with site.client() as client:
        for _ in range(25):  # from the moment in which it takes the queue
            page = await client.jobs(states=["queued"], endpoint=site.pool, limit=1000)
            assert [info.job for info in page.jobs] == jobs
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["killed", "stopped", "frozen"])
@simulated(window_tasks=16)
@pytest.mark.long
async def test_whoever_asks_while_the_queue_changes_hands_is_told_what_runs_or_that_it_is_not_known(
    site: Site, how: str
) -> None:
    first = await site.serve(slots=3)
    site.dispatcher()
    running = {await site.submit("square", {"x": 1, "seconds": 3600.0}) for _ in range(3)}
    await site.eventually(lambda: len(site.starts) == 3)
    jobs = running | {await site.submit("square", {"x": 2}) for _ in range(20)}
    async with site.client() as client:
        if how == "frozen":
            first.freeze()
        elif how == "killed":
            first.kill()
        else:
            site.loop.spawn(first.name, first.dispatcher.stop(), name="stop")
        told: list[bool] = []
        end = site.loop.time() + 8.0
        while site.loop.time() < end:
            job = next(iter(running))
            info, why = await client.job(job, site.pool).status(), await client.job(job, site.pool).why()
            assert info.state is JobState.RUNNING or info.reason, info
            assert why.job.state is JobState.RUNNING or why.obstacles, why
            page = await client.jobs(states=["running"])
            every = await client.jobs(limit=1000)
            assert {one.job for one in every.jobs} == jobs
            for states in (page, every):
                found = {one.job for one in states.jobs if one.state is JobState.RUNNING}
                assert found == running or (found <= running and states.unanswered == (site.pool,))
            told.append(bool(page.unanswered))
            await asyncio.sleep(0.2)
        assert not told[-1] and (any(told) or how == "stopped")
        if how == "frozen":
            first.thaw()


async def test_a_queue_that_is_lost_in_the_moment_in_which_it_is_taken_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, tries = QueueOperations.start, 0

    async def slowly(self: QueueOperations) -> None:
        nonlocal tries
        tries += 1
        await start(self)
        if tries == 1:
            stream = await site.streams.tasks()
            for consumer in await stream.consumers():
                await stream.delete_consumer(consumer.name)
            await asyncio.sleep(1.0)

    monkeypatch.setattr(QueueOperations, "start", slowly)
    async with Site() as site:
        site.worker()
        site.dispatcher()
        assert (await site.ended(await site.submit("square", {"x": 3}))).result == 9
        assert tries == 2


def _shares(nodes: list[DispatcherNode]) -> list[int]:
    return [len(node.dispatcher.queues) for node in nodes]


def kill_at_its_ack(patch: pytest.MonkeyPatch, site: Site, holder: DispatcherNode) -> None:
    """The dispatcher is gone when it is about to acknowledge a task that has ended."""
    carry_out = QueueEffectExecutor.carry_out

    def until_ack(self: QueueEffectExecutor, effect: do.Effect) -> None:
        if isinstance(effect, do.Ack) and current_node() == holder.name:
            holder.kill()
        if not site.loop.crashed(holder.name) or current_node() != holder.name:
            carry_out(self, effect)

    patch.setattr(QueueEffectExecutor, "carry_out", until_ack)


@simulated()
async def test_what_ended_and_was_not_acknowledged_is_not_started_again_even_when_its_worker_has_forgotten_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        site.worker()
    first = site.dispatcher()
    kill_at_its_ack(monkeypatch, site, first)
    job = await site.submit("square", {"x": 5})
    assert (await site.ended(job)).result == 25
    await asyncio.sleep(120.0)  # longer than workers remember
    assert (await (await site.streams.tasks()).state()).messages == 1
    site.dispatcher()
    await site.empty()
    assert site.attempts(job) == [1]


@simulated()
async def test_a_letter_whose_task_nobody_acknowledged_is_replayed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the message that is left would be taken for the job, and the replayed one for its repetition."""
    site.worker()
    first = site.dispatcher()
    kill_at_its_ack(monkeypatch, site, first)
    job = await site.submit("fail", {"times": 1}, Gangline_Max_Attempts="1")
    assert (await site.ended(job)).state is JobState.DEAD
    async with site.client() as client:
        with pytest.raises(JobError, match="replay it again later"):
            await client.replay(job)  # its dispatcher might come back, and store the end once more
        site.dispatcher()
        await client.replay(job)
        record = await site.ended(job)
        await site.empty()
    assert (record.state, record.result, site.attempts(job)) == (JobState.DONE, "at last", [1, 2])
    assert await site.dead() == []


@simulated()
async def test_a_letter_is_replayed_when_its_end_is_known_to_be_stored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then that takes the replayed message for a repetition."""
    persist = OutcomeStore.persist
    site.worker()
    site.dispatcher()

    def slowly(self: OutcomeStore, endpoint: str, entry: QueuedMessage, effect: do.Persist, answer: Answer) -> None:
        def later(error: GanglineError | None) -> None:
            site.loop.call_later(0.7, answer, error)

        slow = effect.kind is do.RecordKind.DEAD_LETTER
        persist(self, endpoint, entry, effect, later if slow else answer)

    monkeypatch.setattr(OutcomeStore, "persist", slowly)
    job = await site.submit("fail", {"times": 1}, Gangline_Max_Attempts="1")
    assert (await site.ended(job)).state is JobState.DEAD
    async with site.client() as client:
        began_at = site.loop.time()
        await client.replay(job)
        assert 0.5 < site.loop.time() - began_at < 2.0
    record = await site.ended(job)
    await site.empty()
    assert (record.state, record.result, site.attempts(job)) == (JobState.DONE, "at last", [1, 2])
    assert await site.dead() == []


@pytest.mark.parametrize("seed", SEEDS)
@simulated()
async def test_tasks_of_a_killed_worker_start_elsewhere_as_soon_as_its_heartbeat_has_expired(
    site: Site, seed: int
) -> None:
    await site.serve(workers=2, slots=4)
    jobs = [await site.submit("square", {"x": 2, "seconds": 5.0}) for _ in range(6)]
    await site.eventually(lambda: len(site.starts) == 6)
    await asyncio.sleep(seed / 10)
    victim = site.workers[0]
    mine = {job for job, _, worker, _ in site.starts if worker == victim.name}
    victim.kill()
    killed_at = site.loop.time()
    for job in jobs:
        record = await site.ended(job)
        assert (record.state, record.result) == (JobState.DONE, 4)
        assert site.attempts(job) == ([1, 2] if job in mine else [1])
    again = [at for job, attempt, _, at in site.starts if attempt == 2]
    # There are two slots left at once; the others come with the first tasks' ends.
    assert len(again) == len(mine) and min(again) - killed_at < 3.0 + 0.5


@pytest.mark.parametrize("seed", SEEDS)
@simulated()
async def test_nothing_starts_again_when_the_server_falls_silent(site: Site, seed: int) -> None:
    await site.serve(workers=2, slots=4)
    jobs = [await site.submit("square", {"x": 2, "seconds": 12.0}) for _ in range(6)]
    await site.eventually(lambda: len(site.starts) == 6)
    site.hub.freeze()
    await asyncio.sleep(6.0 + seed / 10)
    site.hub.thaw()
    for job in jobs:
        assert (await site.ended(job)).state is JobState.DONE and site.attempts(job) == [1]


@simulated()
async def test_nothing_starts_again_of_a_worker_of_whom_nobody_but_the_ledger_hears(site: Site) -> None:
    """As when two servers do not hear each other, and a third has the ledger: nobody listens there, it is said."""
    away, _ = site.worker(slots=4), site.worker(slots=4)
    node = site.dispatcher()
    await site.taken()
    jobs = [await site.submit("square", {"x": 2, "seconds": 20.0}) for _ in range(6)]
    await site.eventually(lambda: len(site.starts) == 6)
    pool = node.dispatcher.router.pools[site.pool]
    beat, answered, request = pool.beat, pool.answered, node.bus.request
    worker = pool.core.view.workers[away.name]

    async def unheard(subject: str, *args: Any, **named: Any) -> Any:
        if f".{away.name}." in subject:
            raise NoResponders(f"nobody listens on {subject}")
        return await request(subject, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "beat", lambda name, sign: name == away.name or beat(name, sign))
        patch.setattr(pool, "answered", lambda who, *more: who is worker or answered(who, *more))
        patch.setattr(node.bus, "request", unheard)
        await asyncio.sleep(10.0)
        assert not worker.eligible and worker.known
    for job in jobs:
        assert (await site.ended(job)).state is JobState.DONE and site.attempts(job) == [1]


@simulated()
async def test_a_worker_frozen_for_a_minute_cannot_overwrite_the_result_of_its_successor(site: Site) -> None:
    first = site.worker()
    site.dispatcher()
    job = await site.running("square", {"x": 2, "seconds": 1.0})
    first.freeze()
    second = site.worker()
    record = await site.ended(job)
    assert (record.worker, record.attempts) == (f"work.{second.name}", 2)
    await asyncio.sleep(60.0)
    first.thaw()
    await asyncio.sleep(10.0)
    assert await site.result(job) == record
    assert [(job, 1), (job, 2)] == sorted((job, attempt) for job, attempt, _, _ in site.ends)


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
@simulated()
async def test_a_schedule_that_is_removed_does_not_come_back_with_the_message_that_it_was_made_from(
    site: Site, how: str
) -> None:
    job = await site.submit("square", {"x": 1}, Gangline_Cron="@every 1s", Gangline_Job="tick")
    tasks, schedules = await site.streams.tasks(), await site.streams.schedules()
    message = await tasks.next(site.names.tasks_of(site.pool))
    assert message is not None
    read = read_message(site.names, message)
    assert not isinstance(read, GanglineError)
    # As by a dispatcher that died before it acknowledged the message; later, a duplicate is no longer known.
    subject, given = schedule_of(site.names, message, read[0], wall=message.at)
    await schedules.publish(subject, message.data, headers=given)
    schedule = await schedules.last(subject)
    assert schedule is not None
    async with site.client() as client:
        if how == "cancelled":
            assert await client.job(job, site.pool).cancel()
        else:
            await client.delete_schedule(job)
    assert await tasks.next(site.names.tasks_of(site.pool)) is None
    assert await schedules.last(subject) is None


async def _started_again(site: Site, lost: WorkerNode, job: str) -> WorkerNode:
    """Another dispatcher starts the job again on another worker, as nobody knows of the first execution."""
    lost.freeze()
    site.holder().kill()
    other = site.worker()
    site.dispatcher()
    await site.eventually(lambda: len(site.starts) == 2)
    assert (site.starts[1][0], site.starts[1][2]) == (job, other.name)
    return other


@pytest.mark.parametrize("ended", [False, True], ids=["while its twin runs", "when its twin has ended"])
@simulated()
async def test_a_stream_on_a_worker_that_was_taken_for_lost_does_not_wait_for_a_reader_for_ever(
    site: Site, ended: bool
) -> None:
    lost = site.worker(slots=1)
    site.dispatcher()
    job = await site.running("items", {"count": 100, "pause_s": 0.1})
    other = await _started_again(site, lost, job)
    if ended:
        await site.ended(job)
    lost.thaw()
    await site.eventually(lambda: lost.worker.core.load.running == 0, within_s=5.0)
    assert ended or other.worker.core.load.running == 1
    assert (await site.ended(job)).state is JobState.DONE


@simulated()
@pytest.mark.long
async def test_of_two_workers_with_one_attempt_the_next_owner_stops_one(site: Site) -> None:
    lost = site.worker(slots=1)
    site.dispatcher()
    job = await site.running("items", {"count": 200, "pause_s": 0.1})
    other = await _started_again(site, lost, job)
    site.holder().kill()
    lost.thaw()
    await asyncio.sleep(2.0)
    assert lost.worker.core.load.running == other.worker.core.load.running == 1
    site.dispatcher()
    await site.eventually(lambda: lost.worker.core.load.running + other.worker.core.load.running == 1, 20.0)
    assert (await site.ended(job)).state is JobState.DONE


@simulated()
async def test_a_worker_that_comes_back_with_what_nobody_has_started_again_goes_on_with_it(site: Site) -> None:
    lost = site.worker(slots=1)
    site.dispatcher()
    job = await site.running("items", {"count": 100, "pause_s": 0.1})
    lost.freeze()
    site.holder().kill()
    site.dispatcher()
    await asyncio.sleep(20.0)
    lost.thaw()
    assert (await site.ended(job)).state is JobState.DONE
    assert site.attempts(job) == [1]


@simulated()
async def test_fences_grow_even_when_dispatcher_and_worker_are_gone_and_nobody_knows_of_the_first_attempt(
    site: Site,
) -> None:
    worker, first = site.worker(), site.dispatcher()
    job = await site.running("square", {"x": 2, "seconds": 5.0})
    worker.freeze()
    first.kill()
    site.worker()
    site.dispatcher()
    record = await site.ended(job)
    first_fence, second_fence = site.fences[job]
    assert 0 < first_fence < second_fence == record.fence
    worker.kill()


@simulated()
@pytest.mark.long
async def test_a_long_task_starts_once_with_default_settings(site: Site) -> None:
    seconds = float(repetitions(50, whole=200))
    for _ in range(2):
        site.worker()
    site.dispatcher()
    job = await site.submit("square", {"x": 2, "seconds": seconds})
    await asyncio.sleep(seconds - 10.0)
    assert (await site.ended(job)).result == 4
    assert site.attempts(job) == [1]


async def test_long_tasks_do_not_hoard_short_ones() -> None:
    """Two workers of one slot, a long task and seven short ones: as fast as can be."""
    async with Site() as site:
        await site.serve(workers=2, slots=1)
        began_at = site.loop.time()
        jobs = [await site.submit("square", {"x": 2, "seconds": 7.0})]
        jobs += [await site.submit("square", {"x": 2, "seconds": 1.0}) for _ in range(7)]
        for job in jobs:
            await site.ended(job)
        assert max(at for _, _, _, at in site.ends) - began_at <= 7.0 * 1.05


async def test_calls_and_other_queues_get_their_share_of_workers_that_a_queue_keeps_busy() -> None:
    async with Site() as site:
        for _ in range(2):
            site.worker(slots=2)
        site.dispatcher()
        site.dispatcher()
        await site.taken()
        for _ in range(200):
            await site.submit("square", {"x": 1, "seconds": 0.1})
        async with site.client() as client:
            first_at, ended = site.loop.time(), len(site.ends)
            for _ in range(20):
                began_at = site.loop.time()
                assert await client.call("work.root", 49) == 7
                assert site.loop.time() - began_at < 2.0
            seconds = site.loop.time() - first_at
        assert seconds > 1.0 and (len(site.ends) - ended) / seconds > 0.9 * 40, "the queue went on meanwhile"


@pytest.mark.parametrize("idle_s", [0.0, 30.0])
@simulated()
async def test_what_was_cancelled_while_the_owner_was_cut_off_does_not_run_also_if_it_had_nothing_to_do(
    site: Site, idle_s: float
) -> None:
    node = await site.serve()
    await site.ended(await site.submit("square", {"x": 1}))
    await asyncio.sleep(idle_s)
    site.hub.split(lambda name: name == node.bus.name).notice()
    await asyncio.sleep(1.0)
    jobs = [await site.submit("square", {"x": x}) for x in range(3)]
    async with site.client() as client:
        for job in jobs[:2]:
            assert await client.job(job, site.pool).cancel()
        site.hub.mend()
        await site.ended(jobs[2])
        await asyncio.sleep(3.0)
    assert len(site.starts) == 2


@pytest.mark.parametrize(("cut_s", "busy_s"), [(0.3, 8.0), long(1.0, 30.0), long(3.0, 8.0), (6.0, 30.0)])
@simulated()
async def test_what_waited_when_it_was_cancelled_behind_the_back_of_its_owner_does_not_run(
    site: Site, cut_s: float, busy_s: float
) -> None:
    node = await site.serve(slots=1)
    first = await site.running("square", {"x": 1, "seconds": busy_s})
    waits = [await site.submit("square", {"x": x}) for x in range(3)]
    await asyncio.sleep(busy_s - cut_s - 1.0)
    site.hub.split(lambda name: name == node.bus.name).notice()
    async with site.client() as client:
        await asyncio.sleep(cut_s / 2)
        for job in waits[:2]:
            assert await client.job(job, site.pool).cancel()
        await asyncio.sleep(cut_s / 2)
        site.hub.mend()
        await site.ended(waits[2])
    assert [job for job, *_ in site.starts] == [first, waits[2]]


@simulated()
async def test_what_runs_when_it_is_cancelled_behind_the_back_of_its_owner_is_stopped(site: Site) -> None:
    worker = site.worker(slots=1)
    node = site.dispatcher()
    await site.taken()
    job = await site.running("square", {"x": 1, "seconds": 60.0})
    site.hub.split(lambda name: name == node.bus.name).notice()
    async with site.client() as client:
        await asyncio.sleep(1.0)
        assert await client.job(job, site.pool).cancel()
        site.hub.mend()
    await site.submit("square", {"x": 2})
    await site.eventually(lambda: worker.worker.core.load.running == 0, within_s=5.0)
    assert (await site.ended(job)).state is JobState.CANCELLED


@simulated()
async def test_results_are_looked_up_of_what_was_published_before_we_could_be_asked_and_of_no_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    carry_out = QueueEffectExecutor.carry_out

    def counted(self: QueueEffectExecutor, effect: do.Effect) -> None:
        if isinstance(effect, do.LookUpResult):
            looked.append(effect.seq)
        carry_out(self, effect)

    monkeypatch.setattr(QueueEffectExecutor, "carry_out", counted)
    site.worker()
    early = await site.submit("square", {"x": 1})
    node = site.dispatcher()
    await site.taken()
    at_once = await site.submit("square", {"x": 2})
    await asyncio.sleep(0.5)
    late = [await site.submit("square", {"x": 3}) for _ in range(3)]
    for job in (early, at_once, *late):
        await site.ended(job)
    assert looked == [1, 2]
    node.freeze()
    await site.submit("square", {"x": 4})
    await asyncio.sleep(1.5)
    node.thaw()
    await asyncio.sleep(1.0)
    await site.ended(await site.submit("square", {"x": 5}))
    assert looked == [1, 2, 6, 7], "nothing was to do for so long that clients may have missed us"
    await asyncio.sleep(0.5)
    await site.ended(await site.submit("square", {"x": 6}))
    assert looked == [1, 2, 6, 7]


@pytest.mark.parametrize("window", [16, 1024])
@simulated()
@pytest.mark.long
async def test_the_depth_of_a_queue_and_what_is_unread_of_it_are_told_as_they_are(site: Site, window: int) -> None:
    first = await site.serve(slots=4, window_tasks=window)
    for _ in range(130):
        await site.submit("square", {"x": 1, "seconds": 0.1})
    await asyncio.sleep(1.5)  # they were counted
    stream = await site.streams.tasks()
    for number in range(30):
        if number == 10:
            first.kill()
            site.dispatcher(window_tasks=window)
            await site.taken()
        [stats] = site.holder().dispatcher.statistics().queues
        stored = (await stream.state()).messages
        assert abs(stats.depth - stored) <= 4, number
        unread = stats.pending.get("unread", 0)
        assert unread == stats.depth - stats.seen and (unread == 0 or stats.seen >= window - 4), number
        await asyncio.sleep(0.04)


async def _publish_of_tenant(site: Site, method: str, body: str, **given: str) -> str:
    """Publish a task of the tenant `shop`; returns its id in this version."""
    stream = await site.streams.tasks()
    subject = site.names.of_tenant(site.names.task(site.pool, method), "shop")
    headers = {name.replace("_", "-"): value for name, value in given.items()}
    published = await stream.publish(subject, body.encode(), headers=headers or None)
    return job_of_tenant(given.get("Gangline_Job", str(published.sequence)), site.pool, "shop")


@pytest.mark.parametrize(("given", "kill"), [({}, True), ({"Gangline_Job": "work.order-7"}, False)])
@simulated()
@pytest.mark.long
async def test_a_tenants_task_that_a_dispatcher_of_an_earlier_version_started_is_attached_to(
    site: Site, given: dict[str, str], kill: bool
) -> None:
    """In earlier versions ids of tenants' jobs did not have the tenant in them, nor has the worker's record."""
    node = site.worker()
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(submission, "job_of_tenant", lambda job, endpoint, tenant: job)
        first = site.dispatcher()
        await site.taken()
        now = await _publish_of_tenant(site, "square", '{"x": 9, "seconds": 20.0}', **given)
        await site.eventually(lambda: bool(site.starts))
        if kill:
            first.kill()
        else:
            await site.loop.spawn(first.name, first.dispatcher.stop())
    site.dispatcher()
    await site.taken()
    record = await site.ended(now)
    assert (record.result, record.attempts, len(site.starts)) == (81, 1, 1)
    await site.empty()
    draining_at = site.loop.time()
    await site.loop.spawn(node.name, node.worker.stop())
    assert site.loop.time() - draining_at < 3.0, "the worker has got the ACK for its record"


@simulated(backoff_s=30.0)
@pytest.mark.long
async def test_failed_attempts_of_a_tenants_task_count_that_an_earlier_version_noted(site: Site) -> None:
    site.worker()
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(submission, "job_of_tenant", lambda job, endpoint, tenant: job)
        first = site.dispatcher()
        await site.taken()
        now = await _publish_of_tenant(site, "fail", '{"times": 1}', Gangline_Job="order-7")

        async def noted() -> bool:
            return await site.tries() == [site.names.try_key(site.pool, "order-7")]

        await site.eventually(noted)
        first.kill()
    site.dispatcher()
    await site.taken()
    record = await site.ended(now)
    assert (record.result, record.attempts) == ("at last", 2)
    assert [attempt for _, attempt, _, _ in site.starts] == [1, 2]
    assert site.starts[1][3] - site.starts[0][3] > 10.0, "its next attempt was not due"

    await site.forgotten_tries(200.0)


@simulated()
async def test_a_delayed_job_is_known_and_cancelled_while_its_dispatcher_doubts_that_the_queue_is_its_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _two(site)
    runner = site.holder().dispatcher.queues[site.pool]
    proven, prove = asyncio.Event(), OwnershipProof.prove

    async def prove_late(proof: OwnershipProof) -> None:
        await proven.wait()
        await prove(proof)

    async with site.client() as client:
        monkeypatch.setattr(OwnershipProof, "prove", prove_late)
        runner._context.guard.cut_off()
        for name in ("kept", "dropped"):
            await site.submit("square", {"x": 3}, Gangline_Job=f"work.{name}", Gangline_Delay="1.5")
        kept, dropped = client.job("work.kept"), client.job("work.dropped")
        assert (await dropped.status()).state is JobState.SCHEDULED
        assert await dropped.cancel()
        proven.set()
        monkeypatch.undo()
        assert await kept.result() == 9
        with pytest.raises(JobCancelled):
            await dropped.result()
    assert {job for job, _, _, _ in site.starts} == {kept.id}


@simulated()
async def test_a_delayed_job_is_cancelled_though_its_delivery_to_the_dispatcher_was_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _two(site)
    receive, lost = QueueRunner._receive, list[StreamMessage]()

    def lose_the_first(runner: QueueRunner, message: StreamMessage, *, ahead: bool = False) -> None:
        if lost:
            receive(runner, message, ahead=ahead)
        else:
            lost.append(message)

    monkeypatch.setattr(QueueRunner, "_receive", lose_the_first)
    async with site.client() as client:
        delayed = await client.options(delay_s=60.0).submit("work.square", 3)
        while not lost:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert await (await client.submit("work.square", 4)).result() == 16
        assert await delayed.cancel()
        with pytest.raises(JobCancelled):
            await delayed.result()
