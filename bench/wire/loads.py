"""Load from one process: a fixed number at once (closed loop), or a fixed rate (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .child import Handler

Once = Callable[[], Awaitable[object]]
"""One request, until its answer."""

_GIVE_UP_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The results of a closed loop."""

    count: int
    seconds: float
    cpu_s: float
    """CPU time of this process."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds


async def closed_loop(once: Once, *, concurrency: int, seconds: float) -> Throughput:
    """Keep `concurrency` requests in flight for this long; each of them is sent at least once.

    Raises:
        ExceptionGroup: what a request raised.
    """
    clock = time.perf_counter  # the loop's own timer has a resolution of a millisecond with uvloop
    count = 0
    began_at, cpu_at = clock(), time.process_time()
    stop_at = began_at + seconds

    async def user() -> None:
        nonlocal count
        while True:
            await once()
            count += 1
            if clock() >= stop_at:
                break

    async with asyncio.TaskGroup() as users:
        for _ in range(concurrency):
            users.create_task(user())
    return Throughput(count=count, seconds=clock() - began_at, cpu_s=time.process_time() - cpu_at)


async def open_loop(once: Once, *, rate: float, seconds: float) -> list[float]:
    """Start `rate` requests per second for this long, whether or not earlier ones were answered. The latency of each
    is counted from when it was due, so that a system that falls behind cannot hide it.

    Returns:
        Latencies in seconds, sorted.

    Raises:
        TimeoutError: answers are missing long after the last request.
        ExceptionGroup: what a request raised.
    """
    clock = time.perf_counter
    latencies: list[float] = []
    errors: list[Exception] = []
    # A task group costs as much per task as a request, and would be measured with it.
    create_task = asyncio.get_running_loop().create_task
    under_way: set[asyncio.Task[None] | None] = set()

    async def one(due_at: float) -> None:
        try:
            await once()
        except Exception as error:
            errors.append(error)
        latencies.append(clock() - due_at)
        under_way.discard(asyncio.current_task())

    began_at = clock()
    due, total = 0, max(1, round(rate * seconds))
    async with asyncio.timeout(seconds + _GIVE_UP_S):
        while due < total:
            now = clock()
            while due < total and began_at + due / rate <= now:
                under_way.add(create_task(one(began_at + due / rate)))
                due += 1
            # Timers of the loop have a resolution of a millisecond, longer than the intervals measured: read the
            # clock instead.
            await asyncio.sleep(0)
        while under_way:  # noqa: ASYNC110 — signalling the end would cost every request
            await asyncio.sleep(0)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {total} requests failed", errors)
    latencies.sort()
    return latencies


def answering(kinds: Mapping[str, Once]) -> dict[str, Handler]:
    """What a child that sends these requests can be asked for."""

    async def closed(what: str, concurrency: int, seconds: float) -> dict[str, Any]:
        return asdict(await closed_loop(kinds[what], concurrency=concurrency, seconds=seconds))

    async def paced(what: str, rate: float, seconds: float) -> dict[str, Any]:
        latencies = await open_loop(kinds[what], rate=rate, seconds=seconds)
        return {"p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99)}

    return {"closed": closed, "paced": paced}


def percentile(values: list[float], share: float) -> float:
    """A percentile of sorted values; `share` is 0.99 for the p99."""
    return values[min(len(values) - 1, int(share * len(values)))]
