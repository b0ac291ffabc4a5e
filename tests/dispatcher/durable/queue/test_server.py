"""Durable tasks on a real nats-server: published as any client would, run by a real worker, the result read back."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from gangline.schemas.wire import headers
from gangline.worker.pool.pool import Pool

from ....support.durable.site import ServerSite
from ....waiting import PATIENCE_S

pytestmark = pytest.mark.server


@pytest.fixture
def system(nats_url: str, namespace: str) -> ServerSite:
    return ServerSite(nats_url, namespace)


def faults() -> Pool:
    pool = Pool("faults", slots=4)

    @pool.task(idempotent=True)
    async def fail(text: str = "no") -> None:
        raise ValueError(text)

    @pool.task(idempotent=True)
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    return pool


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


async def test_what_can_never_run_is_a_dead_letter(system: ServerSite) -> None:
    async with system:
        await system.worker("w1", faults(), slots=2)
        await system.dispatcher(unknown_after_s=PATIENCE_S, look_s=0.2)
        stream, letters = await system.streams.tasks(), dict[str, tuple[bytes, str]]()
        for subject, body, given, reason in DEAD_AT_ONCE:
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
        await system.worker("w1", faults())
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
