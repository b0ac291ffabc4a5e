"""Processes that are started by the `gangline` command itself: the same command, in the same interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Final

TIED: Final = "GANGLINE_TIED"
"""Set for a child that has to end when its parent is gone: the parent's end of its stdin closes then."""
LAST_S: Final = 10.0
"""What an orphan gets to end in order."""


async def spawn(
    *arguments: str, environment: Mapping[str, str], output: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    """Start `gangline <arguments>`.

    It gets a session of its own: Ctrl-C in the terminal goes to the parent alone, which ends its children in order.
    Should the parent be killed, it ends by itself.

    Args:
        output: where stdout and stderr go; None: where the parent's go.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gangline.cli",
        *arguments,
        env={**environment, TIED: "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


async def ended(process: asyncio.subprocess.Process, timeout_s: float) -> int | None:
    """Its exit code; None if it still runs after so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    return None


async def end(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """SIGTERM; SIGKILL if it does not heed that, or if we are cancelled. Returns when it has ended."""
    try:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        if await ended(process, patience_s) is None:
            _kill(process)
            await process.wait()
    except BaseException:
        _kill(process)
        raise


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


@contextmanager
def tied_to_parent(stop: Callable[[], object]) -> Iterator[None]:
    """In a child made by `spawn`: call `stop` when the parent is gone, and end for sure a little later."""
    if not os.environ.pop(TIED, ""):
        yield
        return
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(0)
        stop()
        loop.call_later(LAST_S, os._exit, 1)

    loop.add_reader(0, gone)
    try:
        yield
    finally:
        loop.remove_reader(0)
