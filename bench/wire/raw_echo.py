"""The raw server side: a subscriber that sends back what it receives, with nats-py alone, as in its documentation."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import nats
from nats.aio.msg import Msg

from .child import ITEMS, PAYLOAD, main, serve


async def life(url: str) -> None:
    connection = await nats.connect(url)
    naps: set[asyncio.Task[None]] = set()

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async def nap(message: Msg) -> None:
        # A handler that sleeps delays the next ones, so each gets a task, as users would write it.
        task = asyncio.get_running_loop().create_task(answer_later(message))
        naps.add(task)
        task.add_done_callback(naps.discard)

    async def answer_later(message: Msg) -> None:
        await asyncio.sleep(random.uniform(0, 0.002))
        await message.respond(message.data)

    async def run_function(message: Msg) -> None:
        task = asyncio.get_running_loop().create_task(answer_from_thread(message))
        naps.add(task)
        task.add_done_callback(naps.discard)

    async def answer_from_thread(message: Msg) -> None:
        await message.respond(await asyncio.get_running_loop().run_in_executor(None, bytes, message.data))

    async def stream(message: Msg) -> None:
        for _ in range(ITEMS):
            await connection.publish(message.reply, PAYLOAD)

    async def cpu() -> dict[str, Any]:
        return {"cpu_s": time.process_time()}

    await connection.subscribe("raw.echo", cb=echo)
    await connection.subscribe("raw.nap", cb=nap)
    await connection.subscribe("raw.function", cb=run_function)
    await connection.subscribe("raw.stream", cb=stream)
    await connection.flush()
    await serve({"cpu": cpu})
    await connection.close()


if __name__ == "__main__":
    main(life)
