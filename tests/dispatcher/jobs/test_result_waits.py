"""Clients wait for results by asking the dispatcher of a queue, together for all jobs; without an answer they look
themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Message, NotPermitted
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs import result_waits
from gangline.dispatcher.jobs.queries import JobQueries
from gangline.dispatcher.jobs.result_waits import ResultWaits
from gangline.schemas.errors.base import (
    GanglineError,
    InvalidRequest,
    NoDispatcher,
    QueueFull,
    UnknownJob,
)
from gangline.schemas.messages.jobs import WaitReply, WaitRequest
from gangline.schemas.names import Names, QueueOperation
from gangline.schemas.records.jobs import JobState, ResultRecord
from gangline.schemas.wire import headers

from ...support.dispatcher.jobs_rig import ImagesSystem, JobsRig, in_memory, on_images
from ...support.durable.site import Site, simulate
from ...waiting import until


def result(job: str, value: Any = None) -> ResultRecord:
    return ResultRecord(job=job, endpoint="images", method="echo", state=JobState.DONE, result=value)


class Waited:
    """A dispatcher that answers only `wait`, as the test says."""

    def __init__(self, rig: JobsRig) -> None:
        self.rig = rig
        self.requests: list[WaitRequest] = []
        self.answer: Callable[[WaitRequest], WaitReply | GanglineError | bytes | None] = lambda request: None

    async def start(self) -> None:
        subject = self.rig.names.private(self.rig.names.queue("images", QueueOperation.WAIT))
        await self.rig.bus.subscribe(subject, self._answer)
        await self.rig.bus.flush()

    def _answer(self, message: Message) -> None:
        request = WaitRequest.model_validate_json(message.data)
        self.requests.append(request)
        answer = self.answer(request)
        if isinstance(answer, GanglineError):
            told = {headers.ERROR: answer.message, headers.ERROR_CODE: str(answer.status)}
            self.rig.bus.publish(message.reply, json.dumps(answer.to_wire()).encode(), headers=told)
        elif answer is not None:
            data = answer if isinstance(answer, bytes) else answer.model_dump_json().encode()
            self.rig.bus.publish(message.reply, data)


async def waited(rig: JobsRig) -> Waited:
    found = Waited(rig)
    await found.start()
    return found


def no_looks(patch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose records are looked up from now on."""
    looked: list[str] = []
    original = JobQueries.record

    async def record(self: JobQueries, ref: Any) -> ResultRecord | None:
        looked.append(ref.id)
        return await original(self, ref)

    patch.setattr(JobQueries, "record", record)
    return looked


