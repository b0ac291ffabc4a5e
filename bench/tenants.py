"""`python -m bench.tenants`: what a tenant that does all it can costs another one that shares its workers.

For each attack a new system in processes of their own: a server with an account for each tenant, a coordinator, a
gateway, a dispatcher, and one worker of 8 slots. `shop` makes two calls at a time and submits one task at a time, each
of 20 ms, and waits for each result, while `lab` attacks from another process. A row has the times of `shop` from
sending to the result: median and 99th percentile in milliseconds, and how many requests there were.

Other work on the machine falsifies the times; as root, `chrt -r 1 python -m bench.tenants` goes before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers.store import save
from gangline import Pool
from gangline.bench.loads import percentile
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.session import run as run_loop
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import configuration, parse_user, variable
from gangline.testing.kit.processes import Crew

QUOTAS: Final = "slots=4 gangs=1 gang_slots=4 queued_tasks=100"
PROCESSES: Final = {
    "coordinator": ("coordinator",),
    "dispatcher": ("dispatcher",),
    "gateway": ("gateway",),
    "worker": ("worker", "bench.tenants:images", "--id", "w1"),
}
USERS: Final = (*PROCESSES, "operator", "web@shop=producer", "batch@lab=producer+owner")
_PASSWORD: Final = "bench"  # noqa: S105 - of a server that lives for a minute
_SHARED: Final = "images"
"""The endpoint of both tenants."""
_OWN: Final = "lab-images"
"""An endpoint of the attacker, whose route may use half of the slots."""
_SECONDS: Final = 20.0
_READY_S: Final = 60.0
_GIVE_UP_S: Final = 120.0
"""A request that takes longer has failed."""
_MOST_S: Final = 600.0
"""An attack lasts no longer, whatever happens to its victim."""

images = Pool("images", slots=8)


@images.task
async def nap(seconds: float = 0.02, *_: Any) -> None:
    await asyncio.sleep(seconds)


@images.task
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


# -- the attacker -----------------------------------------------------------------------------------------------------


class Attacker:
    """`lab`, with a bare client."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus

    async def ask(self, subject: str, body: bytes = b"[]", **headers: str) -> None:
        """One request; whatever its answer, it goes on."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.suppress(GanglineError):
            await self._bus.request(f"gangline.{subject}", body, headers=given or None, timeout_s=_GIVE_UP_S)

    async def each(self, requests: Sequence[Awaitable[None]], *, at_once: int = 256) -> None:
        for start in range(0, len(requests), at_once):
            await asyncio.gather(*requests[start : start + at_once])

    async def repeatedly(self, request: Callable[[], Awaitable[None]], at_once: int) -> None:
        async def go_on() -> None:
            while True:
                await request()

        await asyncio.gather(*(go_on() for _ in range(at_once)))

    async def long_calls(self) -> None:
        await asyncio.gather(*(self.ask(f"call.{_SHARED}.nap", b"[1]") for _ in range(5000)))

    async def calls(self) -> None:
        await self.repeatedly(lambda: self.ask(f"call.{_SHARED}.nap"), 200)

    async def streams(self) -> None:
        await asyncio.gather(
            *(self.ask(f"call.{_SHARED}.count", b"[100000]", Gangline_Stream="10") for _ in range(500))
        )

    async def large_calls(self) -> None:
        body = json.dumps([0.02, "x" * 900_000]).encode()
        await self.repeatedly(lambda: self.ask(f"call.{_SHARED}.nap", body), 50)

    async def odd_calls(self) -> None:
        body = b"\xdd" + (300_000).to_bytes(4, "big") + b"\x90" * 300_000
        msgpack = "application/msgpack"
        await self.repeatedly(lambda: self.ask(f"call.{_SHARED}.nap", body, Content_Type=msgpack), 8)

    async def unknown_pools(self) -> None:
        numbers = iter(range(10**9))
        await self.repeatedly(lambda: self.ask(f"call.none{next(numbers)}.nap"), 200)

    async def unknown_endpoints(self) -> None:
        await self.each([self.ask(f"task.none{number}.nap") for number in range(19_000)])

    async def gangs(self, count: int = 16_000, **more: Any) -> None:
        wanted = {"pool": images.name, "size": 8, "wait": False, "ttl_s": 86_400.0, **more}
        await self.each([self.ask("gang.acquire", json.dumps(wanted).encode()) for _ in range(count)])

    async def preempting_gangs(self) -> None:
        await self.gangs(20_000, size=1, priority=1_000_000, preempt=True)

    async def tasks(self, endpoint: str = _SHARED) -> None:
        await self.each([self.ask(f"task.{endpoint}.nap", b"[1]") for _ in range(2000)])

    async def own_tasks(self) -> None:
        await self.tasks(_OWN)


ATTACKS: Final[dict[str, Callable[[Attacker], Awaitable[None]] | None]] = {
    "nothing": None,
    "5000 calls of 1 s at once": Attacker.long_calls,
    "200 calls of 20 ms at once, repeatedly": Attacker.calls,
    "500 streams, opened and not read": Attacker.streams,
    "50 calls with 900 kB at once, repeatedly": Attacker.large_calls,
    "8 calls with 300,000 empty lists at once, repeatedly": Attacker.odd_calls,
    "200 calls at once of pools that do not exist, repeatedly": Attacker.unknown_pools,
    "19,000 tasks for as many endpoints that do not exist": Attacker.unknown_endpoints,
    "16,000 requests for gangs of all slots": Attacker.gangs,
    "20,000 requests for gangs with priority and preemption": Attacker.preempting_gangs,
    "2000 tasks of 1 s, submitted to the same endpoint": Attacker.tasks,
    "the same, to an endpoint of its own whose route has a limit of 4 slots": Attacker.own_tasks,
}


async def attack(what: str) -> None:
    do = ATTACKS[what]
    assert do is not None
    bus = await connect_bus(ConnectionSettings.from_environment(), name="lab")
    print("connected", flush=True)
    async with asyncio.timeout(_MOST_S):
        await do(Attacker(bus))
        await asyncio.Event().wait()  # streams and gangs end with their owner


# -- the victim -------------------------------------------------------------------------------------------------------


class Victim:
    """`shop`, with the Python client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.over = False
        self.times: dict[str, list[float]] = {"calls": [], "tasks": []}
        self.failed: list[str] = []

    async def call(self) -> None:
        await self._client.call(f"{_SHARED}.nap")

    async def submit(self) -> None:
        await (await self._client.submit(f"{_SHARED}.nap")).result(timeout_s=_GIVE_UP_S)

    async def until_ready(self) -> None:
        async with asyncio.timeout(_READY_S):
            for request in (self.call, self.submit):
                while True:
                    try:
                        await request()
                        break
                    except GanglineError:
                        await asyncio.sleep(0.1)

    async def go_on(self, kind: str, request: Callable[[], Awaitable[None]]) -> None:
        while not self.over:
            began = time.monotonic()
            try:
                async with asyncio.timeout(_GIVE_UP_S):
                    await request()
            except (GanglineError, TimeoutError) as error:
                self.failed.append(f"{kind}: {type(error).__name__}: {error}"[:200])
            self.times[kind].append(1000 * (time.monotonic() - began))

    async def measure(self, seconds: float) -> None:
        working = asyncio.gather(
            self.go_on("calls", self.call), self.go_on("calls", self.call), self.go_on("tasks", self.submit)
        )
        await asyncio.sleep(seconds)
        self.over = True  # what has begun is waited for, and counts
        await working


