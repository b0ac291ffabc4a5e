"""Durable tasks on a real nats-server: published as any client would, run by a real worker, the result read back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

import gangline
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import Bus, KeyValue, NoResponders, Stream, StreamMessage
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import NoDispatcher, UnknownJob, error_from_wire
from gangline.schemas.messages.jobs import CancelReply, JobInfo, JobWhyReply
from gangline.schemas.names import JobFeed, Names, QueueOperation, job_of_tenant
from gangline.schemas.records.jobs import JobItem, JobState, ResultRecord
from gangline.schemas.wire import headers
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ....scale import repetitions
from ....waiting import PATIENCE_S, until

pytestmark = pytest.mark.server

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _is_empty(stream: Stream, but: int = 0) -> bool:
    return (await stream.state()).messages <= but


async def _has_none(bucket: KeyValue, pattern: str) -> bool:
    return not await bucket.entries(pattern)


class System:
    """Dispatchers and workers on one server."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.buses: list[NatsBus] = []
        self.ends: list[Callable[[], Any]] = []

    async def bus(self, name: str) -> NatsBus:
        bus = await connect_bus(ConnectionSettings.from_url(self.url, reconnect_wait_s=0.05), name=name)
        self.buses.append(bus)
        return bus

    async def __aenter__(self) -> System:
        self.own: Bus = await self.bus("test")
        self.streams = TaskStreams(self.own, self.names, TaskStorage())
        return self

    async def worker(self, pool: Pool, name: str = "w1", **settings: Any) -> Worker:
        bus = await self.bus(f"worker {name}")
        worker = Worker(pool, bus=bus, names=self.names, settings=WorkerSettings(id=name, **settings))
        await worker.start()
        self.ends.append(worker.stop)
        return worker

    async def dispatcher(self, **settings: Any) -> Dispatcher:
        made = Dispatcher(
            await self.bus("dispatcher"), names=self.names, settings=DispatcherSettings(**settings), tasks=TaskStorage()
        )
        await made.start()
        self.ends.append(made.stop)
        return made

    async def publish(self, target: str, body: Any = None, **headers: str) -> int:
        endpoint, _, method = target.partition(".")
        stream = await self.streams.tasks()
        data = b"" if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        published = await stream.publish(self.names.task(endpoint, method), data, headers=given or None)
        return published.sequence

    async def publish_of(self, tenant: str, target: str, bodies: list[Any]) -> list[str]:
        """What the server stores when a tenant publishes these; the ids of the jobs."""
        stream, (endpoint, _, method) = await self.streams.tasks(), target.partition(".")
        subject = self.names.of_tenant(self.names.task(endpoint, method), tenant)
        stored = await asyncio.gather(*(stream.publish(subject, json.dumps(body).encode()) for body in bodies))
        ids = [str(published.sequence) for published in stored]
        return [job_of_tenant(id, endpoint, tenant) for id in ids] if tenant else ids

    async def result(self, job: str | int) -> ResultRecord:
        results = await self.streams.results()
        found: list[ResultRecord] = []

        async def look() -> bool:
            entry = await results.get(self.names.result_key(str(job)))
            found.extend([] if entry is None else [ResultRecord.model_validate_json(entry.value)])
            return bool(found)

        await until(look)
        return found[0]

    async def empty(self) -> None:
        """Wait until nothing is in the stream of tasks."""
        stream = await self.streams.tasks()
        await until(lambda: _is_empty(stream))

    async def forgotten_tries(self) -> None:
        """Wait until no try is noted any more."""
        results = await self.streams.results()
        await until(lambda: _has_none(results, self.names.tries_of()))

    async def dead(self) -> list[StreamMessage]:
        """All dead letters."""
        stream, found, sequence = await self.streams.dead(), [], 1
        while (message := await stream.next(self.names.all_dead, sequence)) is not None:
            found.append(message)
            sequence = message.sequence + 1
        return found

    async def ask(self, endpoint: str, operation: QueueOperation, **body: Any) -> Any:
        """What the holder of a queue answers."""
        subject = self.names.queue(endpoint, operation)
        answer = await self.own.request(subject, json.dumps(body).encode(), timeout_s=PATIENCE_S)
        value = json.loads(answer.data)
        if answer.headers and headers.ERROR in answer.headers:
            raise error_from_wire(value["code"], value["message"], value.get("details"), False)
        return value

    async def until_running(self, job: int) -> JobInfo:
        return await self.until(job, JobState.RUNNING)

    async def until(self, job: int, state: JobState) -> JobInfo:
        found: list[JobInfo] = []

        async def is_so() -> bool:
            with contextlib.suppress(UnknownJob, NoDispatcher, NoResponders):
                found.append(JobInfo.model_validate(await self.ask("faults", QueueOperation.GET, job=str(job))))
            return bool(found) and found[-1].state is state

        await until(is_so)
        return found[-1]

    async def __aexit__(self, *_: object) -> None:
        for end in reversed(self.ends):
            await end()
        for bus in self.buses:
            await bus.close()


