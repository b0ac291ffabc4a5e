"""The inside of a child process: imports the tasks, then runs one at a time until the worker closes the socket.

Plain functions run in the main thread, as scripts do, so that signals and libraries behave as usual. One more thread
listens to the worker and ends the process at once when the worker is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import faulthandler
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from .....schemas.errors.base import GanglineError
from .....schemas.handles import TASKS_ATTRIBUTE
from .....telemetry.exceptions import error_text, traceback_text
from .....telemetry.logs import RECORD_FIELDS
from .....telemetry.tracing import tracer
from ....context.lifespans import HookLimits, Lifespans
from ....context.task_context import TaskContext, add_task_ids, attach, end, report_to
from ....pool.pool import Outcome, Pool
from ..blocking_stream import BlockingStream, Ending, StreamCredit, run_here
from ..execution import failure_of
from .gang_bridge import GangBridge
from .protocol import Close, GangAnswer, GrantCredit, Open, StartTask, ToWorker, messages_for_child, pack_for_worker

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent: int) -> None:
    """Serve until told to close.

    Args:
        fd: this end of the socket pair.
        parent: pid of the worker.
    """
    _die_with(parent)
    # The worker decides when we end, but Ctrl-C and a service manager's SIGTERM may reach us too. Not SIG_IGN: programs
    # started by tasks would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    os.set_inheritable(fd, False)
    faulthandler.enable()
    _Child(socket.socket(fileno=fd)).serve()


def _ignore(number: int, frame: FrameType | None) -> None:
    """See `main`."""


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the worker died before prctl was called


class _Child:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Reentrant: finalizers that the garbage collector runs in the middle of a send may log.
        self._sending = threading.RLock()
        self._orders: queue.SimpleQueue[Open | StartTask | Close] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._gang = GangBridge(self._loop, self._ask_gang)
        self._room: StreamCredit | None = None
        """Credit of the running stream. Set before its first item is sent, so no credit arrives without it."""

    def serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        threading.Thread(target=self._listen, name="gangline-link", daemon=True).start()
        opening = self._orders.get()
        assert isinstance(opening, Open)
        forward = _Forward(self)
        forward.addFilter(add_task_ids)
        logging.basicConfig(level=opening.log_level, handlers=[forward], force=True)
        try:
            pool = find_pool(opening.pool, opening.functions)
            start_s, load_s, stop_s = opening.limits
            limits = HookLimits(lifespan_start_s=start_s, model_load_s=load_s, hook_stop_s=stop_s)
            scope = Lifespans(pool, lambda ids: self._send(ToWorker.MODELS, ids), limits=limits)
            self._loop.run_until_complete(scope.open())
        except BaseException as error:
            text = (
                str(error)
                if isinstance(error, GanglineError)
                else f"{type(error).__name__}: {error_text(error, 2_000)}"
            )
            logging.getLogger("gangline.worker").exception(
                "a child process could not start", extra={"action": "child_broken", "pool": opening.pool}
            )
            self._send(ToWorker.BROKEN, text)
            raise SystemExit(1) from None
        self._send(ToWorker.READY)
        while isinstance(order := self._orders.get(), StartTask):
            outcome = self._run(order, opening, pool, scope)
            self._flush_output()
            self._done(outcome)
        self._loop.run_until_complete(scope.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _run(self, order: StartTask, opening: Open, pool: Pool, scope: Lifespans) -> Outcome:
        clock = time.monotonic
        deadline = None if order.remaining_s is None else clock() + order.remaining_s
        context = TaskContext(**order.context, deadline=deadline, clock=clock)
        attach(context, scope)
        self._gang.attach(context)
        if context.job is not None:
            report_to(context, self)
        task = pool.find(order.method)
        self._room = StreamCredit(order.window)
        stream = BlockingStream(self._item, self._room) if order.streams else None
        try:
            call = task.bind(order.args, order.kwargs, json=order.json)
            # For task code that traces: the tasks' modules may have set up a provider.
            with tracer.span(f"gangline.process {task.full_name}", parent=context.trace):
                own = contextvars.copy_context()
                return own.run(run_here, call, context, stream, opening.max_collected_bytes, self._run_coroutine)
        except BaseException as error:
            return Outcome(error=failure_of(error, None, task))
        finally:
            end(context)
            scope.models.done_with(context)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Ending]) -> Ending:
        return self._loop.run_until_complete(coroutine)

    def _listen(self) -> None:
        for message in messages_for_child(self._sock):
            if isinstance(message, GrantCredit):
                if self._room is not None:
                    self._room.add(message.items)
            elif isinstance(message, GangAnswer):
                self._gang.answered(message)
            else:
                if isinstance(message, StartTask):
                    self._room = None  # late credit belongs to the previous stream
                self._orders.put(message)
        os._exit(1)

    def _item(self, sequence: int, value: Any) -> None:
        self._send(ToWorker.ITEM, sequence, value)

    def _ask_gang(self, number: int, what: str, value: Any, root: int) -> None:
        self._send(ToWorker.GANG, number, what, value, root)

    def _done(self, outcome: Outcome) -> None:
        error = outcome.error
        facts = None if error is None else (error.code, error.message, error.details, error.may_have_started)
        self._send(ToWorker.DONE, outcome.value, outcome.items, facts)

    def _send(self, kind: ToWorker, *places: Any) -> None:
        message = pack_for_worker(kind, *places)
        with self._sending:
            self._sock.sendall(message)

    def report(self, value: Any) -> None:
        """Send the task's progress to the worker, which knows where it goes."""
        self._send(ToWorker.PROGRESS, value)

    def log(self, fields: dict[str, Any]) -> None:
        self._send(ToWorker.LOG, fields)

    @staticmethod
    def _flush_output() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # closed by the task, or a pipe whose reader is gone


def find_pool(name: str, functions: tuple[tuple[str, str], ...]) -> Pool:
    """Import every function and return the pool in which they are declared.

    Raises:
        GanglineError: a module cannot be imported, or does not declare the task that it declared in the worker.
    """
    pool: Pool | None = None
    for module_name, qualname in functions:
        try:
            found: Any = importlib.import_module(module_name)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise GanglineError(
                f"a child process cannot import {qualname} from {module_name}: {error}; tasks that run in processes "
                "must be importable by that name"
            ) from error
        task = getattr(found, TASKS_ATTRIBUTE, {}).get(name)
        if task is None:
            raise GanglineError(f"{module_name}.{qualname} is not a task of pool {name!r} in a child process")
        if pool is not None and task.pool is not pool:
            raise GanglineError(f"the tasks of pool {name!r} belong to two Pool objects: import one from one module")
        pool = task.pool
    assert pool is not None
    for task in pool.tasks.values():
        task.prepare()
    return pool


class _Forward(logging.Handler):
    """Forwards log records to the worker, which has the handlers."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {
                "name": record.name,
                "levelno": record.levelno,
                "levelname": record.levelname,
                "msg": record.getMessage(),
                "created": record.created,
                "msecs": record.msecs,
                "process": record.process,
                "processName": record.processName,
                "thread": record.thread,
                "threadName": record.threadName,
                "pathname": record.pathname,
                "filename": record.filename,
                "module": record.module,
                "lineno": record.lineno,
                "funcName": record.funcName,
            }
            if record.exc_info and record.exc_info[1] is not None:
                fields["exc_text"] = traceback_text(record.exc_info[1])
            for key, value in record.__dict__.items():
                if key not in RECORD_FIELDS:
                    fields[key] = value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
            self._child.log(fields)
        except Exception:
            self.handleError(record)
