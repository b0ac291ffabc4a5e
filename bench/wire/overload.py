"""How much useful work is done while more is wanted than can be done: tasks that end in time, against the capacity.

    python -m gangline.bench.overload
    python -m gangline.bench.overload --kind stream --times 10

In memory and on virtual time: what the rules do, without the machine. One worker, requests that arrive at random, each
with a deadline. Prints one line of JSON for each load; without arguments, for calls, streams, calls on one lease, and
submitted tasks at 1, 2, 10 and 50 times the capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..dispatcher.client.client import Client
from ..schemas.errors.base import GanglineError
from ..testing.in_memory import cluster
from ..testing.loop import VirtualLoop
from ..worker.pool.pool import Pool

_POOL: Final = "bench"
KINDS: Final = ("call", "stream", "lease", "job")
TIMES: Final = (1.0, 2.0, 10.0, 50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    kind: str = "call"
    times: float = 10.0
    """Requests that arrive, against those that the worker could serve."""
    slots: int = 4
    takes_s: float = 0.5
    """Mean duration of a task."""
    deadline_s: float = 5.0
    varies: bool = False
    """Whether durations are drawn (exponential distribution), instead of all the same."""

    @property
    def capacity_per_s(self) -> float:
        return self.slots / self.takes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    load: Load
    offered: int
    ended: int
    """Requests that ended in time."""
    of_capacity: float
    started_in_vain: int
    """Tasks that were started and then cancelled, because their time was over."""
    refused_at_once: int
    """Requests whose callers were told in a tenth of their time that they would not be served."""
    errors: dict[str, int]

    def to_json(self) -> dict[str, object]:
        figures = asdict(self)
        return {**figures.pop("load"), **figures}


async def imagine(load: Load, seconds: float, seed: int = 1) -> Found:
    """Let requests arrive for some seconds, after a run-up of two deadlines."""
    draw, loop = random.Random(seed), asyncio.get_running_loop()
    counts, errors = Counter[str](), Counter[str]()
    measuring = False

    def count(what: str) -> None:
        if measuring:
            counts[what] += 1

    async def request(send: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        began = loop.time()
        count("offered")
        try:
            await send()
        except GanglineError as error:
            if measuring:
                errors[error.code] += 1
                if loop.time() - began < load.deadline_s / 10:
                    counts["refused"] += 1
        else:
            count("ended")

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            cluster(_pool(load, draw, count), dispatcher=load.kind == "job", namespace="overload")
        )
        send = await _sender(load, client, stack)
        requests: set[asyncio.Task[None]] = set()
        begins, ends = loop.time() + 2 * load.deadline_s, loop.time() + 2 * load.deadline_s + seconds
        try:
            while loop.time() < ends:
                await asyncio.sleep(draw.expovariate(load.times * load.capacity_per_s))
                measuring = loop.time() >= begins
                each = asyncio.ensure_future(request(send))
                requests.add(each)
                each.add_done_callback(requests.discard)
            measuring = False
        finally:
            for each in requests:
                each.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
    return Found(
        load=load,
        offered=counts["offered"],
        ended=counts["ended"],
        of_capacity=round(counts["ended"] / seconds / load.capacity_per_s, 3),
        started_in_vain=counts["in vain"],
        refused_at_once=counts["refused"],
        errors=dict(errors),
    )


async def _sender(load: Load, client: Client, stack: AsyncExitStack) -> Callable[[], Coroutine[Any, Any, Any]]:
    bounded = client.options(deadline_s=load.deadline_s)
    if load.kind == "call":
        return lambda: bounded.call(f"{_POOL}.work")
    if load.kind == "lease":
        lease = await stack.enter_async_context(bounded.lease(_POOL, slots=load.slots))
        return lambda: lease.call("work")
    if load.kind == "stream":

        async def stream() -> None:
            async for _ in bounded.stream(f"{_POOL}.items"):
                pass

        return stream

    async def job() -> None:
        await (await bounded.submit(f"{_POOL}.work")).result()

    return job


def _pool(load: Load, draw: random.Random, count: Callable[[str], None]) -> Pool:
    pool = Pool(_POOL, slots=load.slots)

    async def take_time() -> None:
        try:
            await asyncio.sleep(draw.expovariate(1 / load.takes_s) if load.varies else load.takes_s)
        except asyncio.CancelledError:
            count("in vain")
            raise

    @pool.task
    async def work() -> None:
        await take_time()

    @pool.task
    async def items() -> AsyncIterator[int]:
        yield 1
        await take_time()
        yield 2

    return pool


def _print(load: Load, seconds: float) -> None:
    with contextlib.closing(VirtualLoop()) as loop:
        print(json.dumps(loop.run_until_complete(imagine(load, seconds)).to_json()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gangline.bench.overload", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--times", type=float)
    parser.add_argument("--takes-s", type=float, default=0.5)
    parser.add_argument("--deadline-s", type=float, default=5.0)
    parser.add_argument("--varies", action="store_true", help="draw durations, instead of the same for all")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    logging.disable()  # each refused job would be a line
    for kind in KINDS if given.kind is None else (given.kind,):
        for times in TIMES if given.times is None else (given.times,):
            _print(
                Load(kind=kind, times=times, takes_s=given.takes_s, deadline_s=given.deadline_s, varies=given.varies),
                given.seconds,
            )


if __name__ == "__main__":
    main()