@pytest.fixture
def system(nats_url: str, namespace: str) -> System:
    return System(nats_url, namespace)


def words(slots: int = 4) -> Pool:
    pool = Pool("words", slots=slots)

    @pool.task
    async def count(text: str) -> int:
        return len(text.split())

    return pool


async def test_a_tenant_that_fills_the_window_does_not_delay_the_next_task_of_another(system: System) -> None:
    starts: list[str] = []
    pool = Pool("words", slots=2)

    @pool.task(idempotent=True)
    async def note(name: str) -> str:
        starts.append(name)
        await asyncio.sleep(0.01)
        return name

    async with system:
        await system.worker(pool)
        await system.dispatcher(window_tasks=32)
        await system.publish_of("lab", "words.note", [{"name": "lab"}] * 150)
        await until(lambda: bool(starts))
        (job,) = await system.publish_of("shop", "words.note", [{"name": "late"}])
        assert (await system.result(job)).result == "late"
        assert starts.count("lab") < 150
        await system.empty()
        assert (starts.count("lab"), starts.count("late")) == (150, 1)


def faults(journal: list[tuple[str, int]], slots: int = 4) -> Pool:
    """Tasks that fail in various ways; `journal` gets what starts."""
    pool = Pool("faults", slots=slots)

    @pool.task(idempotent=True)
    async def fail(text: str = "no") -> None:
        task = gangline.current_task()
        journal.append(("fail", task.attempt))
        raise ValueError(text)

    @pool.task(idempotent=True)
    async def third_time(text: str = "") -> int:
        task = gangline.current_task()
        journal.append(("third_time", task.attempt))
        if task.attempt < 3:
            raise ValueError("not yet")
        return task.attempt

    @pool.task(idempotent=True)
    async def nap(seconds: float) -> str:
        journal.append(("nap", gangline.current_task().attempt))
        await asyncio.sleep(seconds)
        return "slept"

    @pool.task
    async def large(size: int) -> str:
        return "x" * size

    @pool.task(slots=slots)
    async def heavy() -> None:
        raise AssertionError("no worker has so many slots")

    @pool.task
    async def items(count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    return pool


async def test_a_task_that_fails_for_ever_is_a_dead_letter_that_says_why_and_can_be_sent_again(system: System) -> None:
    journal: list[tuple[str, int]] = []
    async with system:
        await system.worker(faults(journal))
        await system.dispatcher(backoff_s=0.05)
        job = await system.publish("faults.fail", {"text": "boom"}, Gangline_Max_Attempts="2", traceparent=TRACE)
        record = await system.result(job)
        assert (record.state, record.reason, record.attempts) == ("dead", "failed", 2)
        assert record.error is not None and record.error.code == "task_failed"
        assert "ValueError" in record.error.details["type"] and "boom" in record.error.details["traceback"]
        await system.empty()
        (letter,) = await system.dead()
        assert letter.subject == system.names.dead("faults", "fail") and json.loads(letter.data) == {"text": "boom"}
        given = letter.headers or {}
        assert given[headers.SUBJECT] == system.names.task("faults", "fail")
        assert given[headers.DEAD_REASON] == "failed" and given[headers.ATTEMPTS] == "2"
        assert given[headers.JOB] == str(job) and given[headers.TRACEPARENT] == TRACE
        assert json.loads(given[headers.DEAD_ERROR])["details"]["type"] == "ValueError"
        await system.forgotten_tries()


DEAD_AT_ONCE: tuple[tuple[str, bytes, dict[str, str], str], ...] = (
    ("faults.nap", b"{", {}, "malformed"),
    ("faults.nap", b"7", {}, "malformed"),
    ("faults.nap", b"{}", {headers.PRIORITY: "high"}, "malformed"),
    ("faults.nap", b"{}", {headers.ORDERED: "true"}, "malformed"),
    ("faults.nap", b"{}", {headers.DEADLINE: "soon"}, "malformed"),
    ("faults.nap", b"{}", {headers.CRON: "every now and then"}, "malformed"),
    ("faults.nap", b"{}", {"Content-Type": "text/xml"}, "malformed"),
    ("faults.nope", b"", {}, "unknown_method"),
    ("faults.nap", b'{"seconds": "many"}', {}, "invalid_arguments"),
    ("faults", b"", {}, "malformed"),
    ("faults.nap.again", b"", {}, "malformed"),
    ("faults$.nap", b"", {}, "malformed"),
)
DEAD_SOON: tuple[tuple[str, bytes, dict[str, str], str], ...] = (
    ("faults.heavy", b"", {}, "impossible"),
    ("nobody.nap", b"", {}, "unknown_endpoint"),
)


# A busy machine may need longer than a moment to hear of a worker, and then there would be none.
@pytest.mark.parametrize(("rows", "unknown_after_s"), [(DEAD_AT_ONCE, PATIENCE_S), (DEAD_SOON, 3.0)])
async def test_what_can_never_run_is_a_dead_letter(
    system: System, rows: tuple[tuple[str, bytes, dict[str, str], str], ...], unknown_after_s: float
) -> None:
    async with system:
        await system.worker(faults([]), slots=2)
        await system.dispatcher(unknown_after_s=unknown_after_s, look_s=0.2)
        stream, letters = await system.streams.tasks(), dict[str, tuple[bytes, str]]()
        for subject, body, given, reason in rows:
            published = await stream.publish(f"{system.names.namespace}.task.{subject}", body, headers=given)
            record = await system.result(published.sequence)
            sent = reason in ("unknown_method", "invalid_arguments")  # it is the worker that says so
            assert (record.state, record.reason, record.attempts) == ("dead", reason, int(sent)), (
                subject,
                body,
                record,
            )
            letters[str(published.sequence)] = (body, reason)
        await system.empty()
        found = {(each.headers or {})[headers.JOB]: each for each in await system.dead()}
        assert {job: (each.data, (each.headers or {})[headers.DEAD_REASON]) for job, each in found.items()} == letters


ODD_HEADERS = "My Header: a\r\n[x]: b\r\nat@home: c\r\n\u00e4: d\r\nX-Cut: e\rf\r\nX-Plain: \u00e4\r\n"
"""nats-server takes them all, and some clients send them; Gangline can write only the last."""


async def publish_odd(system: System, subject: str, body: Any, **more: str) -> None:
    """As a client in another language would, which checks nothing."""
    address = urlsplit(system.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    given = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in more.items())
    block, data = f"NATS/1.0\r\n{ODD_HEADERS}{given}\r\n".encode(), json.dumps(body).encode()
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    writer.write(f"HPUB {subject} {len(block)} {len(block) + len(data)}\r\n".encode() + block + data + b"\r\nPING\r\n")
    assert (await reader.readline()).startswith(b"INFO ")
    assert await reader.readline() == b"PONG\r\n"
    writer.close()
    await writer.wait_closed()


async def test_odd_headers_of_a_task_stop_neither_its_dead_letter_nor_its_schedule_nor_a_stray(system: System) -> None:
    """One such message once stayed in the queue's window for ever, and one stray ended the search for strays."""
    async with system:
        await system.worker(faults([]))
        await system.dispatcher(look_s=0.2)
        task = system.names.task
        await publish_odd(
            system, task("faults", "fail"), {"text": "no"}, Gangline_Job="fails", Gangline_Max_Attempts="1"
        )
        record = await system.result("fails")
        assert record.error is not None and (record.state, record.error.code) == ("dead", "task_failed")
        [letter] = await system.dead()
        assert {"My Header", "[x]", "at@home", "X-Cut"}.isdisjoint(letter.headers or {})
        assert (letter.headers or {})["X-Plain"] == "\u00e4"
        await publish_odd(system, task("faults", "nap"), {"seconds": 0}, Gangline_Job="later", Gangline_Delay="200ms")
        assert (await system.result("later")).state == "done"
        for stray in ("a.b.c", "a"):
            await publish_odd(system, f"{system.names.namespace}.task.{stray}", {})
        await system.empty()
        assert len(await system.dead()) == 3


async def test_a_delayed_task_waits_with_the_server_and_keeps_its_id(system: System) -> None:
    async with system:
        await system.worker(words())
        later = await system.publish("words.count", {"text": "a b"}, Gangline_Delay="1h")
        job = await system.publish(
            "words.count", {"text": "a b"}, Gangline_Delay="4s"
        )  # a dispatcher that starts later finds it due
        stream = await system.streams.tasks()
        published = await stream.next(system.names.tasks_of("words"), job)
        assert published is not None and published.sequence == job
        await system.dispatcher()
        record = await system.result(job)
        assert (record.state, record.result) == ("done", 2)
        # By the server's clock, which wrote both; the schedule is written in milliseconds.
        assert record.submitted_at >= published.at + 4.0 - 0.001
        await until(lambda: _is_empty(stream))
        schedule = await (await system.streams.schedules()).last(system.names.schedule(str(later)))
        assert schedule is not None and (schedule.headers or {})[headers.SCHEDULE].startswith("@at ")


async def test_a_cron_task_fires_again_and_again_as_jobs_of_their_own(system: System) -> None:
    async with system:
        await system.worker(words())
        dispatcher = await system.dispatcher()
        await system.publish("words.count", {"text": "a b"}, Gangline_Cron="@every 1s", Gangline_Job="tick")
        await until(lambda: dispatcher.statistics().counts["started"] >= repetitions(2, whole=3))
        stream = await system.streams.schedules()
        schedule = await stream.last(system.names.schedule("tick"))
        assert schedule is not None and await stream.delete(schedule.sequence)


async def test_a_large_result_stands_in_the_object_store(system: System) -> None:
    async with system:
        await system.worker(faults([]))
        await system.dispatcher(result_inline_bytes=4096)
        record = await system.result(await system.publish("faults.large", {"size": 10_000}))
        assert record.result is None and record.object is not None
        body = await (await system.streams.objects()).get(record.object)
        assert body is not None and json.loads(body) == "x" * 10_000


async def test_items_of_a_task_that_yields_can_be_read_later_all_in_order(system: System) -> None:
    async with system:
        await system.worker(faults([]))
        await system.dispatcher()
        job = await system.publish("faults.items", {"count": 300})
        record = await system.result(job)
        assert (record.state, record.items) == ("done", 300)
        found: list[int] = []
        jobs = await system.streams.jobs()
        reading = await jobs.read(
            system.names.job(str(job), JobFeed.ITEM),
            lambda message: found.append(JobItem.model_validate_json(message.data).value),
        )
        await until(lambda: len(found) >= 300)
        await reading.unsubscribe()
        assert found == list(range(300))


async def test_a_running_task_and_a_waiting_one_are_cancelled_through_the_desk(system: System) -> None:
    journal: list[tuple[str, int]] = []
    async with system:
        await system.worker(faults(journal, slots=1))
        await system.dispatcher()
        running, waiting = [await system.publish("faults.nap", {"seconds": 60}) for _ in range(2)]
        info = await system.until_running(running)
        assert info.worker == "faults.w1" and info.attempts == 1
        await system.until(waiting, JobState.QUEUED)  # the dispatcher may have seen the first of them only
        why = JobWhyReply.model_validate(await system.ask("faults", QueueOperation.WHY, job=str(waiting)))
        assert [each.kind for each in why.obstacles] == ["slots"]
        for job in (waiting, running):
            reply = CancelReply.model_validate(await system.ask("faults", QueueOperation.CANCEL, job=str(job)))
            assert reply.cancelled
            assert (await system.result(job)).state == "cancelled"
        await system.empty()
        assert journal == [("nap", 1)]
        with pytest.raises(UnknownJob):
            await system.ask("faults", QueueOperation.GET, job="1234567")


async def test_a_deadline_ends_a_running_task_and_makes_it_a_dead_letter(system: System) -> None:
    journal: list[tuple[str, int]] = []
    async with system:
        await system.worker(faults(journal))
        await system.dispatcher()
        for seconds in (1, 4, 16):  # more, if it passed before this machine had started the task
            job = await system.publish("faults.nap", {"seconds": 60}, Gangline_Deadline=f"{seconds}s")
            record = await system.result(job)
            assert (record.state, record.reason) == ("dead", "expired")
            if journal:
                break
        assert (record.attempts, journal) == (1, [("nap", 1)])
        record = await system.result(
            await system.publish(
                "faults.nap", {"seconds": 60}, Gangline_Timeout="200ms", Gangline_Max_Attempts="2", Gangline_Backoff="0"
            )
        )
        assert (record.state, record.reason, record.attempts) == ("dead", "timed_out", 2)
