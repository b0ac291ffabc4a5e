"""Run a worker until it is told to go: what a process's main function awaits."""

from __future__ import annotations

from ..bus.lifetime import run_until_left
from .service import Worker, WorkerState


async def run_worker(worker: Worker) -> None:
    """Start `worker` and return when it has left: drained by a signal, by an operator, or by the program itself.

    The first SIGTERM or SIGINT drains it (with the grace of its settings), the second stops it at once. One that comes
    before the start is done ends the start. Cancelling drains nothing: the worker is stopped. Needs the main thread.

    Args:
        worker: not yet started; its bus is open, and stays so.

    Raises:
        WorkerIdTaken: at the start, or later when another process took the id.
        WorkerUnhealthy: a health check failed, and it has drained.
        Disconnected: the server closed the connection for good.
        Unavailable, InvalidSettings: as `Worker.start`.
    """

    async def life() -> None:
        try:
            await worker.start()
            await worker.wait_closed()
        finally:
            await worker.stop()

    def finish() -> bool:
        if worker.state in (WorkerState.NEW, WorkerState.STARTING):
            return False
        worker.begin_drain()
        return True

    await run_until_left(worker.bus, life(), finish=finish, stop=lambda: worker.begin_drain(0.0))
