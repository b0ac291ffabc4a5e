"""A peer's client side: submits tasks with the peer's own client, in the peer's own environment.

`python -m bench.peers.near APP`: APP is a module of `apps`; its `opened` yields the function that submits one task.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from typing import Any

from bench.peers.apps.submitting import Opened
from bench.wire.child import serve


async def life(app: str) -> None:
    opened: Opened = importlib.import_module(f"bench.peers.apps.{app}").opened
    async with opened() as submit:

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

        await serve({"burst": burst, "paced": paced})


def main() -> None:
    try:
        from uvloop import new_event_loop  # used if it is installed
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(life(sys.argv[1]))


if __name__ == "__main__":
    main()
