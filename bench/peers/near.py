"""A peer's client side: submits tasks with the peer's own client, in the peer's own environment.

`python -m bench.peers.near APP`: APP is a module of `apps`; its `opened` yields the function that submits one task (and
awaits its result, if results are kept). With `GANGLINE_BENCH_KIND=many`, its `opened_many` yields the one that submits
many.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from typing import Any

from bench.peers.apps.submitting import Submit, SubmitMany
from bench.wire.child import serve


async def life(app: str) -> None:
    module = importlib.import_module(f"bench.peers.apps.{app}")
    many = os.environ["GANGLINE_BENCH_KIND"] == "many"
    async with (module.opened_many if many else module.opened)() as submit:
        await serve(_many(submit) if many else _each(submit))


def _each(submit: Submit) -> dict[str, Any]:
    async def burst(count: int, window: int) -> dict[str, Any]:
        """Submit this many tasks, `window` at once."""
        left = count

        async def user() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await submit(time.monotonic())

        began_at, cpu_at = time.monotonic(), time.process_time()
        await asyncio.gather(*(user() for _ in range(window)))
        return {"began_at": began_at, "seconds": time.monotonic() - began_at, "cpu_s": time.process_time() - cpu_at}

    async def paced(count: int, rate: float) -> dict[str, Any]:
        """Submit this many tasks, one after the other, each when it is due."""
        began_at = time.monotonic()
        for number in range(count):
            late_s = time.monotonic() - (began_at + number / rate)
            if late_s < 0:
                await asyncio.sleep(-late_s)
            await submit(time.monotonic())
        return {"seconds": time.monotonic() - began_at}

    async def answers(count: int) -> dict[str, Any]:
        """Submit this many tasks, one after the other, each when the result of the last has come: the seconds of each,
        sorted."""
        took = []
        for _ in range(count):
            sent_at = time.monotonic()
            if await submit(sent_at) != sent_at:
                raise ValueError("a task has the result of another one, or none")
            took.append(time.monotonic() - sent_at)
        return {"seconds": sorted(took)}

    return {"burst": burst, "paced": paced, "answers": answers}


def _many(submit: SubmitMany) -> dict[str, Any]:
    async def burst(count: int, window: int) -> dict[str, Any]:
        """Submit this many tasks, `window` in each call."""
        began_at, cpu_at = time.monotonic(), time.process_time()
        for start in range(0, count, window):
            await submit([time.monotonic()] * min(window, count - start))
        return {"began_at": began_at, "seconds": time.monotonic() - began_at, "cpu_s": time.process_time() - cpu_at}

    async def paced(count: int, rate: float) -> dict[str, Any]:
        """As tasks come, each alone."""
        return await _each(lambda sent_at: submit([sent_at]))["paced"](count, rate)

    return {"burst": burst, "paced": paced}


def main() -> None:
    try:
        from uvloop import new_event_loop  # used if it is installed
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(life(sys.argv[1]))


if __name__ == "__main__":
    main()
