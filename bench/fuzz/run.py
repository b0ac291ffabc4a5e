"""One run: a system in real processes, hostile messages to all its doors, valid requests in between, a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.fuzz.doors import LEDGER, Doors
from bench.fuzz.permissions import (
    FREE,
    MEMORY,
    PASSWORD,
    PROCESS_USERS,
    Observer,
    check_permissions,
    environment,
    server_configuration,
)
from bench.fuzz.wire import BareClient
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus, connect
from gangline.bus.port.bus import NoResponders
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import GanglineError, NoCoordinator
from gangline.schemas.names import Names
from gangline.testing.kit.processes import PATIENCE_S, Crew, holds_within, remaining

NAMESPACE: Final = "fuzz"
PROCESSES: Final = {
    "coordinator": ("coordinator",),
    "dispatcher": ("dispatcher", "--unknown-after", "5s", "--max-attempts", "2", "--backoff", "100ms"),
    "gateway": ("gateway",),
    "v1": ("worker", "bench.fuzz.tasks:fuzz", "--id", "v1"),
    "g1": ("worker", "bench.fuzz.tasks:good", "--id", "g1"),
}
FREEZES: Final = ("coordinator", "dispatcher", "gateway")
"""Processes that do not run for a while. They must answer what they received meanwhile. (Workers must not: they take a
new epoch, and most messages name an epoch.)"""
_FREEZE_EACH: Final = 8000
"""Messages per freeze."""
_FREEZE_S: Final = 2.5
"""A coordinator loses its leadership after 1.5 s."""
_STREAM: Final = re.compile(rb"fuzz\.stream\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
"""In the answer to a streamed call."""
_MOST_BYTES: Final = 900_000
"""The server closes the connection of a client that sends a message of more than a megabyte."""
_WINDOW: Final = 256
"""Maximum number of messages whose answers are pending."""
_ANSWERED_S: Final = 30.0
"""A request without an answer after this time makes room for others. It counts as unanswered if it has no answer when
the run is over, and no other answer has come for so long."""
_TASKS: Final = 0.15
"""Tasks per message to another door. Tasks are accepted before they run, so more would only fill the queue."""
HEADERS: Final = "headers"
"""The door for the server's own headers, used before all others, while the system has nothing else to do."""
_HEADERS: Final = 0.1
"""Part of the time, and of the messages, for it."""
_PROBE_S: Final = 0.2
_AGAIN_S: Final = 0.1
_GOOD_S: Final = PATIENCE_S
"""A valid request that takes longer hangs. How long they take is a figure, and no verdict."""
_FIRST_S: Final = 10.0
"""While the system starts, a request may be lost: it is sent again after this time."""
_GROWTH_KB: Final = 100_000
_LINES: Final = 5000
"""In a log, for each 100,000 messages or part of them."""
_RESTS_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The outcome of a run."""

    sent: Counter[str] = field(default_factory=Counter[str])
    """Number of messages by door."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list[str])
    """The criteria that failed."""
    figures: dict[str, str] = field(default_factory=dict[str, str])

    def text(self) -> str:
        total = sum(self.sent.values())
        rate = total / self.seconds if self.seconds else 0.0
        doors = ", ".join(f"{door} {count}" for door, count in sorted(self.sent.items()))
        lines = [f"{total} messages in {self.seconds:.0f} s ({rate:.0f}/s): {doors}"]
        lines += [f"{name}: {text}" for name, text in self.figures.items()]
        return "\n".join([*lines, *(f"BROKEN: {finding}" for finding in self.findings)] or ["-"])


