"""Child processes of a scenario, and waiting for their effects."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from gangline.cli.console.children import TIED
from gangline.cli.console.options import plain_environment

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""A wait that takes longer counts as a hang."""


async def holds_within(seconds: float, holds: Callable[[], object | Awaitable[object]], *, pause_s: float) -> bool:
    """Check repeatedly, up to this long; `holds` may be a coroutine function. Returns whether it became true."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return True
                await asyncio.sleep(pause_s)  # exits of other processes wake nobody
    except TimeoutError:
        return False


class Child(Protocol):
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def wait(self) -> int: ...


class Launch(Protocol):
    """Starts `python WHAT` in a session of its own."""

    def __call__(
        self,
        what: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        stdin: int,
        stdout: IO[Any],
        stderr: IO[Any],
    ) -> Child: ...


def new_interpreter(
    what: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    stdin: int,
    stdout: IO[Any],
    stderr: IO[Any],
) -> Child:
    """Starts processes as users do."""
    return subprocess.Popen(
        [sys.executable, *what],
        env=environment,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


class Process:
    """One child. Its output is read from files."""

    def __init__(self, name: str, child: Child, tie: int, said: Path, log: Path) -> None:
        """`tie`: our end of its standard input; the child exits when it is closed."""
        self.name = name
        self.child = child
        self.said = said
        self.log = log
        self._tie = tie

    def told(self, word: str) -> float | None:
        """The time in its line `<word> <seconds>`, if it printed one."""
        lines = self.said.read_text().split("\n")[:-1]  # a line without an end is incomplete
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{word} ")), None)

    def actions(self) -> list[str]:
        """The records of its JSON log with this action."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found.append(json.loads(line)["action"])
        return found

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self.child.wait)
        os.close(self._tie)


class Crew:
    """All children of one scenario. All of them are stopped when it is closed."""

    def __init__(self, launch: Launch, folder: Path, environment: Mapping[str, str]) -> None:
        """`environment`: variables that all of them get in addition to the clean environment."""
        self.folder = folder
        self.environment = environment
        self.running: dict[str, Process] = {}
        self._launch = launch

    def start(self, name: str, module: str, *arguments: str) -> Process:
        """`python -m <module> <arguments>`, connected to the server."""
        said, log = self.folder / f"{name}.out", self.folder / f"{name}.log"
        environment = {**plain_environment(), **self.environment, TIED: "1"}
        theirs, tie = os.pipe()
        try:
            with said.open("wb") as out, log.open("wb") as err:
                child = self._launch(
                    ["-m", module, *arguments],
                    environment=environment, cwd=ROOT, stdin=theirs, stdout=out, stderr=err,
                )  # fmt: skip
        except BaseException:
            os.close(tie)
            raise
        finally:
            os.close(theirs)
        self.running[name] = made = Process(name, child, tie, said, log)
        return made

    async def kill(self, process: Process) -> None:
        del self.running[process.name]
        await process.kill()

    async def close(self) -> None:
        for process in self.running.values():
            process.signal(signal.SIGCONT)
            await process.kill()

    async def until(self, holds: Callable[[], object | Awaitable[object]], what: str, *, pause_s: float = 0.02) -> None:
        """Check repeatedly; `holds` may be a coroutine function.

        Raises:
            TimeoutError: says what did not happen.
        """
        if not await holds_within(PATIENCE_S, holds, pause_s=pause_s):
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}\n{self.log_tails()}")

    def log_tails(self) -> str:
        tails = []
        for process in self.running.values():
            lines = process.log.read_text(errors="replace").splitlines()[-3:]
            tails += [f"{process.name}: {line}" for line in lines]
        return "\n".join(tails)
