"""Run a worker until it is told to go: what a process's main function awaits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from ..telemetry.logs import logger_for
from .service import Worker

_log = logger_for("worker")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_worker(worker: Worker, *, signals: Sequence[signal.Signals] = _SIGNALS) -> None:
    """Start `worker` and return when it has left.

    The first signal drains it (with the grace of its settings), the second stops it at once. Signals that come before
    the start is done end the start. Cancelling drains nothing: the worker is stopped.

    Args:
        worker: not yet started; its bus is open, and stays so.
        signals: none, where somebody else takes them. Needs the main thread, and not Windows, which has no such thing.

    Raises:
        WorkerIdTaken: at the start, or later when another process took the id.
        Unavailable, InvalidSettings: as `Worker.start`.
    """
    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(worker.start())
    received = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal received
        received += 1
        _log.info("%s received", number.name, extra={"action": "worker.signal", "signal": number.name})
        if not starting.done():
            starting.cancel()
        else:
            worker.begin_drain(None if received == 1 else 0.0)

    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    try:
        try:
            await starting
        except asyncio.CancelledError:
            if received:
                return  # told to go before it was there
            raise
        await worker.wait_closed()
    finally:
        try:
            await asyncio.shield(worker.stop())
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
