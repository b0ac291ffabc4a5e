"""The program that starts processes by fork: a Python that has already imported what they need.

A child is a process like any other: its own session, pid, environment, folder and standard streams; it runs a module
as `python -m` does, or code as `python -c` does, and ends as an interpreter ends. What it saves is the half second of
CPU that importing Gangline costs.

Started as `python fork_server.py SOCKET` by `ForkServer`. Each request is a connection of its own: it carries the
request and three file descriptors, gets the pid back, and later the exit code. When its standard input closes, the
server kills all children and ends, so nothing outlives the test process, however that dies.

A child may ask that the `gangline` processes it starts itself (those of `gangline dev` and `gangline demo`) come from
here as well: see `ChildProcess`.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

PRELOADED = (
    "click", "gangline.cli.console.children", "rich.console", "rich.live", "rich.table",
    "gangline.bus.embedded.server", "gangline.bus.nats_bus", "gangline.coordinator.service",
    "gangline.dispatcher.client.client", "gangline.dispatcher.durable.service", "gangline.dispatcher.gateway.gateway",
    "gangline.telemetry.setup", "gangline.worker.service", "uvloop",
)  # fmt: skip
LENGTH_BYTES = 4
PATIENT = "GANGLINE_TEST_PATIENT"
"""Environment variable: processes that have it are patient, and so are those that they start."""


def be_patient() -> dict[type, dict[str, Any]]:
    """From now on, settings that are not given have other defaults: a worker that gets no CPU for seconds keeps its
    leases, a slot that was chosen stays so, and a leader leads on. Tells the defaults that were."""
    from gangline.coordinator.election.election_core import ElectionSettings
    from gangline.dispatcher.routing.settings import RouterSettings
    from gangline.worker.ledger.settings import WorkerSettings

    before = {}
    patient: dict[Any, dict[str, float]] = {
        ElectionSettings: {"alive_ttl_s": 30.0},
        RouterSettings: {"claim_s": 20.0},
        WorkerSettings: {"freeze_after_s": 20.0},
    }
    for kind, values in patient.items():
        defaults = kind.__init__.__kwdefaults__
        assert values.keys() <= defaults.keys()
        before[kind] = dict(defaults)
        defaults.update(values)
    return before


def serve(path: str) -> None:
    for name in PRELOADED:
        __import__(name)
    assert threading.active_count() == 1, "a fork keeps only the thread that calls it"
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for one in (listener, woken, sys.stdin):
        selector.register(one, selectors.EVENT_READ)
    waiting: dict[int, socket.socket] = {}
    ours = (listener, woken, wake, selector)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                for pid in waiting:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return
            if key.fileobj is woken:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
            else:
                connection, _ = listener.accept()
                request, descriptors = _read(connection)
                pid = os.fork()
                if pid == 0:
                    for one in (connection, *ours, *waiting.values()):
                        one.close()
                    if request.get("forks_children"):
                        _fork_children(path)
                    _be(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                waiting[pid] = connection
                _say(connection, pid)
        _reap(waiting)


def send(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """What the near end sends."""
    body = json.dumps(request).encode()
    socket.send_fds(connection, [len(body).to_bytes(LENGTH_BYTES)], descriptors)
    connection.sendall(body)


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    body = b""
    while len(body) < int.from_bytes(head):
        body += connection.recv(65536)
    return json.loads(body), descriptors


def _say(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it
        connection.sendall(b"%d\n" % number)


def _reap(waiting: dict[int, socket.socket]) -> None:
    while waiting:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        with waiting.pop(pid) as connection:
            _say(connection, os.waitstatus_to_exitcode(status))


class ForkedProcess:
    """A process that the fork server started. Has what is used of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, stdout: IO[str] | None) -> None:
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answers.readline())
        self.stdout = stdout
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; a negative one is the signal that ended it.

        Raises:
            subprocess.TimeoutExpired
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                line = self._answers.readline()
            except TimeoutError:
                self._answers = self._connection.makefile("r")  # one that has timed out can no longer be read
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
            self.returncode = int(line or -signal.SIGKILL)  # the fork server ended, and killed it
            self._answers.close()
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.000_001)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing once it has ended, as far as can be known."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and the fork server is about to say so
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __repr__(self) -> str:
        return f"<ForkedProcess {self.pid}, exit code {self.returncode}>"


# -- in the child -------------------------------------------------------------------------------------------------


def _be(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Become the process asked for."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        if PATIENT in os.environ:
            be_patient()
        _open_streams()
        # With `-m` and `-c`, Python looks for modules in the current folder first.
        sys.path[0] = request["cwd"]
        code = _run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


class ChildProcess:
    """A process of the fork server's, started by one of its processes. Has what `gangline.cli` uses of
    `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, stdin: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._writer = writer
        self._stdin = stdin
        """Its parent's end: it closes when the parent dies, which ends a tied child."""
        self._end = asyncio.get_running_loop().create_task(self._await_end(answers))

    async def _await_end(self, answers: asyncio.StreamReader) -> None:
        self.returncode = int(await answers.readline() or -signal.SIGKILL)
        self._writer.close()
        os.close(self._stdin)

    async def wait(self) -> int:
        await asyncio.shield(self._end)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _fork_children(path: str) -> None:
    """Replace the functions of `gangline.cli.console.children` that start a new interpreter."""
    from gangline.cli.console import children

    def connected(
        module: str, arguments: Sequence[str], environment: Mapping[str, str], *streams: int
    ) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        request = {"module": module, "arguments": arguments, "environment": dict(environment), "cwd": os.getcwd()}
        send(connection, request, streams)
        return connection

    async def spawn(*arguments: str, environment: Mapping[str, str], output: IO[bytes] | None = None) -> ChildProcess:
        stdin, ours = os.pipe()
        out, err = (1, 2) if output is None else (output.fileno(), output.fileno())
        tied = {**environment, children.TIED: "1"}
        connection = connected("gangline.cli", arguments, tied, stdin, out, err)
        os.close(stdin)
        answers, writer = await asyncio.open_unix_connection(sock=connection)
        return ChildProcess(int(await answers.readline()), answers, writer, ours)

    def launch(
        what: Sequence[str], *, environment: Mapping[str, str], stdin: int, stdout: IO[Any], stderr: IO[Any]
    ) -> ForkedProcess:
        _, module, *arguments = what
        connection = connected(module, arguments, environment, stdin, stdout.fileno(), stderr.fileno())
        return ForkedProcess(connection, None)

    children.spawn = spawn  # type: ignore[assignment]
    children.launch = launch  # type: ignore[assignment]


def _open_streams() -> None:
    def text(descriptor: int, mode: str, **options: Any) -> io.TextIOWrapper:
        raw = io.FileIO(descriptor, mode, closefd=False)
        buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        return io.TextIOWrapper(buffered, encoding="utf-8", **options)

    sys.stdin = sys.__stdin__ = text(0, "r")
    sys.stdout = sys.__stdout__ = text(1, "w", write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    sys.stderr = sys.__stderr__ = text(2, "w", errors="backslashreplace", line_buffering=True)


def _run(request: dict[str, Any]) -> int:
    try:
        if "module" in request:
            sys.argv = [request["module"], *request["arguments"]]
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *request["arguments"]]
            main = type(sys)("__main__")
            main.__builtins__ = builtins  # type: ignore[attr-defined]
            sys.modules["__main__"] = main
            exec(compile(request["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """As an interpreter ends: its threads first, then what was registered for the exit."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
