"""The raw wire's far end: a subscriber that sends back what it gets, by nats-py alone, as its documentation shows."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import nats
from nats.aio.msg import Msg

from .child import main, serve


async def life(url: str) -> None:
    connection = await nats.connect(url)
    naps: set[asyncio.Task[None]] = set()

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async def nap(message: Msg) -> None:
        # A handler that sleeps holds up those behind it: a task for each, as whoever needs it writes it.
        task = asyncio.get_running_loop().create_task(answer_later(message))
        naps.add(task)
        task.add_done_callback(naps.discard)

    async def answer_later(message: Msg) -> None:
        await asyncio.sleep(random.uniform(0, 0.002))
        await message.respond(message.data)

    async def cpu() -> dict[str, Any]:
        return {"cpu_s": time.process_time()}

    await connection.subscribe("raw.echo", cb=echo)
    await connection.subscribe("raw.nap", cb=nap)
    await connection.flush()
    await serve({"cpu": cpu})
    await connection.close()


if __name__ == "__main__":
    main(life)
