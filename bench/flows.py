"""`python -m bench.flows`: counts the files that a call, a gang and a submitted task go through.

Each flow runs on the in-memory cluster with a virtual clock, and once before it is traced, so that one-off work is not
counted. Only the product's own files count. `bus` has its own column, without the transports, which differ between the
memory server and NATS. A move is a change of file in the order of calls; a re-entry is a move into a file that was
entered before. `--list` prints the packages in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import gangline
from gangline.runtime.clock import Environment
from gangline.testing import Cluster, VirtualLoop, cluster

_ROOT: Final = Path(__file__).resolve().parent.parent
_ROOMS: Final = ("bus", "coordinator", "dispatcher", "runtime", "schemas", "telemetry", "worker")
_BELOW: Final = ("bus/memory/", "bus/nats_client/", "bus/nats_bus.py")
"""The transports themselves."""
_STAND_INS: Final = ("worker/execution/executors/eager_backport.py",)
"""What asyncio brings itself from Python 3.12 on."""
_GENERATED: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Names of functions that are parts of the function around them."""
_SUSPENDS: Final = 0x20 | 0x80 | 0x200
"""Flags of generators, coroutines and async generators: they are entered again after each wait."""


@dataclass(frozen=True)
class Figures:
    """What one flow goes through.

    Attributes:
        files: product files outside `bus`.
        bus: files of `bus`, without the transports.
        classes: classes with a method that ran.
        functions: functions that ran.
        moves: changes of file in the order of calls.
        reentries: moves into a file that was entered before.
    """

    files: int
    bus: int
    classes: int
    functions: int
    moves: int
    reentries: int


@dataclass
class Trace:
    """The product's functions, in the order in which they were entered."""

    entered: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _known: dict[CodeType, tuple[str, str] | None] = field(default_factory=dict[CodeType, tuple[str, str] | None])
    _first: dict[CodeType, int] = field(default_factory=dict[CodeType, int])

    @contextmanager
    def running(self) -> Generator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _place(code)
        place = self._known[code]
        if place is None:
            return
        if code.co_flags & _SUSPENDS and frame.f_lasti > self._first.setdefault(code, frame.f_lasti):
            return  # continues after a wait
        self.entered.append(place)

    def figures(self) -> Figures:
        rooms = self.rooms()
        files = {file for file, _ in self.entered}
        outside = {file for file in files if not file.startswith("bus/")}
        functions = {place for place in self.entered if place[0] in outside}
        classes = {(file, name.rpartition(".")[0]) for file, name in functions if "." in name}
        return Figures(
            files=len(outside),
            bus=len(files) - len(outside),
            classes=len(classes),
            functions=len(functions),
            moves=len(rooms) - 1,
            reentries=len(rooms) - len(outside),
        )

    def rooms(self) -> list[str]:
        """The files outside `bus`, in order, once per visit."""
        order: list[str] = []
        for file, _ in self.entered:
            if not file.startswith("bus/") and (not order or order[-1] != file):
                order.append(file)
        return order


def _place(code: CodeType) -> tuple[str, str] | None:
    """File and name of a function of the product; None for any other function."""
    if code.co_name in _GENERATED or code.co_filename.startswith("<"):
        return None
    path = Path(code.co_filename).resolve()
    if not path.is_relative_to(_ROOT):
        return None
    file = path.relative_to(_ROOT).as_posix()
    if file.split("/", 1)[0] not in _ROOMS or file.startswith((*_BELOW, *_STAND_INS)):
        return None
    return file, code.co_qualname.replace(".<locals>", "")


Flow = Callable[[Trace], Coroutine[Any, Any, None]]
pool: Final = gangline.Pool("flows", slots=4)
_failing: Final = {"left": 0}


@pool.task
async def echo(text: str) -> str:
    return text


@pool.task(idempotent=True)
async def unsteady(text: str) -> str:
    _failing["left"] -= 1
    if _failing["left"] >= 0:
        raise ValueError("once")
    return text


@asynccontextmanager
async def _opened(**options: Any) -> AsyncGenerator[tuple[Cluster, gangline.Client]]:
    system = cluster(pool, ambient=_ambient(), **options)
    async with system as client:
        yield system, client


