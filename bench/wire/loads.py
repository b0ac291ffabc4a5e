"""Load from one process: so many at once (closed loop), or so many a second whatever comes back (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Once = Callable[[], Awaitable[object]]
"""One request, from its asking to its answer."""

_GIVE_UP_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a closed loop did."""

    count: int
    seconds: float
    cpu_s: float
    """Of this process."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds


async def closed_loop(once: Once, *, concurrency: int, seconds: float) -> Throughput:
    """Keep `concurrency` requests under way for so long.

    Raises:
        ExceptionGroup: what a request raised.
    """
    clock = time.perf_counter  # the loop's own is a millisecond wide with uvloop
    count = 0
    began_at, cpu_at = clock(), time.process_time()
    stop_at = began_at + seconds

    async def user() -> None:
        nonlocal count
        while clock() < stop_at:
            await once()
            count += 1

    async with asyncio.TaskGroup() as users:
        for _ in range(concurrency):
            users.create_task(user())
    return Throughput(count=count, seconds=clock() - began_at, cpu_s=time.process_time() - cpu_at)


async def open_loop(once: Once, *, rate: float, seconds: float) -> list[float]:
    """Begin `rate` requests a second for so long, whether or not the earlier ones were answered. The latency of each is
    counted from when it was due, so that a system that falls behind cannot hide it.

    Returns:
        Seconds of each, sorted.

    Raises:
        TimeoutError: answers are missing long after the last request.
        ExceptionGroup: what a request raised.
    """
    clock = time.perf_counter
    latencies: list[float] = []
    errors: list[Exception] = []
    # A task group costs as much for each of its tasks as a request does, and would be measured with it.
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
            # Timers of the loop are a millisecond wide, longer than what is measured: ask the clock instead.
            await asyncio.sleep(0)
        while under_way:  # noqa: ASYNC110 — whoever ends it would have to be paid for by each request
            await asyncio.sleep(0)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {total} requests failed", errors)
    latencies.sort()
    return latencies


def percentile(values: list[float], share: float) -> float:
    """Of sorted values; `share` is 0.99 for the p99."""
    return values[min(len(values) - 1, int(share * len(values)))]
