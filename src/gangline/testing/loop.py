"""A virtual clock for asyncio: time passes only when there is nothing left to do, and then at once.

`VirtualLoop` is an event loop without sockets or a selector. When no callback is ready, it jumps to the next timer, so
an hour of heartbeats takes milliseconds. Every run of the same code takes the same path: timers due at one instant fire
in the order in which they were set, and tasks and futures hash by their serial number, so that not even a set of them
depends on memory addresses.

Callbacks belong to a *node* (a simulated process), named by a context variable, which tasks and callbacks inherit. A
node can be frozen, thawed and crashed; see `VirtualLoop.freeze`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import itertools
import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

T = TypeVar("T")

_NODE: contextvars.ContextVar[str | None] = contextvars.ContextVar("gangline_node", default=None)

MAX_CALLBACKS_AT_ONCE = 5_000_000
"""This many callbacks at one instant of virtual time count as an endless loop."""

START_S = 1000.0
"""Where virtual time begins. Not zero, so that code that takes 0 for "never" fails in tests."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: the remaining tasks, which the text names, would wait forever."""


class VirtualTimeout(RuntimeError):
    """Virtual time reached the loop's limit, or does not advance although callbacks keep running: an endless loop."""


def current_node() -> str | None:
    """The node that the running callback belongs to; None outside of all nodes."""
    return _NODE.get()


def node_context(node: str | None) -> Context:
    """A copy of the current context, for callbacks and tasks of `node`."""
    context = contextvars.copy_context()
    context.run(_NODE.set, node)
    return context


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a loop that does not run, wait for their ends, and close it."""
    try:
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class _Task(asyncio.Task[T]):
    """A task whose hash is its serial number."""

    def __init__(self, serial: int, node: str | None, coro: Any, **kwargs: Any) -> None:
        # Set before the base class is initialised, because that already puts the task into a set.
        self.serial = serial
        self.node = node
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self.serial

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future whose hash is its serial number."""

    def __init__(self, serial: int, **kwargs: Any) -> None:
        self.serial = serial
        super().__init__(**kwargs)

    def __hash__(self) -> int:
        return self.serial

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The monotonic clock of one node, with an offset and a rate."""

    rate: float = 1.0
    """Seconds that it counts per second of the loop; above 0."""
    ahead_s: float = 0.0
    """Its offset when virtual time begins."""

    def local(self, true: float) -> float:
        """Convert virtual time to this clock."""
        return START_S + self.ahead_s + (true - START_S) * self.rate

    def true(self, local: float) -> float:
        """The earliest virtual time at which it shows at least this."""
        found = START_S + (local - START_S - self.ahead_s) / self.rate
        return found if self.local(found) >= local else found + _ROUNDING_S


_TRUE = NodeClock()
_ROUNDING_S = 1e-8
"""More than the rounding error of converting back and forth, so that no timer fires early by its node's clock."""


