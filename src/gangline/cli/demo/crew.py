"""The demo's processes: real ones, started by the `gangline` command itself, each with its log and its journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from ..children import end, ended, spawn
from ..options import plain_environment

POOL = "gangline.cli.demo.pool:pool"
STOP_S = 10.0
LOOK_S = 0.001
"""Between two looks into a journal: a task takes longer, and a closer look would take CPU time from it."""


class ProcessFailed(Exception):
    """A process of the demo ended, or did not come up; the text has the end of its log."""


class Member:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, journal: Path | None) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.journal_file = journal

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self.process.returncode

    def journal(self) -> list[dict[str, Any]]:
        """What it recorded. A last line that a kill cut short is left out."""
        if self.journal_file is None or not self.journal_file.exists():
            return []
        *lines, rest = self.journal_file.read_text(encoding="utf-8").split("\n")
        del rest
        return [json.loads(line) for line in lines]

    async def until_busy(self, timeout_s: float = 2.0) -> None:
        """Wait for a moment at which its journal shows a running task; go on without one after so long."""
        assert self.journal_file is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                with self.journal_file.open("rb") as stream:
                    stream.seek(0, os.SEEK_END)
                    while not _running(stream.read()):  # noqa: ASYNC110 - another process's file wakes nobody
                        await asyncio.sleep(LOOK_S)

    def log_text(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def log_tail(self, lines: int = 5) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def __repr__(self) -> str:
        return f"<Member {self.name} pid={self.pid} exit={self.exit_code}>"


def _running(lines: bytes) -> bool:
    """Whether the last whole one of these journal lines shows a running task."""
    whole = lines.rpartition(b"\n")[0].rpartition(b"\n")[2]
    try:
        return bool(json.loads(whole)["running"] > 0)
    except ValueError:  # none, or the end of one
        return False


class Crew:
    """Starts members and ends every one of them at the end."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self._environment = {**plain_environment(), "NATS_URL": url, "GANGLINE_NAMESPACE": namespace}
        self._folder = folder
        self.members: dict[str, Member] = {}

    @property
    def workers(self) -> int:
        """How many were started."""
        return sum(member.journal_file is not None for member in self.members.values())

    async def worker(self, name: str, pool: str = POOL, *, node: str = "") -> Member:
        """Start a worker of that id, which keeps a journal.

        Args:
            pool: what it serves, as MODULE:POOL.
            node: the machine that it says to be on. Empty: this one.
        """
        journal = self._folder / f"{name}.jsonl"
        more = ("--node", node) if node else ()
        return await self._start(name, "worker", pool, "--id", name, "--journal", str(journal), *more, journal=journal)

    async def coordinator(self, name: str) -> Member:
        return await self._start(name, "coordinator")

    async def gateway(self, name: str) -> Member:
        return await self._start(name, "gateway")

    async def dispatcher(self, name: str) -> Member:
        return await self._start(name, "dispatcher", "--log-format", "json")

    async def _start(self, name: str, *arguments: str, journal: Path | None = None) -> Member:
        log = self._folder / f"{name}.log"
        with log.open("wb") as stream:
            process = await spawn(*arguments, environment=self._environment, output=stream)
        self.members[name] = Member(name, process, log, journal)
        return self.members[name]

    def kill(self, name: str) -> None:
        """SIGKILL: no goodbye, no cleanup."""
        self.members[name].process.send_signal(signal.SIGKILL)

    async def ended(self, name: str, timeout_s: float) -> int | None:
        """Its exit code; None if it still runs after so long."""
        return await ended(self.members[name].process, timeout_s)

    def name_of(self, pid: int) -> str:
        """Which member has that process id."""
        return next((member.name for member in self.members.values() if member.pid == pid), f"pid {pid}")

    def check_alive(self, *names: str) -> None:
        """
        Raises:
            ProcessFailed: one of them has ended.
        """
        for name in names:
            member = self.members[name]
            if member.exit_code is not None:
                raise ProcessFailed(f"{name} ended with exit code {member.exit_code}:\n{member.log_tail()}")

    async def stop(self) -> None:
        """End all that still run: SIGTERM, and SIGKILL for those that do not heed it. Safe to call again."""
        running = [member.process for member in self.members.values() if member.exit_code is None]
        await asyncio.gather(*(end(process, STOP_S) for process in running))