@in_memory
async def test_jobs_of_one_turn_are_asked_for_together_and_need_no_look_up(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = await waited(rig)
    dispatcher.answer = lambda request: WaitReply(results=tuple(result(job, job) for job in request.jobs))
    looked = no_looks(monkeypatch)
    jobs = [await rig.client.submit("images.echo") for _ in range(300)]
    assert await asyncio.gather(*(job.result() for job in jobs)) == [job.id for job in jobs]
    assert [len(request.jobs) for request in dispatcher.requests] == [128, 128, 44] and not looked
    asked = dispatcher.requests[0]
    assert asked.sequences == tuple(range(1, 129)) and asked.client.startswith("~")


@in_memory
async def test_whatever_the_dispatcher_answers_the_result_is_found(rig: JobsRig) -> None:
    dispatcher = await waited(rig)
    answers: list[WaitReply | GanglineError | bytes] = [
        NoDispatcher("changing hands"),
        QueueFull("too many"),
        InvalidRequest("no operation 'wait'; known are get, cancel"),
        WaitReply(),
        b"{",
        b'{"results": [{"job": 1}]}',
    ]
    for count, answer in enumerate(answers, 1):
        rig.client._queries.waits = ResultWaits(rig.client._bus, rig.names)
        dispatcher.answer = lambda request, answer=answer: answer
        job = await rig.client.submit("images.echo")
        waiting = asyncio.ensure_future(job.result())
        await until(lambda count=count: len(dispatcher.requests) >= count)
        await rig.end(job.id, result="found")
        assert await waiting == "found" == await job.result(), answer
        assert len(dispatcher.requests) == count, f"after {answer!r} it is asked again at once"
        del dispatcher.requests[count:]


@in_memory
async def test_what_the_dispatcher_does_not_tell_is_looked_up(rig: JobsRig) -> None:
    dispatcher = await waited(rig)
    dispatcher.answer = lambda request: WaitReply(look_up=request.jobs)
    ended, open_ = await rig.client.submit("images.echo"), await rig.client.submit("images.echo")
    await rig.end(ended.id, result=1)
    waiting = asyncio.ensure_future(open_.result())
    assert await ended.result() == 1
    assert [request.jobs for request in dispatcher.requests] == [(ended.id, open_.id)]
    await rig.end(open_.id, result=2)
    assert await waiting == 2


@in_memory
async def test_results_of_jobs_that_were_not_asked_for_are_ignored(rig: JobsRig) -> None:
    dispatcher = await waited(rig)
    dispatcher.answer = lambda request: WaitReply(results=(result("images.another", "not mine"),))
    job = await rig.client.submit("images.echo")
    waiting = asyncio.ensure_future(job.result())
    await until(lambda: bool(dispatcher.requests))
    await rig.end(job.id, result="mine")
    assert await waiting == "mine"


@in_memory
async def test_a_job_that_nobody_waits_for_any_more_is_not_asked_for_again(rig: JobsRig) -> None:
    dispatcher = await waited(rig)
    jobs = [await rig.client.submit("images.echo") for _ in range(2)]
    waits = [asyncio.ensure_future(job.result()) for job in (*jobs, jobs[1])]
    await until(lambda: bool(dispatcher.requests))
    waits[0].cancel()
    waits[2].cancel()
    await asyncio.wait(waits[::2])
    dispatcher.answer = lambda request: WaitReply(results=tuple(result(job, request.jobs) for job in request.jobs))
    again = asyncio.ensure_future(jobs[0].result())
    assert await again == [jobs[0].id]
    await rig.end(jobs[1].id, result="stored")
    assert await waits[1] == "stored", "its dispatcher never answered, so it was looked up"


@in_memory
async def test_a_job_that_is_found_by_its_id_is_looked_up_and_then_waited_for(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = await waited(rig)
    job = await rig.client.submit("images.echo")
    dispatcher.answer = lambda request: WaitReply(results=(result(request.jobs[0], request.sequences),))
    looked = no_looks(monkeypatch)
    assert await rig.client.job(job.id).result() == [0]
    assert looked == [job.id]


@in_memory
async def test_delayed_jobs_and_those_with_a_name_alone_are_watched_in_storage(rig: JobsRig) -> None:
    """Their ids or sequences do not say in which queue they are, and where."""
    dispatcher = await waited(rig)
    delayed = await rig.client.options(delay_s=60).submit("images.echo")
    await rig.end(delayed.id, result=1)
    await rig.end("named", result=2)
    assert await delayed.result() == 1 and await rig.client.job("named", "images").result() == 2
    assert not dispatcher.requests


# -- in memory, on virtual time ---------------------------------------------------------------------------------------


async def test_after_a_failure_nobody_is_asked_for_a_while() -> None:
    hub = MemoryServer()
    names, asked = Names(), list[Message]()
    waits = ResultWaits(hub.connect("client"), names)
    assert await waits.wait("images", "images.a", 1) is None
    for endpoint in ("images", "videos"):
        await hub.connect("frozen").subscribe(names.private(names.queue(endpoint, "wait")), asked.append)
    await asyncio.sleep(0.9)
    assert await waits.wait("images", "images.a", 1) is None and not asked
    assert await waits.wait("videos", "videos.a", 1) is None and len(asked) == 1
    assert await waits.wait("images", "images.a", 1) is None and len(asked) == 2


async def test_an_answer_that_never_comes_is_given_up_soon_and_a_missing_permission_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = MemoryServer()
    bus, names, loop = hub.connect("client"), Names(), asyncio.get_running_loop()
    await hub.connect("frozen").subscribe(names.private(names.queue("images", "wait")), lambda message: None)
    waits, began_at = ResultWaits(bus, names), loop.time()
    assert await waits.wait("images", "images.a", 1) is None and 2.9 < loop.time() - began_at < 3.1

    def ask(subject: str, data: bytes, *, timeout_s: float, then: Callable[[GanglineError], None]) -> None:
        loop.call_soon(then, NotPermitted("forbidden", details={"subject": subject}))

    monkeypatch.setattr(bus, "ask", ask)
    await asyncio.sleep(2)
    assert await waits.wait("images", "images.a", 1) is None and loop.time() - began_at < 6
    monkeypatch.undo()
    await asyncio.sleep(59)
    asked_at = loop.time()
    assert await waits.wait("images", "images.a", 1) is None and loop.time() == asked_at
    await asyncio.sleep(2)
    assert await waits.wait("images", "images.a", 1) is None and loop.time() > asked_at + 4


async def test_too_many_jobs_are_watched_in_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_waits, "_MAX_JOBS", 2)
    hub = MemoryServer()
    names = Names()
    await hub.connect("frozen").subscribe(names.private(names.queue("images", "wait")), lambda message: None)
    waits = ResultWaits(hub.connect("client"), names)
    loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(waits.wait("images", f"images.{number}", number)) for number in range(2)]
    await asyncio.sleep(0)
    began_at = loop.time()
    assert await waits.wait("images", "images.2", 2) is None and loop.time() == began_at and "jobs=2" in repr(waits)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert await waits.wait("images", "images.2", 2) is None and loop.time() > began_at
    await asyncio.wait(tasks)