def _ambient() -> Environment:
    chance = random.Random("flows")
    now = asyncio.get_running_loop().time
    return Environment(wall=lambda: 1.8e9 + now(), random=chance, token=lambda: f"{chance.getrandbits(128):032x}"[:22])


async def plain_call(trace: Trace) -> None:
    """A plain call with a timeout."""
    async with _opened() as (_, client):
        bound = client.options(timeout_s=5)
        await bound.call("flows.echo", "once before")
        with trace.running():
            await bound.call("flows.echo", "counted")
            await _at_rest()


async def keyed_call(trace: Trace) -> None:
    """A call with a key, while metrics are recorded."""
    async with _opened() as (_, client):
        bound = client.options(timeout_s=5, key="user-7")
        await bound.call("flows.echo", "once before")
        with trace.running():
            await bound.call("flows.echo", "counted")
            await _at_rest()


async def gang_with_a_death(trace: Trace) -> None:
    """A gang is requested and granted; the worker of a member dies, and the gang is restarted."""
    async with _opened(workers=3, coordinator=True) as (system, client):
        async with client.gang(pool="flows", size=2, slots=4, deadline_s=30):
            pass
        await asyncio.sleep(1)
        asked = client.gang(pool="flows", size=2, slots=4, restart="restart_gang", max_restarts=3, deadline_s=30)
        async with AsyncExitStack() as stack:
            with trace.running():
                gang = await stack.enter_async_context(asked)
                _kill(system, gang.members[0].worker)
                while gang.generation < 2:  # noqa: ASYNC110 - virtual time; what happens meanwhile counts
                    await asyncio.sleep(0.5)
                await gang.wait_formed()


async def submitted_task(trace: Trace) -> None:
    """A submitted task fails once, is retried, and its result is read."""
    async with _opened(dispatcher=True) as (_, client):
        bound = client.options(max_attempts=3, backoff_s=0.1)
        for counted in (False, True):
            _failing["left"] = 1
            if not counted:
                await (await bound.submit("flows.unsteady", text="once before")).result()
                await asyncio.sleep(0.5)
                continue
            with trace.running():
                job = await bound.submit("flows.unsteady", text="counted")
                await job.result()


FLOWS: Final[dict[str, Flow]] = {
    "plain call": plain_call,
    "call with key and metrics": keyed_call,
    "gang: granted, a death, restarted": gang_with_a_death,
    "submitted task: fails, retried, result": submitted_task,
}


def _kill(system: Cluster, worker: str) -> None:
    """The worker's process is gone, and the server does not report it."""
    name = worker if "." in worker else f"flows.{worker}"
    [bus] = [bus for bus in system.hub.connections if bus.name == f"worker-{name.replace('.', '-')}"]
    system.hub.kill(bus)


async def _at_rest() -> None:
    """Run what the call scheduled immediately; no timer fires."""
    for _ in range(10):
        await asyncio.sleep(0)


def traced(name: str) -> Trace:
    """Run one flow."""
    trace = Trace()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(FLOWS[name](trace))
    return trace


def all_traced() -> dict[str, Trace]:
    """Each flow; the one with metrics comes last, since a meter provider cannot be removed."""
    traces = {name: traced(name) for name in FLOWS if "metrics" not in name}
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))
    traces |= {name: traced(name) for name in FLOWS if "metrics" in name}
    return {name: traces[name] for name in FLOWS}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.flows", description="Count the files that a flow goes through."
    )
    parser.add_argument("--list", action="store_true", help="print the packages of each flow, in order")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    logging.getLogger("gangline").setLevel(logging.CRITICAL)  # one death is expected
    traces = all_traced()
    figures = {name: asdict(trace.figures()) for name, trace in traces.items()}
    if options.json:
        rooms = {name: {"rooms": trace.rooms()} for name, trace in traces.items()} if options.list else {}
        print(json.dumps({name: figures[name] | rooms.get(name, {}) for name in FLOWS}, indent=1))
        return
    columns = list(next(iter(figures.values())))
    print(f"{'flow':40}" + "".join(f"{column:>11}" for column in columns))
    for name, numbers in figures.items():
        print(f"{name:40}" + "".join(f"{number:11}" for number in numbers.values()))
    for name, trace in traces.items() if options.list else ():
        print(f"\n{name}\n  " + "\n  ".join(trace.rooms()))


if __name__ == "__main__":
    main()