@dataclass(slots=True)
class _Frozen:
    """What has accumulated for a frozen node."""

    ready: list[asyncio.Handle] = field(default_factory=list[asyncio.Handle])
    """Callbacks that were or became ready, including messages from the bus."""
    timers: list[asyncio.Handle] = field(default_factory=list[asyncio.Handle])
    """Timers that came due meanwhile, in that order."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time.

    Work in executors is real: virtual time does not advance while a job of `run_in_executor` runs, unless its future
    was cancelled. There are no sockets, pipes, subprocesses or signals.

    Args:
        limit_s: virtual seconds after which the loop raises `VirtualTimeout`. None: no limit.

    Raises (from running it):
        Deadlock: nothing ready, no timer, no job out.
    """

    is_virtual = True
    """Workers look for this: on virtual time they run tasks of child processes in this process."""
    _ready: deque[asyncio.Handle]

    def __init__(self, *, limit_s: float | None = None) -> None:
        super().__init__()
        self._now = START_S
        self._end = float("inf") if limit_s is None else START_S + limit_s
        self._serial = itertools.count(1)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled_timers = 0
        self._outside = 0
        self._arrived = threading.Event()
        self._executor: Executor | None = None
        self._frozen: dict[str, _Frozen] = {}
        self._clocks: dict[str, NodeClock] = {}
        self._crashed: dict[str, list[asyncio.Task[Any]]] = {}
        self.ran = 0
        """Number of callbacks run so far, a measure of work that does not depend on the machine."""
        self._ran_before = 0
        """`ran` when time last moved."""

    def __repr__(self) -> str:
        return (
            f"<VirtualLoop now={self._now:.6f} ready={len(self._ready)} timers={len(self._timers)} "
            f"frozen={sorted(self._frozen)} crashed={sorted(self._crashed)}>"
        )

    # -- the event loop's interface -------------------------------------------------------------------------------

    def time(self) -> float:
        """The time by the clock of the current node."""
        clock = self._clock_of(None) if self._clocks else None
        return self._now if clock is None else clock.local(self._now)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        clock = self._clock_of(context) if self._clocks else None
        true = when if clock is None else clock.true(when)
        heapq.heappush(self._timers, (true, next(self._serial), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        clock = self._clock_of(context) if self._clocks else None
        now = self._now if clock is None else clock.local(self._now)
        return self.call_at(now + delay, callback, *args, context=context)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        loop: VirtualLoop | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """Also takes what `asyncio.Task` does; `loop` is this one."""
        node = _NODE.get() if context is None else context.get(_NODE)
        serial = next(self._serial)
        task: _Task[T] = _Task(
            serial, node, coro, loop=self, name=f"task-{serial}" if name is None else name, context=context, **options
        )
        if node in self._crashed:  # in the step in which it crashed
            self._crashed[node].append(task)
            asyncio._unregister_task(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._serial), loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(thread_name_prefix="virtual-loop")
            executor = self._executor
        future = asyncio.wrap_future(executor.submit(func, *args), loop=self)
        self._outside += 1
        # In an empty context: the count must go down even if the node has crashed since.
        future.add_done_callback(self._came_back, context=Context())
        return future

    def set_default_executor(self, executor: Any) -> None:
        self._executor = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    def close(self) -> None:
        if self.is_closed():
            return
        for handle in self._ready:
            _drop(handle)
        self._bury()
        super().close()
        self._timers.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _bury(self) -> None:
        """Close the coroutines of crashed nodes, so that there are no warnings when they are collected. Errors and
        warnings that this causes are ignored, since the nodes died long ago."""
        silent, running = logging.root.manager.disable, asyncio._get_running_loop()
        logging.disable(logging.CRITICAL)
        asyncio._set_running_loop(self)  # so that what they begin becomes a task, which can be found
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # "never awaited"
                before = self._all_tasks()
                for task in sorted(before, key=hash):
                    if not inspect.iscoroutine(task.get_coro()):  # the end of a generator that was left half way
                        _close(task)
                for tasks in self._crashed.values():
                    for task in tasks:
                        _close(task)
                # Their `finally` blocks may have made others.
                while begun := self._all_tasks() - before:
                    before |= begun
                    for task in sorted(begun, key=hash):
                        _close(task)
                # Nothing runs any more. Among it are the ends of generators that were left half way: dropped while
                # the loop is open, since they cancel what they wait for. One may hold the next.
                while self._ready:
                    self._ready.clear()
        finally:
            asyncio._set_running_loop(running)
            logging.disable(silent)

    def _all_tasks(self) -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks(self) if isinstance(task, _Task)}

    def _came_back(self, _future: asyncio.Future[Any]) -> None:
        self._outside -= 1

    def _write_to_self(self) -> None:
        self._arrived.set()

    def _process_events(self, _events: object) -> None:
        raise AssertionError("a virtual loop has no selector")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return  # it has fired already
        self._cancelled_timers += 1
        if self._cancelled_timers > 200 and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._wait()
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            self._fire(heapq.heappop(timers)[2])
        frozen, crashed = self._frozen, self._crashed
        handle: asyncio.Handle | None = None
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if frozen or crashed:
                node = _node_of(handle)
                if node in crashed:
                    _drop(handle)
                    continue
                if node in frozen:
                    frozen[node].ready.append(handle)
                    continue
            self.ran += 1
            handle._run()
        handle = None  # the traceback of an error may refer to this frame, and this to its task
        if self.ran - self._ran_before > MAX_CALLBACKS_AT_ONCE:
            raise VirtualTimeout(
                f"{MAX_CALLBACKS_AT_ONCE} callbacks and time has not moved; waiting: {self._waiting()}"
            )

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if timer._cancelled:
            self._cancelled_timers -= 1
            return
        timer._scheduled = False  # type: ignore[attr-defined]
        node = _node_of(timer)
        if node is not None:
            if node in self._crashed:
                return
            if node in self._frozen:
                self._frozen[node].timers.append(timer)
                return
        self._ready.append(timer)

    def _wait(self) -> None:
        """Nothing is ready: wait for threads, or jump to the next timer if there are none."""
        while self._outside and not self._ready:
            self._arrived.wait()
            self._arrived.clear()
        if self._ready:
            return
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
            self._cancelled_timers -= 1
        if not self._timers:
            raise Deadlock(f"nothing is ready and no timer is set; waiting: {self._waiting()}")
        when = self._timers[0][0]
        if when > self._end:
            raise VirtualTimeout(f"virtual time would pass {self._end - START_S:.0f} s; waiting: {self._waiting()}")
        if when > self._now:
            self._now = when
            self._ran_before = self.ran

    def _waiting(self) -> str:
        tasks = sorted((t for t in asyncio.all_tasks(self) if isinstance(t, _Task)), key=hash)
        lines = [_describe(task) for task in tasks if task.node not in self._crashed]
        if self._frozen:
            lines.append(f"frozen nodes: {', '.join(sorted(self._frozen))}")
        return "; ".join(lines) or "no task"

    # -- nodes ----------------------------------------------------------------------------------------------------

    def spawn(self, node: str, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of `node`; everything that it starts belongs to `node` too."""
        return self.create_task(coro, name=name, context=node_context(node))

    def freeze(self, node: str) -> None:
        """Hold every callback of `node` until `thaw`, like SIGSTOP. Time continues. Idempotent."""
        self._frozen.setdefault(node, _Frozen())

    def thaw(self, node: str) -> None:
        """Let `node` continue, like SIGCONT: first ready callbacks and received messages, then timers that came due
        meanwhile (asyncio's order). Idempotent."""
        held = self._frozen.pop(node, None)
        if held is None:
            return
        # Callbacks that became ready in this very turn were not moved yet; they come after the others.
        late = [handle for handle in self._ready if _node_of(handle) == node]
        if late:
            others = [handle for handle in self._ready if _node_of(handle) != node]
            self._ready.clear()
            self._ready.extend(others)
        self._ready.extend((*held.ready, *late, *held.timers))

    def frozen(self, node: str) -> bool:
        return node in self._frozen

    # -- clocks -----------------------------------------------------------------------------------------------------

    @property
    def true_time(self) -> float:
        """Virtual time itself, as `time()` returns it outside of all nodes."""
        return self._now

    def set_clock(self, node: str, clock: NodeClock) -> None:
        """Give the node its own clock for `time()` and for everything that it waits for. Call it before it starts."""
        self._clocks[node] = clock

    def clock(self, node: str) -> NodeClock:
        """The node's clock."""
        return self._clocks.get(node, _TRUE)

    def _clock_of(self, context: Context | None) -> NodeClock | None:
        node = _NODE.get() if context is None else context.get(_NODE)
        return None if node is None else self._clocks.get(node)

    def crash(self, node: str) -> None:
        """Drop every callback of `node`, now and forever, like SIGKILL: none of its `finally` blocks runs.

        A restarted process is a new node with another name. (When the loop is closed, remaining coroutines are closed
        too. Their `finally` blocks run then, but can do nothing on a closed loop.)
        """
        if node in self._crashed:
            return
        # Kept until the loop is closed: tasks without references would be collected, with a warning.
        tasks = [t for t in asyncio.all_tasks(self) if isinstance(t, _Task) and t.node == node]
        self._crashed[node] = sorted(tasks, key=hash)
        for task in tasks:
            asyncio._unregister_task(task)  # whoever waits for all tasks to end would wait for ever
        self._frozen.pop(node, None)

    def crashed(self, node: str) -> bool:
        return node in self._crashed


def _node_of(handle: asyncio.Handle) -> str | None:
    context: Context | None = handle._context  # type: ignore[attr-defined]
    return None if context is None else cast("str | None", context.get(_NODE))


def _describe(task: _Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    where = f" at {stack[0].f_code.co_qualname}:{stack[0].f_lineno}" if stack else ""
    return f"{task.get_name()}{f' of {task.node}' if task.node else ''}{where}"


def _drop(handle: asyncio.Handle) -> None:
    """Suppress the report of an exception that the dropped callback would have retrieved."""
    for argument in handle._args or ():
        if isinstance(argument, _Task):
            _look_at(argument)


def _look_at(task: asyncio.Task[Any]) -> None:
    if task.done() and not task.cancelled():
        task.exception()


def _close(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    _look_at(task)
    coro: Any = task.get_coro()  # None for a task that ended eagerly
    try:
        if coro is not None:
            coro.close()
    except BaseException:  # noqa: BLE001, S110 - whatever a dead process would have said
        pass