class _Fire:
    """Sends messages and counts their answers."""

    def __init__(self, wire: BareClient, doors: Doors, seed: int) -> None:
        self._wire = wire
        self._doors = doors
        self._choice = Random(f"doors {seed}")
        self._pending: dict[int, tuple[float, str]] = {}
        self._late: dict[int, tuple[float, str]] = {}
        """Those for which the others do not wait any more."""
        self._number = 0
        self._room = asyncio.Event()
        self.answered = 0
        self.unanswered: Counter[str] = Counter()
        self.examples: list[str] = []
        self.slowest_s = 0.0

    def on_answer(self, subject: str, _reply: str, body: bytes) -> None:
        opened = _STREAM.search(body)
        if opened is not None:
            _noted(self._doors.streams, opened[0].decode())
        number = int(subject.rpartition(".")[2])
        found = self._pending.pop(number, None) or self._late.pop(number, None)
        if found is not None:
            self.answered += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - found[0])
            self._room.set()

    async def one(self, door: str) -> None:
        shot = self._doors.draw[door]()
        self._number += 1
        reply = f"_INBOX.fuzz.{self._number}" if shot.due or self._choice.random() < 0.5 else ""
        if shot.due:
            self._pending[self._number] = (
                time.monotonic(),
                f"{shot.subject} {shot.data[:100]!r} {dict(shot.headers)}"[:300],
            )
        self._wire.publish(shot.subject, shot.data[:_MOST_BYTES], reply=reply, headers=shot.headers)
        if self._number % 64 == 0:
            await self._wire.flush()
        while len(self._pending) >= _WINDOW:
            self._expire()
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._room.wait()

    def _expire(self) -> None:
        now = time.monotonic()
        for number, (at, _) in list(self._pending.items()):
            if now - at > _ANSWERED_S:
                self._late[number] = self._pending.pop(number)

    async def rest(self) -> None:
        """Wait for pending answers, for as long as any come."""
        await self._wire.flush()
        await holds_within(
            _ANSWERED_S, lambda: not (self._pending or self._late), pause_s=0.1, progress=lambda: self.answered
        )
        self.examples = [what for _, what in (self._late | self._pending).values()]
        self.unanswered.update(what.split()[0] for what in self.examples)


async def fuzz(
    seed: int,
    *,
    seconds: float,
    most: int | None = None,
    only: tuple[str, ...] = (),
    say: Callable[[str], None] = print,
    keep: Path | None = None,
) -> Verdict:
    """Run one seed.

    Args:
        seconds: maximum time for which messages are sent.
        most: maximum number of messages.
        only: doors; all if empty.
        keep: folder for the logs.
    """
    verdict = Verdict()
    with contextlib.ExitStack() as folders:
        folder = keep or Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="gangline-fuzz-")))
        folder.mkdir(parents=True, exist_ok=True)
        with EmbeddedServer(config=server_configuration(Names(NAMESPACE))) as server:
            crew = Crew(folder, {"GANGLINE_NAMESPACE": NAMESPACE, "NATS_URL": server.url, **MEMORY})
            try:
                await _play(crew, server, seed, seconds, most, only, say, verdict)
            finally:
                await crew.close(10.0)
    return verdict


