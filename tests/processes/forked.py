"""The near end of the fork server: starts processes and waits for them, much as `subprocess` does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from .fork_server import PATIENT, ForkedProcess, send

START_TIMEOUT_S = 120.0


class ForkServer:
    """Starts `python -m MODULE` and `python -c CODE` by fork. Ends all its processes when it is closed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gangline-forks-")
        self._path = f"{self._folder.name}/s"
        program = Path(__file__).with_name("fork_server.py")
        self._server = subprocess.Popen(
            [sys.executable, str(program), self._path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ready = False

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(START_TIMEOUT_S)
        self._server.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self,
        what: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        forks_children: bool = False,
    ) -> ForkedProcess:
        """Start `python WHAT`, in a session of its own.

        Args:
            what: `["-m", module, arguments...]` or `["-c", code, arguments...]`.
            environment: all of it; None: ours, and the process is patient: see `fork_server.be_patient`.
            stdout: with PIPE, `ForkedProcess.stdout` reads it as text.
            forks_children: the `gangline` processes that it starts are forked as well.
        """
        how, name, *arguments = what
        request = {
            {"-m": "module", "-c": "code"}[how]: name,
            "arguments": arguments,
            "environment": {**os.environ, PATIENT: "1"} if environment is None else dict(environment),
            "cwd": str(Path.cwd() if cwd is None else cwd),
            "forks_children": forks_children,
        }
        reading: IO[str] | None = None
        with contextlib.ExitStack() as stack:

            def descriptor(given: int | IO[Any] | None, default: int) -> int:
                nonlocal reading
                if given == subprocess.DEVNULL:
                    return stack.enter_context(Path(os.devnull).open("r+b", buffering=0)).fileno()
                if given == subprocess.PIPE:
                    ours, theirs = os.pipe()
                    stack.callback(os.close, theirs)
                    reading = os.fdopen(ours)
                    return theirs
                return default if given is None else given if isinstance(given, int) else given.fileno()

            out = descriptor(stdout, 1)
            descriptors = [descriptor(stdin, 0), out, out if stderr == subprocess.STDOUT else descriptor(stderr, 2)]
            connection = self._connect()
            send(connection, request, descriptors)
        return ForkedProcess(connection, reading)

    def run(
        self,
        what: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: str = "",
        timeout: float | None = None,
        forks_children: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Start `python WHAT`, wait until it ends, and return what it printed.

        Raises:
            subprocess.TimeoutExpired: it was killed.
        """
        with (
            tempfile.TemporaryFile("w+") as given,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            given.write(stdin)
            given.seek(0)
            process = self.start(
                what, environment=environment, cwd=cwd, stdin=given, stdout=out, stderr=err,
                forks_children=forks_children,
            )  # fmt: skip
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                err.seek(0)
                raise subprocess.TimeoutExpired(list(what), error.timeout, stderr=err.read()) from None
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(what), code, out.read(), err.read())

    def _connect(self) -> socket.socket:
        if not self._ready:
            assert self._server.stdout is not None
            if self._server.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the fork server ended with code {self._server.wait()}; see what it printed")
            self._ready = True
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection
