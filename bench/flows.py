"""`python -m bench.flows`: how many files of ours one request passes through.

Runs each flow once on a cluster in memory, on virtual time, after a first one that opened and imported everything, and
follows it by calls of functions: the files, classes and functions it enters, how often it moves from one file to
another, and how often it comes back to one. `--list` names the rooms (packages) in the order in which they are entered,
and the files of each.

Left out: the server in memory, which stands for NATS, and `gangline.testing`. Processes that do nothing for the flow,
such as a coordinator during a call, are not started; heartbeats that fall into a flow count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import gangline
from gangline.bus.memory.connection import MemoryBus
from gangline.dispatcher.client.client import Client
from gangline.testing import VirtualLoop
from gangline.testing.in_memory import Cluster, cluster

_ROOT: Final = Path(gangline.__file__).parent
_OUTSIDE: Final = ("bus/memory/", "testing/")
_LIMIT_S: Final = 600.0
"""Of virtual time, for one flow."""


@dataclass
class Followed:
    """What one flow entered, in order."""

    name: str
    moves: int = 0
    returns: int = 0
    """Moves into a file that was entered before."""
    files: dict[str, None] = field(default_factory=dict[str, None])
    classes: set[str] = field(default_factory=set[str])
    functions: set[str] = field(default_factory=set[str])
    _last: str = ""
    _known: dict[CodeType, str | None] = field(default_factory=dict[CodeType, str | None])

    def enter(self, code: CodeType) -> None:
        file = self._known.get(code, "")
        if file == "":
            file = self._known[code] = _file_of(code)
        if file is None:
            return
        self.functions.add(f"{file}:{code.co_qualname}")
        owner, _, _ = code.co_qualname.rpartition(".")
        if owner and "<locals>" not in owner:
            self.classes.add(f"{file}:{owner}")
        if file != self._last:
            self.moves += 1
            self.returns += file in self.files
            self._last = file
            self.files.setdefault(file)

    def rooms(self) -> dict[str, list[str]]:
        """Package -> its files, both in the order of entering."""
        found: dict[str, list[str]] = {}
        for file in self.files:
            room, _, name = file.rpartition("/")
            found.setdefault(room, []).append(name.removesuffix(".py"))
        return found

    def figures(self) -> dict[str, int]:
        return {
            "files": len(self.files),
            "bus_files": sum(file.startswith("bus/") for file in self.files),
            "classes": len(self.classes),
            "functions": len(self.functions),
            "moves": self.moves,
            "returns": self.returns,
        }


def _file_of(code: CodeType) -> str | None:
    try:
        file = Path(code.co_filename).relative_to(_ROOT).as_posix()
    except ValueError:
        return None
    return None if file.startswith(_OUTSIDE) else file


async def _follow(name: str, flow: Callable[[], Awaitable[object]]) -> Followed:
    path = Followed(name)

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path.enter(frame.f_code)

    sys.setprofile(enter)
    try:
        await flow()
    finally:
        sys.setprofile(None)
    return path


def _pool() -> gangline.Pool:
    pool = gangline.Pool("flows", slots=4)
    seen: set[int] = set()

    @pool.task(idempotent=True)
    async def double(number: int) -> int:
        return 2 * number

    @pool.task(idempotent=True)
    async def fails_once(number: int) -> int:
        if number not in seen:
            seen.add(number)
            raise ValueError("the first try")
        return number

    return pool


@asynccontextmanager
async def _measured() -> AsyncGenerator[None, None]:
    """Metrics are on meanwhile, and read nowhere."""
    provider = MeterProvider([InMemoryMetricReader()])
    metrics.set_meter_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


async def plain_call() -> list[Followed]:
    async with cluster(_pool()) as client:
        return [await _second("call, plain", lambda: client.call("flows.double", 2))]


async def observed_call() -> list[Followed]:
    async with _measured(), cluster(_pool()) as client:
        keyed = client.options(key="k")
        return [await _second("call, with a key and metrics", lambda: keyed.call("flows.double", 2))]


async def _second(name: str, flow: Callable[[], Awaitable[object]]) -> Followed:
    await flow()
    return await _follow(name, flow)


async def gang() -> list[Followed]:
    """Until it is granted; then a worker dies, and until it is granted again."""
    running = cluster(_pool(), workers=3, coordinator=True)
    async with running as client:
        async with client.gang(pool="flows", size=2):
            pass
        async with AsyncExitStack() as stack:
            acquired: list[gangline.Gang] = []

            async def acquire() -> None:
                acquired.append(await stack.enter_async_context(client.gang(pool="flows", size=2)))

            granted = await _follow("gang, until it is granted", acquire)
            again = await _follow("gang, from a worker's death until it is granted again", _death(running, acquired[0]))
        return [granted, again]


def _death(running: Cluster, owned: gangline.Gang) -> Callable[[], Awaitable[object]]:
    async def flow() -> None:
        generation = owned.generation
        bus = running.workers[owned.members[0].worker].bus
        assert isinstance(bus, MemoryBus)
        running.hub.kill(bus)
        while owned.generation == generation or not owned.members:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.05)

    return flow


async def submitted_task() -> list[Followed]:
    async with cluster(_pool(), dispatcher=True) as client:
        await _run_one(client, 1)
        return [await _follow("submitted task that fails once", lambda: _run_one(client, 2))]


async def _run_one(client: Client, number: int) -> None:
    job = await client.options(max_attempts=3).submit("flows.fails_once", number)
    assert await job.result() == number


FLOWS: Final = (plain_call, observed_call, gang, submitted_task)


def follow_all() -> list[Followed]:
    """Each flow on a loop of its own."""
    found: list[Followed] = []
    for flow in FLOWS:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(limit_s=_LIMIT_S)) as runner:
            found += runner.run(flow())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flows", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the rooms and files, too")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    paths = follow_all()
    if given.json:
        print(json.dumps({path.name: {**path.figures(), "rooms": path.rooms()} for path in paths}))
        return
    names = list(paths[0].figures())
    print(f"{'':<58}" + "".join(f"{name.replace('_', ' '):>11}" for name in names))
    for path in paths:
        print(f"{path.name:<58}" + "".join(f"{number:>11}" for number in path.figures().values()))
        if given.list:
            for room, files in path.rooms().items():
                print(f"    {room}: {', '.join(files)}")


if __name__ == "__main__":
    main()
