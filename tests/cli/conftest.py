"""Runs the command in this process (for parsing and errors) and as processes (for everything that keeps running)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import Message
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.app import gangline

from ..processes import ForkServer
from ..processes.fork_server import PATIENT
from ..waiting import PATIENCE_S

COMMAND = ("-m", "gangline.cli")


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run the command in this process."""

    def run(*arguments: str, **extra: Any) -> Result:
        return CliRunner().invoke(gangline, list(arguments), prog_name="gangline", **extra)

    return run


def alive(pid: int) -> bool:
    """Whether the process is running. A zombie counts as exited."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until `holds()` is true, for tests without a loop; else see `tests.waiting.until`."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


def wait_gone(pid: int) -> None:
    """Wait for the exit of a process that is not our child."""
    until(lambda: not alive(pid), f"the end of {pid}")


class Running:
    """A `gangline` process whose output can be waited for."""

    def __init__(self, forks: ForkServer, arguments: Sequence[str], environment: dict[str, str], folder: Path) -> None:
        self.process = forks.start(
            [*COMMAND, *arguments],
            environment=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            forks_children=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def await_output(self, pattern: str, *, times: int = 1) -> str:
        """Wait until the output matches this many times; returns the last match."""

        def found() -> list[str]:
            return [match.group() for match in re.finditer(pattern, self.output, re.MULTILINE)]

        with self._news:
            self._news.wait_for(lambda: len(found()) >= times or self._ended, PATIENCE_S)
            assert len(found()) >= times, f"no {pattern!r} ({times}) in:\n{self.output}"
        return found()[times - 1]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, after all of its output was read (and all its children have closed the output)."""
        code = self.process.wait(PATIENCE_S)
        with self._news:
            self._news.wait_for(lambda: self._ended, PATIENCE_S)
        return code

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None


def plain_environment() -> dict[str, str]:
    """Without what would name a server or set something."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "OTEL_", "GANGLINE_"))}


class Commands:
    """Starts `gangline` processes against one server and namespace, in one folder."""

    def __init__(self, forks: ForkServer, url: str, namespace: str, folder: Path) -> None:
        self._forks = forks
        self.environment = {
            **plain_environment(),
            "NATS_URL": url,
            "GANGLINE_NAMESPACE": namespace,
            "GANGLINE_MAX_BYTES": str(16 << 20),
            "XDG_CONFIG_HOME": str(folder),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
            PATIENT: "1",
        }
        self.folder = folder
        self._running: list[Running] = []

    def start(self, *arguments: str, **environment: str) -> Running:
        """Start a process that keeps running."""
        running = Running(self._forks, arguments, {**self.environment, **environment}, self.folder)
        self._running.append(running)
        return running

    def started(self, *arguments: str, **environment: str) -> Running:
        """Start a worker, a coordinator, a dispatcher or a gateway; it says when it has started."""
        running = self.start(*arguments, **environment)
        running.await_output(rf"{arguments[0]}\.started")
        return running

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a process that exits by itself."""
        return self._forks.run(
            [*COMMAND, *arguments],
            environment={**self.environment, **environment},
            cwd=self.folder,
            stdin=stdin,
            timeout=PATIENCE_S,
        )

    def json(self, *arguments: str) -> Any:
        """Run with --json; returns the printed document."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def await_file(self, name: str) -> None:
        """Wait for a file in the folder; the `hold` task creates some."""
        until((self.folder / name).exists, f"the file {name}")

    def close(self) -> None:
        for running in self._running:
            running.close()


POOL = """
import asyncio
import pathlib
import gangline

pool = gangline.Pool("words", slots=4, labels={"tier": "a"})


@pool.task
async def count(text: str) -> int:
    '''How many words the text has.'''
    return len(text.split())


@pool.task
async def shout(text: str) -> str:
    return text.upper()


@pool.task
async def each(text: str):
    for word in text.split():
        yield word


@pool.task
async def hold(go: str = "") -> str:
    '''Shows that it runs by a file, and goes on until there is another one.'''
    pathlib.Path("began").touch()
    try:
        while not (go and pathlib.Path(go).exists()):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        pathlib.Path("cancelled").touch()
        raise
    return "held"


@pool.task
async def shrug() -> str:
    '''Does not let itself be cancelled, until there is a file.'''
    pathlib.Path("began").touch()
    while not pathlib.Path("enough").exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pathlib.Path("told").touch()
    return "done"


@pool.task
async def fail(why: str) -> None:
    raise ValueError(why)
"""


@pytest.fixture
def commands(forks: ForkServer, nats_url: str, namespace: str, tmp_path: Path) -> Iterator[Commands]:
    """Processes on the shared server, in a folder with `words.py`, whose `pool` has a few tasks."""
    (tmp_path / "words.py").write_text(POOL)
    made = Commands(forks, nats_url, namespace, tmp_path)
    yield made
    made.close()


async def request(url: str, subject: str, body: bytes = b"", **headers: str) -> Message:
    """A request over a connection of its own, as any NATS client sends it."""
    bus = await connect(ConnectionSettings.from_url(url), name="test")
    try:
        return await bus.request(subject, body, timeout_s=PATIENCE_S, headers=headers or None)
    finally:
        await bus.close()


@pytest.fixture
def publish_raw(nats_url: str, namespace: str) -> Callable[[str, bytes], int]:
    """Publish a task without headers, as any NATS client can; returns its sequence in the stream."""

    def publish(target: str, body: bytes) -> int:
        return int(json.loads(asyncio.run(request(nats_url, f"{namespace}.task.{target}", body)).data)["seq"])

    return publish
