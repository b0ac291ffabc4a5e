"""Processes that are started by the `gangline` command itself: the same command, in the same interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import IO


async def spawn(
    *arguments: str, environment: Mapping[str, str], output: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    """Start `gangline <arguments>`.

    It gets a session of its own: Ctrl-C in the terminal goes to the parent alone, which ends its children in order.

    Args:
        output: where stdout and stderr go; None: where the parent's go.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gangline.cli",
        *arguments,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
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
    """SIGTERM; SIGKILL if it does not heed that. Returns when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    if await ended(process, patience_s) is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
