"""What the console costs, and how soon a browser shows it: many workers whose heartbeats change every second, and many
open tabs.

    python -m bench.console --workers 1000 --slots 64 --tabs 50
    python -m bench.console --paint

The workers are written into the ledger by this process; the console is a process of its own, whose CPU time and memory
are read from /proc. Prints one line of JSON per measurement. Linux only. With --paint, it only measures how long a
headless Chromium takes from the beginning of the navigation to its first paint, to the first contentful paint, and
until the slots of the workers are shown, with an empty cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from gangline.board.board_core import Board
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings, Bus, KeyValue, KvWrite
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.schemas.records.workers import Heartbeat, Registration

from .browser import chromium

NAMES = Names()
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def register(ledger: KeyValue, workers: int, slots: int) -> None:
    for start in range(0, workers, 250):
        writes = []
        for number in range(start, min(workers, start + 250)):
            record = Registration(
                pool=f"pool-{number % 10}",
                worker=f"w{number}",
                epoch=1,
                instance="i",
                slots=slots,
                node=f"n{number % 50}",
            )
            key = f"reg.{record.pool}.{record.worker}"
            writes.append(KvWrite(key=key, value=record.model_dump_json().encode()))
        await ledger.write(writes)


async def beat(bus: Bus, workers: int, slots: int, stop: asyncio.Event, sent: list[int]) -> None:
    """Each worker's load changes every second. Written in twenty parts, as the heartbeats of real workers spread."""
    number, prefix = 0, f"$KV.{NAMES.ledger_bucket}."
    while not stop.is_set():
        began = time.monotonic()
        for part in range(20):
            number += 1
            for worker in range(part, workers, 20):
                busy = (number + worker) % slots
                record = Heartbeat(epoch=1, instance="i", running=busy, reserved=(slots - busy) // 3, total=slots)
                bus.publish(f"{prefix}alive.pool-{worker % 10}.w{worker}", record.model_dump_json().encode())
                sent[0] += 1
            await bus.flush()
            await asyncio.sleep(max(0.0, began + (part + 1) / 20 - time.monotonic()))


async def tab(port: int, cookie: str, read: list[int], ready: asyncio.Event) -> None:
    """A browser's stream, read as it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode())
    try:
        while data := await reader.read(1 << 20):
            read[0] += len(data)
            ready.set()
    finally:
        writer.close()


async def sign_in(port: int, link: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /?token={link} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    found = re.search(r"set-cookie: ([^;]+)", answer)
    assert found is not None, answer
    return found.group(1)


async def measure(pid: int, seconds: float, what: str, sent: list[int]) -> None:
    await asyncio.sleep(3)
    begin, at, before = cpu_s(pid), time.monotonic(), sent[0]
    await asyncio.sleep(seconds)
    took = time.monotonic() - at
    told = {
        "measured": what,
        "core_percent": round(100 * (cpu_s(pid) - begin) / took, 1),
        "rss_mb": round(rss_mb(pid), 1),
        "heartbeats_per_s": round((sent[0] - before) / took),
    }
    print(json.dumps(told))
    sys.stdout.flush()


async def load(workers: int, slots: int, tabs: int, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        bus = await connect(ConnectionSettings(urls=(server.url,)), name="workers")
        stack.push_async_callback(bus.close)
        ledger = await bus.bucket(NAMES.ledger_bucket, BucketSettings())
        await register(ledger, workers, slots)
        stop, sent = asyncio.Event(), [0]
        beating = asyncio.create_task(beat(bus, workers, slots, stop, sent))
        console = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gangline.cli", "console", "-s", server.url, "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert console.stdout is not None
        found = re.search(rb"127\.0\.0\.1:(\d+)/\?token=(\S+)", await console.stdout.readline())
        assert found is not None
        port = int(found.group(1))
        cookie = await sign_in(port, found.group(2).decode())
        try:
            await measure(console.pid, seconds, "no tab", sent)
            read = [0]
            streams: list[asyncio.Task[None]] = []
            for count in (1, tabs):
                while len(streams) < count:
                    ready = asyncio.Event()
                    streams.append(asyncio.create_task(tab(port, cookie, read, ready)))
                    await ready.wait()
                before = read[0]
                await measure(console.pid, seconds, f"{count} tabs", sent)
                kilobytes = round((read[0] - before) / 1000 / (seconds + 3) / count)
                print(json.dumps({"measured": "kB/s for each tab", "value": kilobytes}))
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
        finally:
            console.terminate()
            await console.wait()
            stop.set()
            await beating


async def paint(workers: int, slots: int, rounds: int) -> None:
    """The times of several first visits, each of a browser without any history."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        bus = await connect(ConnectionSettings(urls=(server.url,)), name="workers")
        stack.push_async_callback(bus.close)
        await register(await bus.bucket(NAMES.ledger_bucket, BucketSettings()), workers, slots)
        stop = asyncio.Event()
        beating = asyncio.create_task(beat(bus, workers, slots, stop, [0]))
        console = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gangline.cli", "console", "-s", server.url, "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert console.stdout is not None
            for _ in range(rounds):
                found = re.search(rb"http://\S+", await console.stdout.readline())  # each sign-in prints the next link
                assert found is not None
                async with chromium() as browser:
                    page = await browser.page()
                    await page.size(1440, 900)
                    await page.send("Page.addScriptToEvaluateOnNewDocument", source=SHOWN)
                    await page.open(found.group().decode())
                    await page.until("window.shownAt && performance.getEntriesByType('paint').length === 2")
                    paints = (
                        "Object.fromEntries(performance.getEntriesByType('paint').map((p) => [p.name, p.startTime]))"
                    )
                    told = {**await page.run(paints), "slots shown": await page.run("window.shownAt")}
                    times = {name: round(ms) for name, ms in told.items()}
                    print(json.dumps({"measured": "ms of a first visit", "workers": workers, **times}))
                    sys.stdout.flush()
        finally:
            console.terminate()
            await console.wait()
            stop.set()
            await beating


SHOWN = """
new MutationObserver((_, observer) => {
  if (!document.querySelector('.cells canvas')) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.shownAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the first worker's slots have been drawn."""


def memory(events: int) -> None:
    """A board that is told of many events: its memory afterwards, and in the middle."""
    from gangline.schemas.messages.gangs import GangEvent, GangEventKind
    from gangline.schemas.records.jobs import JobEvent, JobState

    board = Board()
    for number in range(events):
        if number % 2:
            job = JobEvent(job=f"j{number}", state=JobState.RUNNING, attempt=1, worker="a.b", at=float(number))
            board.see_job(job.model_dump_json().encode())
        else:
            event = GangEvent(kind=GangEventKind.ENDED, gang=f"g{number}", generation=1, size=1, at=float(number))
            board.see_event(f"gangline.event.gang.g{number}", event.model_dump_json().encode(), float(number))
        if number % 50 == 0:
            board.take()
        if number + 1 in (events // 10, events // 2, events):
            print(
                json.dumps(
                    {"measured": "rss after events", "events": number + 1, "rss_mb": round(rss_mb(os.getpid()), 1)}
                )
            )
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--tabs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--paint", action="store_true", help="measure only the first paint in a headless Chromium")
    parser.add_argument("--rounds", type=int, default=5, help="of --paint")
    given = parser.parse_args()
    if given.paint:
        asyncio.run(paint(given.workers, given.slots, given.rounds))
        return
    memory(given.events)
    asyncio.run(load(given.workers, given.slots, given.tabs, given.seconds))


if __name__ == "__main__":
    main()
