"""A child process that dies with its parent and whose log can be waited on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

_KEPT_LINES: Final = 200

# Runs in a fresh interpreter, then becomes the server: code between fork and exec in a process with threads may
# deadlock. The signal survives exec. The check after prctl is for a parent that died before it.
_LINUX_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Elsewhere a small process in between kills the server when its standard input ends, which the kernel closes with the
# parent.
_KEEPER: Final = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
print("keeper: pid", server.pid, file=sys.stderr, flush=True)
def watch():
    while os.read(0, 4096):
        pass
    server.kill()
threading.Thread(target=watch, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: server.terminate())
sys.exit(server.wait())
"""


class ServerProcess:
    """One run of a program. A thread reads its standard error and also starts it: the kernel's parent-death signal
    follows the *thread* that forked, so that thread must live as long as the child."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_line: Callable[[str], None],
        on_end: Callable[[], None],
        keeper: bool | None = None,
    ) -> None:
        self._command = list(command)
        self._on_line = on_line
        self._on_end = on_end
        self._keeper = sys.platform != "linux" if keeper is None else keeper
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._process: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self._thread = threading.Thread(target=self._run, name="nats-server-log", daemon=True)

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: the program cannot be executed.
        """
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it is not running."""
        return None if self._ended.is_set() else self._pid

    @property
    def running(self) -> bool:
        return self._process is not None and not self._ended.is_set()

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def await_end(self, timeout_s: float) -> bool:
        """Block until it has ended; False if it still runs after `timeout_s`."""
        return self._ended.wait(timeout_s)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(list(self._lines)[-lines:])

    def signal(self, number: int) -> None:
        """Send a signal; no-op if it has ended."""
        if self.running and self._pid is not None:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                pass

    def freeze(self) -> None:
        """Suspend it like a hung machine; returns when it is suspended."""
        self.signal(signal.SIGSTOP)
        if self.running and self._pid is not None and not self._keeper:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def stop(self, timeout_s: float) -> None:
        """Terminate it; kill it if it still runs after `timeout_s`."""
        if not self.running:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if not self._ended.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """Kill it, like a crash."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._ended.wait(10)

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._launcher(),
                stdin=subprocess.PIPE if self._keeper else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for us: the server must outlive our own cleanup
            )
        except OSError as error:
            self._error = error
            self._ended.set()
            self._started.set()
            return
        if not self._keeper:
            self._pid = self._process.pid
            self._started.set()
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                self._take(line.rstrip())
        self._process.wait()
        self._close_input()
        self._ended.set()
        self._started.set()
        self._on_end()

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _take(self, line: str) -> None:
        if self._pid is None and line.startswith("keeper: pid "):
            self._pid = int(line.rsplit(" ", 1)[1])
            self._started.set()  # not before: the server may log that it is ready before the keeper tells its id
            return
        self._lines.append(line)
        self._on_line(line)

    def _launcher(self) -> list[str]:
        code = _KEEPER if self._keeper else _LINUX_LAUNCHER
        return [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *self._command]
