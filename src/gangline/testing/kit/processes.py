"""Child processes, and waiting for their effects."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ...cli.console import children
from ...cli.console.children import TIED, Launcher, StartedChild
from ...cli.console.options import plain_environment
from ...schemas.errors.base import GanglineError
from .records import Life, lines_of

PATIENCE_S: Final = 60.0
"""A wait that takes longer counts as a hang."""
HANG_S: Final = 600.0
"""What still makes progress after so long makes none that counts."""
LOOK_S: Final = 0.001
"""Delay between two reads of a journal: tasks take longer, and reading more often would take CPU time from them."""


class ProcessFailed(Exception):
    """A process exited, or failed to start; the text has the end of its log."""


async def holds_within(
    seconds: float,
    holds: Callable[[], object | Awaitable[object]],
    *,
    pause_s: float,
    progress: Callable[[], object] | None = None,
) -> bool:
    """Check repeatedly, up to this long; `holds` may be a coroutine function. Returns whether it became true.

    Args:
        progress: whenever its value changes, the time starts anew, up to HANG_S in all. So a slow machine has the time
            that it needs.
    """
    clock = asyncio.get_running_loop().time
    hangs_at, before = clock() + HANG_S, None
    try:
        async with asyncio.timeout(seconds) as limit:
            while True:
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return True
                if progress is not None and (state := progress()) != before:
                    before = state
                    limit.reschedule(min(hangs_at, clock() + seconds))
                await asyncio.sleep(pause_s)  # exits of other processes wake nobody
    except TimeoutError:
        return False


async def remaining(seconds: float, look: Callable[[], Awaitable[list[str]]], *, pause_s: float) -> list[str]:
    """Look repeatedly until nothing is found, or the same for so long; returns what was found last. An error is a
    finding."""
    found: list[str] = ["nobody could be asked"]

    async def nothing() -> bool:
        nonlocal found
        try:
            found = await look()
        except GanglineError as error:
            found = [f"cannot be asked: {error}"]
        return not found

    return [] if await holds_within(seconds, nothing, pause_s=pause_s, progress=lambda: found) else found


class ChildProcess:
    """One child. Its output is read from files."""

    def __init__(
        self, name: str, child: StartedChild, tie: int, folder: Path, life: Life, *, log_begins: int = 0
    ) -> None:
        """
        Args:
            tie: our end of its standard input; the child exits when it is closed.
            log_begins: size of the log before it was started.
        """
        self.name = name
        self.child = child
        self.life = life
        self.out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        self.journal_file = folder / f"{name}.journal"
        self._log_begins = log_begins
        self._tie: int | None = tie

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it is running; negative: killed by that signal."""
        code = self.child.poll()
        if code is not None and self._tie is not None:
            self.life.ended = min(self.life.ended, time.monotonic())
            os.close(self._tie)
            self._tie = None
        return code

    def said(self, word: str) -> float | None:
        """The time in its line `<word> <seconds>`, if it printed one."""
        lines = self.out.read_text().split("\n")[:-1]  # a line without an end is incomplete
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{word} ")), None)

    def log_text(self) -> str:
        """What this process, and none of its name before it, has logged."""
        return self.log.read_bytes()[self._log_begins :].decode(errors="replace")

    def log_tail(self, lines: int = 5) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def actions(self) -> list[str]:
        """The records of its JSON log with an action."""
        return [line["action"] for line in lines_of(self.log) if "action" in line]

    def journal(self) -> list[dict[str, Any]]:
        """A worker's own records, if it has a journal."""
        return list(lines_of(self.journal_file)) if self.journal_file.exists() else []

    async def until_busy(self, timeout_s: float = 2.0) -> None:
        """Wait until its journal shows a running task; give up after this time."""
        with self.journal_file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            await holds_within(timeout_s, lambda: _running(stream.read()), pause_s=LOOK_S)

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGKILL and self.exit_code is None:
            self.life.killed, self.life.ended = True, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)

    async def ended(self, timeout_s: float = PATIENCE_S, pause_s: float = 0.05) -> int | None:
        """Its exit code; None if it is still running after the timeout."""
        await holds_within(timeout_s, lambda: self.exit_code is not None, pause_s=pause_s)
        return self.exit_code

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        while await self.ended(pause_s=0.005) is None:
            pass

    async def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL if it does not exit in time."""
        if grace_s:
            self.signal(signal.SIGTERM)
            await self.ended(grace_s)
        self.signal(signal.SIGCONT)
        await self.kill()

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} exit={self.exit_code}>"


def _running(lines: bytes) -> bool:
    """Whether the last complete line of the journal shows a running task."""
    whole = lines.rpartition(b"\n")[0].rpartition(b"\n")[2]
    try:
        return bool(json.loads(whole)["running"] > 0)
    except ValueError:  # no line, or the end of one
        return False


class Crew:
    """All children of one scenario. All of them are stopped when it is closed."""

    def __init__(self, folder: Path, environment: Mapping[str, str], launch: Launcher | None = None) -> None:
        """`environment`: variables that all of them get in addition to the clean environment."""
        self.folder = folder
        self.environment = environment
        self.started: dict[str, ChildProcess] = {}
        """All of them, by name."""
        self.running: dict[str, ChildProcess] = {}
        """Those that were not killed here."""
        self.lives: list[Life] = []
        self._launch = launch or children.launch

    def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        role: str = "",
        worker: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        """`python -m <module> <arguments>`, connected to the server.

        Args:
            role, worker: for its record; `worker` is the id of a worker.
            environment: more variables.
        """
        every = {**plain_environment(), **self.environment, **(environment or {}), TIED: "1"}
        theirs, tie = os.pipe()
        try:
            with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.log").open("ab") as err:
                began, log_begins = time.monotonic(), os.fstat(err.fileno()).st_size
                what = ["-m", module, *arguments]
                child = self._launch(what, environment=every, stdin=theirs, stdout=out, stderr=err)
        except BaseException:
            os.close(tie)
            raise
        finally:
            os.close(theirs)
        life = Life(name=name, role=role, pid=child.pid, began=began, worker=worker)
        self.lives.append(life)
        made = ChildProcess(name, child, tie, self.folder, life, log_begins=log_begins)
        self.running[name] = self.started[name] = made
        return made

    async def kill(self, process: ChildProcess) -> float:
        """SIGKILL: no cleanup. Returns when it was sent."""
        self.running.pop(process.name, None)
        await process.kill()
        return process.life.ended

    @property
    def killed(self) -> list[int]:
        """Process ids."""
        return [life.pid for life in self.lives if life.killed]

    def name_of(self, pid: int) -> str:
        """The process with that id."""
        return next((each.name for each in self.started.values() if each.pid == pid), f"pid {pid}")

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop all that are still running: SIGTERM, and SIGKILL when the grace time is over."""
        running = [process for process in self.running.values() if process.exit_code is None]
        self.running.clear()
        await asyncio.gather(*(process.end(grace_s) for process in running))

    async def until(
        self,
        holds: Callable[[], object | Awaitable[object]],
        what: str,
        *,
        pause_s: float = 0.02,
        alive: Iterable[str] = (),
    ) -> None:
        """Check repeatedly; `holds` may be a coroutine function.

        Args:
            alive: names of processes that must be running meanwhile.

        Raises:
            TimeoutError: says what did not happen.
            ProcessFailed: one of them has exited.
        """

        def check() -> object | Awaitable[object]:
            for process in map(self.started.__getitem__, alive):
                if process.exit_code is not None:
                    text = f"{process.name} ended with exit code {process.exit_code}:\n{process.log_tail()}"
                    raise ProcessFailed(text)
            return holds()

        if not await holds_within(PATIENCE_S, check, pause_s=pause_s):
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}\n{self.log_tails()}")

    def log_tails(self) -> str:
        return "\n".join(
            f"{process.name}: {line}" for process in self.running.values() for line in process.log_tail(3).splitlines()
        )
