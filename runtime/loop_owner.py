"""A client belongs to the event loop, and so to the thread and the process, in which it was started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from ..schemas.errors.base import ClosedError, GanglineError, InvalidRequest

running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = asyncio._get_running_loop
"""None where no loop runs, and in a child that was forked by a task. The public function raises there instead, and must
be wrapped, which costs more than the check."""


def not_ours(process: int) -> GanglineError:
    """The error for a use on another loop than that of the client, which was started in this process."""
    if process != os.getpid():
        return ClosedError(
            "this process was forked after the client was connected: nothing was sent; connect again in the child"
        )
    return InvalidRequest(
        "this client belongs to another event loop: nothing was sent; use it in the loop and thread that connected it "
        "(asyncio.run_coroutine_threadsafe), connect another one here, or use connect_sync, which any thread may call"
    )
