"""Durable tasks on a real nats-server: published as any client would, run by a real worker, the result read back."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

import gangline
from gangline.schemas.wire import headers
from gangline.worker.pool.pool import Pool

from ....scale import repetitions
from ....support.durable.site import ServerSite, is_empty
from ....waiting import PATIENCE_S, until

pytestmark = pytest.mark.server

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def system(nats_url: str, namespace: str) -> ServerSite:
    return ServerSite(nats_url, namespace)


def words(slots: int = 4) -> Pool:
    pool = Pool("words", slots=slots)

    @pool.task
    async def count(text: str) -> int:
        return len(text.split())

    return pool


def faults(journal: list[tuple[str, int]], slots: int = 4) -> Pool:
    """Tasks that fail in various ways; `journal` gets what starts."""
    pool = Pool("faults", slots=slots)

    @pool.task(idempotent=True)
    async def fail(text: str = "no") -> None:
        task = gangline.current_task()
        journal.append(("fail", task.attempt))
        raise ValueError(text)

    @pool.task(idempotent=True)
    async def nap(seconds: float) -> str:
        journal.append(("nap", gangline.current_task().attempt))
        await asyncio.sleep(seconds)
        return "slept"

    @pool.task(slots=slots)
    async def heavy() -> None:
        raise AssertionError("no worker has so many slots")

    return pool


async def test_a_task_that_fails_for_ever_is_a_dead_letter_that_says_why(system: ServerSite) -> None:
    journal: list[tuple[str, int]] = []
    async with system:
        await system.worker(faults(journal))
        await system.dispatcher(backoff_s=0.05)
        job = await system.publish("faults.fail", {"text": "boom"}, Gangline_Max_Attempts="2", traceparent=TRACE)
        record = await system.ended(job)
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
    system: ServerSite, rows: tuple[tuple[str, bytes, dict[str, str], str], ...], unknown_after_s: float
) -> None:
    async with system:
        await system.worker(faults([]), slots=2)
        await system.dispatcher(unknown_after_s=unknown_after_s, look_s=0.2)
        stream, letters = await system.streams.tasks(), dict[str, tuple[bytes, str]]()
        for subject, body, given, reason in rows:
            published = await stream.publish(f"{system.names.namespace}.task.{subject}", body, headers=given)
            record = await system.ended(published.sequence)
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


async def publish_odd(system: ServerSite, subject: str, body: Any, **more: str) -> None:
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


async def test_odd_headers_stop_neither_dead_letters_nor_schedules_nor_strays(system: ServerSite) -> None:
    """One such message once stayed in the queue's window for ever, and one stray ended the search for strays."""
    async with system:
        await system.worker(faults([]))
        await system.dispatcher(look_s=0.2)
        task = system.names.task
        await publish_odd(
            system, task("faults", "fail"), {"text": "no"}, Gangline_Job="fails", Gangline_Max_Attempts="1"
        )
        record = await system.ended("fails")
        assert record.error is not None and (record.state, record.error.code) == ("dead", "task_failed")
        [letter] = await system.dead()
        assert {"My Header", "[x]", "at@home", "X-Cut"}.isdisjoint(letter.headers or {})
        assert (letter.headers or {})["X-Plain"] == "\u00e4"
        await publish_odd(system, task("faults", "nap"), {"seconds": 0}, Gangline_Job="later", Gangline_Delay="200ms")
        assert (await system.ended("later")).state == "done"
        for stray in ("a.b.c", "a"):
            await publish_odd(system, f"{system.names.namespace}.task.{stray}", {})
        await system.empty()
        assert len(await system.dead()) == 3


async def test_a_delayed_task_waits_with_the_server_and_keeps_its_id(system: ServerSite) -> None:
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
        record = await system.ended(job)
        assert (record.state, record.result) == ("done", 2)
        # By the server's clock, which wrote both; the schedule is written in milliseconds.
        assert record.submitted_at >= published.at + 4.0 - 0.001
        await until(lambda: is_empty(stream))
        schedule = await (await system.streams.schedules()).last(system.names.schedule(str(later)))
        assert schedule is not None and (schedule.headers or {})[headers.SCHEDULE].startswith("@at ")


async def test_a_cron_task_fires_again_and_again_as_jobs_of_their_own(system: ServerSite) -> None:
    async with system:
        await system.worker(words())
        dispatcher = await system.dispatcher()
        await system.publish("words.count", {"text": "a b"}, Gangline_Cron="@every 1s", Gangline_Job="tick")
        await until(lambda: dispatcher.statistics().counts["started"] >= repetitions(2, whole=3))
        stream = await system.streams.schedules()
        schedule = await stream.last(system.names.schedule("tick"))
        assert schedule is not None and await stream.delete(schedule.sequence)
