"""Child processes that run the same interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, Protocol

TIED: Final = "GANGLINE_TIED"
"""Set for a child that must exit when its parent is gone: its stdin, whose other end the parent holds, is then
closed."""
LAST_S: Final = 10.0
"""How long an orphan may take to shut down."""


class StartedChild(Protocol):
    """The part of `subprocess.Popen` that we use."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def poll(self) -> int | None: ...


class Launcher(Protocol):
    """Starts `python WHAT` in its own session."""

    def __call__(
        self, what: Sequence[str], *, environment: Mapping[str, str], stdin: int, stdout: IO[Any], stderr: IO[Any]
    ) -> StartedChild: ...


def launch(
    what: Sequence[str], *, environment: Mapping[str, str], stdin: int, stdout: IO[Any], stderr: IO[Any]
) -> StartedChild:
    """Starts processes as users do."""
    return subprocess.Popen(
        [sys.executable, *what], env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


async def spawn(
    *arguments: str, environment: Mapping[str, str], output: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    """Start `gangline <arguments>`.

    It gets its own session, so Ctrl-C in the terminal goes only to the parent, which shuts its children down. If the
    parent is killed, the child exits by itself.

    Args:
        output: file for stdout and stderr; None: those of the parent.
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


def how_it_ended(code: int) -> str:
    """How a process ended, from its return code: `has exited with code 1`, or `was killed by SIGKILL`."""
    if code >= 0:
        return f"has exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def ended(process: asyncio.subprocess.Process, timeout_s: float) -> int | None:
    """Its exit code; None if it is still running after the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    return None


async def end(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Send SIGTERM, then SIGKILL if it does not exit in time or if we are cancelled. Returns when it has exited."""
    try:
        terminate(process)
        if await ended(process, patience_s) is None:
            _kill(process)
            await process.wait()
    except BaseException:
        _kill(process)
        raise


def terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, unless it has just exited by itself."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


@contextmanager
def tied_to_parent(stop: Callable[[], object]) -> Iterator[None]:
    """In a child started by `spawn`: call `stop` when the parent is gone, and exit a little later in any case."""
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