async def measure(what: str, seconds: float) -> dict[str, Any]:
    """One attack on a new system."""
    config = configuration(Names(), tuple(map(parse_user, USERS)))
    users = [text.partition("=")[0].partition("@")[0] for text in USERS]
    os.environ.update({variable(user): _PASSWORD for user in users})
    with tempfile.TemporaryDirectory(prefix="gangline-tenants-") as folder, EmbeddedServer(config=config) as server:
        crew = Crew(Path(folder), {"NATS_URL": server.url, "GANGLINE_QUOTAS": QUOTAS, "NATS_PASSWORD": _PASSWORD})

        def start(name: str, user: str, module: str, *arguments: str) -> Any:
            own = {"NATS_USER": user, "GANGLINE_INBOX_PREFIX": f"_INBOX.{user}"}
            return crew.start(name, module, *arguments, environment=own)

        own = ConnectionSettings(urls=(server.url,), user="web", password=_PASSWORD, inbox_prefix="_INBOX.web")
        try:
            for name, command in PROCESSES.items():
                start(name, name, "gangline.cli", *command, "--node", "n")
            async with Client(await connect_bus(own, name="shop"), name="shop", gateway=True) as client:
                victim = Victim(client)
                await victim.until_ready()
                route = start(
                    "route", "operator", "gangline.cli", "route", "set", _OWN, "--to", "images=1", "--limit", "images=4"
                )
                await crew.until(lambda: route.exit_code is not None, "the route is set")
                assert route.exit_code == 0, route.log_tail(3)
                if ATTACKS[what] is not None:
                    enemy = start("lab", "batch", "bench.tenants", "--attack", what)
                    out = Path(folder) / "lab.out"
                    await crew.until(lambda: out.read_text() != "", "the attack begins", alive=["lab"])
                    assert enemy.exit_code is None
                await victim.measure(seconds)
        finally:
            await crew.close(2.0)
    return {
        "attack": what,
        **{kind: _row(times) for kind, times in victim.times.items()},
        "failed": victim.failed,
    }


def _row(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"count": len(times), "p50_ms": round(percentile(times, 0.5)), "p99_ms": round(percentile(times, 0.99))}


def _table(found: Sequence[dict[str, Any]]) -> str:
    lines = ["| `lab` does | calls | submitted tasks |", "|---|---|---|"]
    for one in found:
        cells = [f"{one[kind]['p50_ms']}, {one[kind]['p99_ms']}" for kind in ("calls", "tasks")]
        lines.append(f"| {one['attack']} | {' | '.join(cells)} |")
    return "\n".join(lines)


async def measure_all(attacks: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    found = []
    for what in attacks:
        found.append(await measure(what, seconds))
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tenants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="how long each attack is measured")
    parser.add_argument("--only", choices=ATTACKS, action="append", help="these attacks alone")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        run_loop(attack(given.attack))
        return
    found = run_loop(measure_all(given.only or list(ATTACKS), given.seconds))
    save("tenants", {"rows": found})
    print(_table(found))
    sys.exit(1 if any(one["failed"] for one in found) else 0)


if __name__ == "__main__":
    main()
