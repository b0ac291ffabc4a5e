"""Run a dispatcher until it is told to go: what a process's main function awaits."""

from __future__ import annotations

import asyncio

from ...bus.lifetime import run_until_left
from .service import Dispatcher, DispatcherState


async def run_dispatcher(dispatcher: Dispatcher) -> None:
    """Start `dispatcher` and return when it has left: told so by a signal, or by the program itself.

    The first SIGTERM or SIGINT hands its queues over (with the grace of its settings), the second does so at once. One
    that comes before the start is done ends the start. Cancelling hands over, too. Needs the main thread.

    Args:
        dispatcher: not yet started; its bus is open, and stays so.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable, ServerUnsupported: as `Dispatcher.start`.
    """
    leaving: set[asyncio.Task[None]] = set()

    async def life() -> None:
        try:
            await dispatcher.start()
            await dispatcher.wait_closed()
        finally:
            await dispatcher.stop(grace_s=0.0)

    def leave(grace_s: float | None) -> None:
        task = asyncio.get_running_loop().create_task(dispatcher.stop(grace_s), name="gangline-dispatcher-stop")
        leaving.add(task)
        task.add_done_callback(leaving.discard)

    def finish() -> bool:
        if dispatcher.state is not DispatcherState.RUNNING:
            return False
        leave(None)
        return True

    await run_until_left(dispatcher.bus, life(), finish=finish, stop=dispatcher.hurry)
    if leaving:
        await asyncio.wait(leaving)
