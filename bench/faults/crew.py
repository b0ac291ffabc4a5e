"""Child processes of a scenario, and waiting for what they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gangline.cli.children import TIED
from gangline.cli.options import plain_environment

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Process:
    """One child, with its output."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.child = child
        self.log = log
        self.lines: list[str] = []
        """Of its standard output."""
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.child.stdout is not None
        while line := await self.child.stdout.readline():
            self.lines.append(line.decode().strip())

    def told(self, word: str) -> float | None:
        """The time in its line `<word> <seconds>`, if it printed one."""
        return next((float(line.split()[1]) for line in self.lines if line.startswith(f"{word} ")), None)

    def actions(self) -> list[str]:
        """What its JSON log says, by name."""
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
        await self.child.wait()
        await self._reader


class Crew:
    """All children of one scenario. Every one that it started is gone when it is closed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """`environment`: what all of them get beside the plain one."""
        self.folder = folder
        self.environment = environment
        self.running: dict[str, Process] = {}

    async def start(self, name: str, module: str, *arguments: str) -> Process:
        """`python -m <module> <arguments>`, connected to the server."""
        log = self.folder / f"{name}.log"
        environment = {**plain_environment(), **self.environment, TIED: "1"}
        with log.open("wb") as stream:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments,
                env=environment, cwd=ROOT, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stream,
            )  # fmt: skip
        self.running[name] = made = Process(name, child, log)
        return made

    async def kill(self, process: Process) -> None:
        del self.running[process.name]
        await process.kill()

    async def close(self) -> None:
        for process in self.running.values():
            process.signal(signal.SIGCONT)
            await process.kill()

    async def until(self, holds: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
        """Look again and again.

        Raises:
            TimeoutError: says what was waited for.
        """
        try:
            async with asyncio.timeout(within_s):
                while not holds():  # noqa: ASYNC110 - other processes wake nobody
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise TimeoutError(f"not within {within_s:g} s: {what}\n{self.log_tails()}") from None

    def log_tails(self) -> str:
        tails = []
        for process in self.running.values():
            lines = process.log.read_text(errors="replace").splitlines()[-3:]
            tails += [f"{process.name}: {line}" for line in lines]
        return "\n".join(tails)
