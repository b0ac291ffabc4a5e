"""Answers requests with their own body, from a process of its own: measures one plain round trip."""

from __future__ import annotations

import asyncio
import os

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import Message
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.children import tied_to_parent
from gangline.cli.console.session import run

SUBJECT = "echo"


async def serve() -> None:
    bus = await connect(ConnectionSettings.from_environment(), name="echo")

    def answer(message: Message) -> None:
        bus.publish(message.reply, message.data)

    gone = asyncio.Event()
    await bus.subscribe(f"{os.environ['GANGLINE_NAMESPACE']}.{SUBJECT}", answer)
    try:
        with tied_to_parent(gone.set):
            await gone.wait()
    finally:
        await bus.close()


if __name__ == "__main__":
    run(serve())