async def settled(client: Client) -> None:
    """Wait until the dispatcher has the queue."""
    assert await (await client.submit("images.echo", 0)).result() == 0
    await asyncio.sleep(2)


@on_images(slots=4)
async def test_a_large_result_is_fetched_and_one_that_has_ended_before_is_found(client: Client) -> None:
    await settled(client)
    for size in (20_000, 700_000):
        assert await (await client.submit("images.echo", "x" * size)).result() == "x" * size
    job = await client.submit("images.echo", "old")
    await asyncio.sleep(30)
    assert await job.result() == "old" == await client.job(job.id).result()
    with pytest.raises(UnknownJob):
        await client.job("images.never").result()


@on_images(slots=4)
async def test_a_result_that_has_expired_is_missed_soon_by_its_submitter_too(client: Client) -> None:
    job = await client.options(result_ttl_s=1).submit("images.echo", "old")
    await asyncio.sleep(30)
    for handle in (job, client.job(job.id)):
        async with asyncio.timeout(2):
            with pytest.raises(UnknownJob):
                await handle.result()


def test_results_come_through_when_the_dispatcher_dies_or_hands_over() -> None:
    """Whoever waits at it looks itself; whoever waits later is told by the next one."""

    async def story() -> None:
        async with Site() as site:
            first = await site.serve(slots=8)
            bus = site.hub.connect("client")
            async with Client(bus, names=site.names) as client:
                jobs = [await client.submit("work.square", x=x, seconds=5.0) for x in range(8)]
                waits = [asyncio.ensure_future(job.result()) for job in jobs]
                await asyncio.sleep(1)
                site.dispatcher()
                await asyncio.sleep(1)
                first.kill()
                async with asyncio.timeout(15):
                    assert await asyncio.gather(*waits) == [x * x for x in range(8)]
                await asyncio.sleep(3)
                second = site.holder()
                jobs = [await client.submit("work.square", x=x, seconds=3.0) for x in range(4)]
                waits = [asyncio.ensure_future(job.result()) for job in jobs]
                await asyncio.sleep(1)
                site.dispatcher()
                await asyncio.sleep(1)
                await site.loop.spawn(second.name, second.dispatcher.stop(), name="stop")
                async with asyncio.timeout(10):
                    assert await asyncio.gather(*waits) == [x * x for x in range(4)]

    simulate(story())


async def test_bad_requests_are_answered_with_what_is_wrong() -> None:
    made = ImagesSystem(slots=4).cluster()
    async with made as client:
        await settled(client)
        bus = made.hub.connect("another")
        subject = made.names.queue("images", QueueOperation.WAIT)
        for body, code, text in (
            (b"{}", "invalid_request", "jobs"),
            (b'{"jobs": []}', "invalid_request", "at least 1"),
            (json.dumps({"jobs": ["a"] * 129}).encode(), "invalid_request", "at most 128"),
            (json.dumps({"jobs": ["a" * 70_000]}).encode(), "payload_too_large", "65536"),
        ):
            answer = await bus.request(subject, body, timeout_s=5)
            error = json.loads(answer.data)
            assert error["code"] == code and text in error["message"], error
        job = await client.submit("images.echo", {"a": [1]})
        for fields in (None, {"Content-Type": "application/msgpack"}):
            body = json.dumps({"jobs": [job.id]}).encode() if fields is None else b"\x81\xa4jobs\x91" + _packed(job.id)
            answer = await bus.request(subject, body, timeout_s=5, headers=fields)
            assert b"results" in answer.data and (answer.headers or {}).get("Content-Type") == (
                None if fields is None else "application/msgpack"
            )


def _packed(text: str) -> bytes:
    return bytes([0xD9, len(text)]) + text.encode()