async def _play(
    crew: Crew,
    server: EmbeddedServer,
    seed: int,
    seconds: float,
    most: int | None,
    only: tuple[str, ...],
    say: Callable[[str], None],
    verdict: Verdict,
) -> None:
    for name, command in PROCESSES.items():
        user = environment(PROCESS_USERS[name].name)
        crew.start(name, "gangline.cli", *command, "--log-format", "json", "--node", name, environment=user)
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(ConnectionSettings(urls=(server.url,), user=FREE, password=PASSWORD))
        client = Client(bus, names=Names(NAMESPACE), owns_bus=True, name="good")
        await client.start()
        stack.push_async_callback(client.close)
        wire = await BareClient.connect(server.port, FREE, PASSWORD)
        stack.push_async_callback(wire.close)
        probes = _Probes(client, wire)
        await crew.until(probes.ready, "the system serves", pause_s=0.2, alive=list(PROCESSES))
        began = time.monotonic()
        if not only or HEADERS in only:
            part = 1.0 if only == (HEADERS,) else _HEADERS
            limit = None if most is None else int(most * part)
            checked = await _check_permissions(bus, server.port, seed, seconds * part, limit)
            verdict.sent[HEADERS], verdict.findings = checked
        doors = Doors(Random(f"fuzz {seed}"), NAMESPACE, await probes.epoch())
        fire = _Fire(wire, doors, seed)
        wire.subscribe("_INBOX.fuzz.*", fire.on_answer)
        wire.subscribe(
            f"_GANGLINE.{NAMESPACE}.worker.fuzz.*.*.frames", lambda _s, reply, _b: _noted(doors.channels, reply)
        )
        probing = asyncio.ensure_future(probes.run())
        stack.push_async_callback(_cancelled, probing)
        memory: dict[str, list[int]] = {name: [] for name in PROCESSES}
        choice, names = Random(f"order {seed}"), [name for name in only or doors.draw if name != HEADERS]
        weights = [_TASKS if name == "streams" and len(names) > 1 else 1.0 for name in names]
        await probes.ask("call.fuzz.echo", [1])
        await wire.flush()
        last = time.monotonic()
        while names and (now := time.monotonic()) - began < seconds and (most is None or verdict.sent.total() < most):
            [door] = choice.choices(names, weights)
            await fire.one(door)
            verdict.sent[door] += 1
            if verdict.sent.total() % _FREEZE_EACH == _FREEZE_EACH // 2:
                frozen = crew.started[FREEZES[verdict.sent.total() // _FREEZE_EACH % len(FREEZES)]]
                frozen.signal(signal.SIGSTOP)
                asyncio.get_running_loop().call_later(_FREEZE_S, frozen.signal, signal.SIGCONT)
            if now - last > 2.0:
                last = now
                _measure(crew, memory)
                if gone := [name for name in PROCESSES if crew.started[name].exit_code is not None]:
                    say(f"{', '.join(gone)} ended")
                    break
        verdict.seconds = time.monotonic() - began
        await fire.rest()
        _measure(crew, memory)
        probes.stopping = True
        await probing
        for key in LEDGER:
            wire.publish(f"$KV.{NAMESPACE.upper()}_LEDGER.{key}", b"", headers={"KV-Operation": "DEL"})
        left = await remaining(_RESTS_S, probes.held, pause_s=0.5)
        _judge(crew, verdict, fire, probes, memory, [*left, *wire.errors[:3]])


async def _check_permissions(
    bus: NatsBus, port: int, seed: int, seconds: float, most: int | None
) -> tuple[int, list[str]]:
    wire = await BareClient.connect(port, FREE, PASSWORD)
    try:
        observer = Observer(bus, wire, Names(NAMESPACE))
        await observer.start()
        checked = await check_permissions(observer, port, seed, seconds=seconds, most=most)
        await observer.stop()
        return checked
    finally:
        await wire.close()


def _noted(channels: list[str], reply: str) -> None:
    if reply and reply not in channels:
        channels.append(reply)
        del channels[:-8]


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class _Probes:
    """Valid requests of each kind, and what they leave behind."""

    def __init__(self, client: Client, wire: BareClient) -> None:
        self._client = client
        self._wire = wire
        self._number = 0
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        wire.subscribe("_INBOX.probe.*", self._on_answer)
        self.served: set[str] = set()
        """The kinds that have succeeded since the system was started."""
        self.times: dict[str, list[float]] = {}
        self.failed: list[str] = []
        self.stopping = False
        self.kinds: dict[str, Callable[[], Awaitable[bool]]] = {
            "call": self._call,
            "gateway": self._gateway,
            "stream": self._stream,
            "submit": self._submit,
            "stats": self._stats,
            "gangs": self._gangs,
        }

    def _on_answer(self, subject: str, _reply: str, body: bytes) -> None:
        waiting = self._waiting.pop(subject, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)

    async def ask(self, subject: str, body: object, headers: Mapping[str, str] | None = None) -> Any:
        self._number += 1
        reply = f"_INBOX.probe.{self._number}"
        self._waiting[reply] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[reply]
        self._wire.publish(f"{NAMESPACE}.{subject}", json.dumps(body).encode(), reply=reply, headers=headers)
        answer = (await waiting).rpartition(b"\r\n\r\n")[2]
        return json.loads(answer) if answer else {"code": NoResponders.code}

    async def _call(self) -> bool:
        return bool(await self._client.call("good.double", 21) == 42)

    async def _gateway(self) -> bool:
        return bool(await self.ask("call.good.double", [21]) == 42)

    async def _stream(self) -> bool:
        first = await self.ask("call.good.count", [9], {"Gangline-Stream": "4"})
        items, following = first["items"], first["next"]
        while following is not None:
            answer = await self.ask(following.removeprefix(f"{NAMESPACE}."), {"after": len(items)})
            items, following = items + answer["items"], answer["next"]
        return bool(items == list(range(9)))

    async def _submit(self) -> bool:
        job = await self._client.submit("good.double", 21)
        return bool(await job.result(_GOOD_S) == 42)

    async def _stats(self) -> bool:
        return bool((await self.ask("worker.fuzz.v1.stats", {}))["worker"] == "v1")

    async def _gangs(self) -> bool:
        """Form and release a gang of two slots on the worker for valid requests."""
        gang = await self._led("acquire", {"pool": "good", "size": 2, "ttl_s": 5.0, "deadline_s": _GOOD_S})
        ended = await self._led("release", {"id": gang["id"], "owner_token": gang["owner_token"]})
        return bool(gang["state"] == "formed" and ended["state"] == "ended")

    async def _led(self, operation: str, body: object) -> Any:
        """Ask the coordinator, which loses its leadership if it has no CPU for a while: then ask again."""
        while True:
            answer = await self.ask(f"gang.{operation}", body)
            if answer.get("code") not in (NoCoordinator.code, NoResponders.code):
                return answer
            await asyncio.sleep(_AGAIN_S)

    async def ready(self) -> bool:
        """Try what has not succeeded yet."""
        for kind in self.kinds.keys() - self.served:
            with contextlib.suppress(GanglineError, TimeoutError, ValueError, KeyError):
                async with asyncio.timeout(_FIRST_S):
                    if await self.kinds[kind]():
                        self.served.add(kind)
        return self.served == self.kinds.keys()

    async def epoch(self) -> int:
        return int((await self.ask("worker.fuzz.v1.stats", {}))["epoch"])

    async def run(self) -> None:
        """One after the other, until `stopping`; the last one is waited for."""
        while not self.stopping:
            for kind, probe in self.kinds.items():
                if self.stopping:
                    return
                began, fault = time.monotonic(), ""
                try:
                    async with asyncio.timeout(_GOOD_S):
                        fault = "" if await probe() else "a wrong answer"
                except (GanglineError, TimeoutError, ValueError, KeyError, TypeError) as error:
                    fault = f"{type(error).__name__}: {error}"
                if fault:
                    self.failed.append(f"{kind}: {fault[:200]}")
                self.times.setdefault(kind, []).append(time.monotonic() - began)
                await asyncio.sleep(_PROBE_S / len(self.kinds))

    async def held(self) -> list[str]:
        """What still runs or is held by gangs after the last request."""
        found = []
        with contextlib.suppress(KeyError):
            for gang in (await self._led("list", {}))["gangs"]:
                await self._led("end", {"id": gang["id"]})
                found.append(f"gang {gang['id']} is {gang['state']}")
        for worker in ("fuzz.v1", "good.g1"):
            stats = await self.ask(f"worker.{worker}.stats", {})
            if stats["load"]["running"]:
                found.append(f"{worker} runs {stats['load']['running']}")
            found += [f"{worker} has {share['slots']} slots of gang {share['gang']}" for share in stats["gangs"]]
        return found


def _measure(crew: Crew, memory: dict[str, list[int]]) -> None:
    for name, sizes in memory.items():
        with contextlib.suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{crew.started[name].pid}/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGE_SIZE") // 1024)


def _judge(
    crew: Crew, verdict: Verdict, fire: _Fire, probes: _Probes, memory: dict[str, list[int]], left: list[str]
) -> None:
    found = verdict.findings
    for name in PROCESSES:
        code = crew.started[name].exit_code
        if code is not None:
            found.append(f"{name} ended with exit code {code}: {crew.started[name].log_tail(2)[:400]}")
        found += _of_log(name, crew.started[name].log_text(), _LINES * (1 + verdict.sent.total() // 100_000))
    for subject, count in fire.unanswered.items():
        found.append(f"{count} requests to {subject} were not answered, and for {_ANSWERED_S:g} s no other was")
    found += [f"unanswered: {example}" for example in fire.examples[:5]]
    found += [f"a good request failed: {text}" for text in probes.failed[:10]]
    found += [f"left behind: {text}" for text in left]
    for name, sizes in memory.items():
        early = sizes[len(sizes) // 4] if sizes else 0
        if sizes and sizes[-1] - early > _GROWTH_KB:
            found.append(f"{name} grew from {early // 1024} to {sizes[-1] // 1024} MB")
    figures = verdict.figures
    figures["answers"] = f"{fire.answered}, slowest {fire.slowest_s:.2f} s"
    figures["good requests"] = ", ".join(
        f"{kind} {len(times)} (p50 {sorted(times)[len(times) // 2] * 1e3:.0f}, max {max(times) * 1e3:.0f} ms)"
        for kind, times in probes.times.items()
    )
    figures["memory in MB"] = ", ".join(f"{name} {s[0] // 1024}->{s[-1] // 1024}" for name, s in memory.items() if s)
    figures["log lines"] = ", ".join(f"{name} {crew.started[name].log_text().count(chr(10))}" for name in PROCESSES)


def _of_log(name: str, text: str, most: int = _LINES) -> list[str]:
    """Unhandled exceptions, and floods: more lines than that."""
    lines = text.splitlines()
    found = [f"{name} logged {len(lines)} lines"] if len(lines) > most else []
    seen: Counter[str] = Counter()
    last: dict[str, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if trace := record.get("exception"):
                key = f"{record['action']}: {trace.strip().splitlines()[-1][:200]}"
                seen[key] += 1
                last[key] = trace
            continue
        if not line.startswith("{"):
            found.append(f"{name} printed {line[:200]}")
    return found[:5] + [f"{name}: {count} x {key}\n{last[key][-1500:]}" for key, count in seen.items()]
