"""The worker's handle of one child process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Protocol

from .....schemas.errors.base import GanglineError, TaskCrashed, error_from_wire
from .....schemas.wire import codec
from ....pool.pool import Outcome
from .protocol import Open, Splitter, ToChild, ToWorker, pack_for_child

_REAP_S = 0.01
"""Polling interval for the exit of a child that closed its socket."""
_LAST_WORDS_S = 1.0
"""How long to wait for the last messages of a dead child: a process that it left behind may hold the socket open."""


class ChildListener(Protocol):
    """The execution that runs in the child."""

    def child_item(self, sequence: int, value: Any) -> None: ...
    def child_done(self, outcome: Outcome) -> None:
        """It finished; the child is free."""
        ...

    def child_gang(self, number: int, what: str, value: Any, root: int) -> None:
        """It calls its gang; answer with GangAnswer."""
        ...

    def child_progress(self, value: Any) -> None: ...
    def child_died(self, crash: TaskCrashed) -> None:
        """The process ended while the task ran, killed by us or not."""
        ...


class ChildHandle(asyncio.Protocol):
    """Starts a child, gives it one task after another, and kills it. Used only on the event loop."""

    def __init__(
        self,
        opening: Open,
        *,
        on_exit: Callable[[ChildHandle], None],
        on_models: Callable[[], None],
    ) -> None:
        """
        Args:
            opening: its first message.
            on_exit: called once when the process has ended for whatever reason, before the listener is told.
            on_models: called when `models` has changed.
        """
        self._opening = opening
        self._on_exit = on_exit
        self._on_models = on_models
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._pidfd: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._broken = ""
        self._socket_closed = False
        self._listener: ChildListener | None = None
        self.models: tuple[str, ...] = ()
        """Ids of the models that it has loaded."""
        self.doomed = False
        """It was killed or told to close: give it nothing more."""

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    @property
    def busy(self) -> bool:
        return self._listener is not None

    async def start(self, within_s: float) -> None:
        """Spawn, import, open the lifespans.

        Raises:
            GanglineError: the child could not start; the text says why.
        """
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            await self._connect(ours)
            self._popen = subprocess.Popen(  # noqa: ASYNC220 - a few ms; a thread would tie its life to that thread's
                _command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Its own process group: Ctrl-C in a terminal is for the worker, and a kill takes what the task started.
                start_new_session=True,
            )
            self._watch()
        except BaseException:
            if self._transport is not None:
                self._transport.abort()
            ours.close()
            raise
        finally:
            theirs.close()
        self.send(self._opening)
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.kill()
            raise GanglineError(
                f"a child process of pool {self._opening.pool!r} was not ready after {within_s:g} s of imports and "
                "lifespans: raise process_start_s"
            ) from None
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        except NotImplementedError:
            raise GanglineError(
                "child processes need an event loop with sockets, which a virtual one does not have"
            ) from None

    def run(self, listener: ChildListener, start: ToChild) -> None:
        """Start a task; the listener is told how it ends."""
        self._listener = listener
        self.send(start)

    def keep(self, listener: ChildListener) -> None:
        """Tell the listener about the end of the process too, although its task has finished."""
        self._listener = listener

    def send(self, message: ToChild) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack_for_child(message))

    def kill(self) -> None:
        """Send SIGKILL to the child and to everything that it started. Idempotent."""
        self.doomed = True
        if self._popen is not None and self._popen.returncode is None:
            try:
                os.killpg(self._popen.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._popen.kill()  # too early: it has no group yet

    async def ended(self) -> None:
        """Wait until the process has ended."""
        await asyncio.shield(self._exited)

    # -- what comes from it ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for body in self._splitter.feed(data):
            kind, *places = codec.unpack(body)
            self._receive(ToWorker(kind), places)

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket_closed = True
        if self._popen is None:
            return
        if self._pidfd is None:
            self._poll_exit()
        else:
            self._maybe_end()

    def _receive(self, kind: ToWorker, places: list[Any]) -> None:
        match kind:
            case ToWorker.READY:
                if not self._ready.done():
                    self._ready.set_result(None)
            case ToWorker.BROKEN:
                self._broken = str(places[0])
            case ToWorker.MODELS:
                self.models = tuple(places[0])
                self._on_models()
            case ToWorker.LOG:
                logger = logging.getLogger(places[0]["name"])
                if logger.isEnabledFor(places[0]["levelno"]):
                    logger.handle(logging.makeLogRecord(places[0]))
            case _:
                if self._listener is not None:
                    self._of_task(self._listener, kind, places)

    def _of_task(self, listener: ChildListener, kind: ToWorker, places: list[Any]) -> None:
        """A message about the running task."""
        match kind:
            case ToWorker.GANG:
                listener.child_gang(*places)
            case ToWorker.PROGRESS:
                listener.child_progress(places[0])
            case ToWorker.ITEM:
                listener.child_item(places[0], places[1])
            case ToWorker.DONE:
                self._listener = None
                value, items, error = places
                listener.child_done(
                    Outcome(value=value, items=items, error=None if error is None else error_from_wire(*error))
                )

    # -- how it ends ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        assert self._popen is not None
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self._popen.pid)
            except OSError:
                return  # an old kernel: the closed socket tells us
            self._loop.add_reader(self._pidfd, self._poll_exit)

    def _poll_exit(self) -> None:
        """It ended, or closed its socket, which it does only when it ends."""
        assert self._popen is not None
        self.doomed = True
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)  # not yet reaped, so the group is its own
        except (ProcessLookupError, PermissionError):
            pass
        if self._popen.poll() is None:
            self._loop.call_later(_REAP_S, self._poll_exit)
            return
        if self._pidfd is not None and self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            self._loop.call_later(_LAST_WORDS_S, self._give_up_listening)
        self._maybe_end()

    def _give_up_listening(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket_closed = True
            self._maybe_end()

    def _maybe_end(self) -> None:
        """It has ended when it is reaped and has nothing more to send."""
        if self._exited.done() or self._popen is None or self._popen.returncode is None or not self._socket_closed:
            return
        self._exited.set_result(None)
        self.models = ()
        self._on_exit(self)
        if not self._ready.done():
            why = self._broken or f"it {_how(self._popen.returncode)[0]} while it started"
            self._ready.set_exception(
                GanglineError(f"a child process of pool {self._opening.pool!r} could not start: {why}")
            )
            self._ready.exception()  # mark it as retrieved, even if nobody is waiting
        listener, self._listener = self._listener, None
        if listener is not None:
            text, details = _how(self._popen.returncode)
            listener.child_died(TaskCrashed(f"its process {text}", details=details))

    def __repr__(self) -> str:
        return f"ChildHandle(pid={self.pid}, busy={self.busy}, doomed={self.doomed})"


def _how(returncode: int) -> tuple[str, dict[str, Any]]:
    if returncode >= 0:
        return f"exited with code {returncode}", {"exit_code": returncode}
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was ended by {name}", {"signal": name}


def _command(fd: int) -> list[str]:
    """A fresh interpreter that looks for modules where this one does."""
    module = f"{__package__}.child_main"
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main({fd}, {os.getpid()})"
    return [sys.executable, "-c", code, "gangline-child"]
