"""How this suite runs.

`async def` tests and fixtures need no plugin: each test gets its own event loop, on virtual time unless it is marked
`server`, `processes` or `realtime`. A test fails if it leaves a task running, or an exception that was never
retrieved.

On virtual time randomness is deterministic, too: the test's name is the seed, so a test that passes once always
passes. `GANGLINE_TEST_SEED=7 pytest` uses other random numbers in every such test, to look for races.

`pytest` runs the quick suite, `pytest --all` everything, and `pytest --rest` what is left of everything after the
quick suite; see `tests/scale.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import itertools
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import hypothesis
import pytest

from gangline import pytest_plugin
from gangline.bus.settings.connection import ConnectionSettings
from gangline.runtime import clock
from gangline.testing.loop import VirtualLoop

from . import scale
from .processes import ForkServer
from .processes.fork_server import be_patient
from .support import tools
from .waiting import PATIENCE_S

REAL = frozenset({"docker", "processes", "server", "realtime"})
VIRTUAL_LIMIT_S = 30 * 86_400.0

# Each test process has its own servers. Their threads must not spin for work and compete for the cores, and they
# need not collect garbage for every few megabytes.
FRUGAL = {
    "GOMAXPROCS": "1",
    "GOGC": "off",
    "GOMEMLIMIT": "256MiB",
    "GANGLINE_MAX_BYTES": str(16 << 20),
    "GANGLINE_HISTORY": "off",
}
"""Tests of the history switch it on."""

# Bounded, and exits with its parent process.
BUSY = """
import os, time
parent, end = os.getppid(), time.monotonic() + 3600
while os.getppid() == parent and time.monotonic() < end:
    sum(range(100_000))
"""

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(PROFILE)


# A machine that is busy with tests may take longer to connect, or to store something, than a user would wait.
_CONNECTION_DEFAULTS = ConnectionSettings.__init__.__kwdefaults__
assert _CONNECTION_DEFAULTS is not None and {"connect_timeout_s", "storage_timeout_s"} <= _CONNECTION_DEFAULTS.keys()
_CONNECTION_DEFAULTS["connect_timeout_s"] = PATIENCE_S
_CONNECTION_DEFAULTS["storage_timeout_s"] = PATIENCE_S / 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the whole suite: long repetitions as well")
    parser.addoption("--rest", action="store_true", help="the whole suite, without what the quick one runs just so")
    parser.addoption("--load", type=int, default=0, metavar="N", help="run beside N processes that keep N cores busy")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # collect no garbage until all tests are collected: there is none
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin)  # an editable install may be older than its entry point
    config.addinivalue_line("markers", "realtime: runs on the real loop and clock, without a server")
    config.addinivalue_line("markers", "long: runs only with --all; a quicker test checks the same thing")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background commands that way, and child processes of tests would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under `nohup`
    if config.getoption("--all") or config.getoption("--rest"):
        os.environ[scale.VARIABLE] = "1"
    else:
        os.environ.pop(scale.VARIABLE, None)
    for name, value in FRUGAL.items():
        os.environ.setdefault(name, value)
    if not hasattr(config, "workerinput"):  # the process that starts the others, or the only one
        load = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(config.getoption("--load"))]
        config.add_cleanup(lambda: [process.kill() or process.wait() for process in load])


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _is_real(item: pytest.Item) -> bool:
    return not REAL.isdisjoint(_marks(item))


def _interleaved(items: list[pytest.Item], marks: dict[pytest.Item, set[str]]) -> list[pytest.Item]:
    """Interleave tests that wait for servers and processes with tests that compute, so that the cores are always
    busy; the long ones of each kind come first."""
    waiting = [item for item in items if not REAL.isdisjoint(marks[item])]
    waiting.sort(key=lambda item: "processes" not in marks[item])
    computing = [item for item in items if REAL.isdisjoint(marks[item])]
    computing.sort(key=lambda item: "/sim/" not in item.nodeid)
    placed = [(place / len(kind), item) for kind in (waiting, computing) for place, item in enumerate(kind)]
    return [item for _, item in sorted(placed, key=lambda each: each[0])]


def _is_more(item: pytest.Item, marks: set[str]) -> bool:
    """Whether it tells more than the same test of the quick suite: it is not there, or repeats more."""
    return "long" in marks or (isinstance(item, pytest.Function) and "repetitions" in vars(item.module))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = {item: _marks(item) for item in items}
    left_out: list[pytest.Item] = []
    if config.getoption("--rest"):
        left_out = [item for item in items if not _is_more(item, marks[item])]
    elif not config.getoption("--all"):
        left_out = [item for item in items if "long" in marks[item]]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    without = set(left_out)
    items[:] = _interleaved([item for item in items if item not in without], marks)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    suite = "whole" if config.getoption("--all") else "rest of the whole" if config.getoption("--rest") else "quick"
    how = "derandomized" if PROFILE == "ci" else "random; a failure prints @reproduce_failure"
    server = os.environ.get("NATS", "embedded")
    load = config.getoption("--load")
    busy = f" beside {load} busy processes" if load else ""
    missing = ", ".join(f"no {name}" for name in tools.missing())
    without = f", {missing}: their tests are skipped" if missing else ""
    return (
        f"{suite} suite{busy}, hypothesis profile {PROFILE} ({how}), NATS={server}, loop={_real_loop_name()}{without}"
    )


# -- randomness on virtual time -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Take jitter, choices and tokens from a seed instead of from the system."""
    drawn = random.Random(seed)
    system = random.SystemRandom
    methods = {name: vars(system)[name] for name in ("random", "getrandbits", "randbytes")}
    for name in methods:
        setattr(system, name, _method(getattr(drawn, name)))
    clock.forget_tokens()
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(system, name, method)
        clock.forget_tokens()  # seeded tokens must not be used on a shared server


def _method(draw: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _self, *args: draw(*args)


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Nothing freezes in this process, but where others use the cores it may look as if it did."""
    before = be_patient()
    try:
        yield
    finally:
        for kind, defaults in before.items():
            kind.__init__.__kwdefaults__.update(defaults)  # type: ignore[misc]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _is_real(item):
        with _patient():
            return (yield)
    with _seeded(f"{os.environ.get('GANGLINE_TEST_SEED', 0)} {item.nodeid}"):
        return (yield)


# -- one loop for each test ---------------------------------------------------------------------------------------


def _real_loop_name() -> str:
    return os.environ.get("GANGLINE_TEST_LOOP", "uvloop")


def _real_loop() -> asyncio.AbstractEventLoop:
    if _real_loop_name() == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


class LoopOfTest:
    """The event loop of one test and its async fixtures."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        self.loop = VirtualLoop(limit_s=VIRTUAL_LIMIT_S) if virtual else _real_loop()
        self.context = contextvars.copy_context()
        self.complaints: list[str] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.loop.set_exception_handler(self._complain)

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        self.complaints.append(f"{context['message']}\n{text}")

    def run(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run on the loop. Fixtures and test share one context, so context variables carry over."""
        asyncio.set_event_loop(self.loop)
        try:
            return self.loop.run_until_complete(self.loop.create_task(coro, name="test", context=self.context))
        finally:
            asyncio.set_event_loop(None)

    def pending(self) -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks(self.loop) if not task.done()}

    def settle(self, allowed: set[asyncio.Task[Any]]) -> list[str]:
        """Problems after a test, including leftover tasks. Tasks that end within a few turns do not count."""
        for _ in range(10 if self.virtual else 50):
            if not self.pending() - allowed:
                break
            self.run(asyncio.sleep(0 if self.virtual else 0.01))
        left = self.pending() - allowed
        if left:
            self.complaints.extend(f"left pending: {task!r}" for task in left)
            for task in left:
                task.cancel()
            self.run(_wait(left))
        complaints, self.complaints = self.complaints, []
        return complaints

    def close(self) -> list[str]:
        try:
            complaints = self.settle(set())
            self.run(self.loop.shutdown_asyncgens())
            return complaints + self.complaints
        finally:
            self.loop.close()


async def _wait(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=5)


_LOOP = pytest.StashKey[LoopOfTest]()


def _loop_of(item: pytest.Item) -> LoopOfTest:
    if _LOOP not in item.stash:
        item.stash[_LOOP] = LoopOfTest(virtual=not _is_real(item))
    return item.stash[_LOOP]


def _run_strictly(item: pytest.Item, coro: Coroutine[Any, Any, Any]) -> None:
    """Run a test's body; fail it if it leaves anything behind. Tasks of its fixtures may continue."""
    loop = _loop_of(item)
    before = loop.pending()
    try:
        loop.run(coro)
    except BaseException:
        loop.settle(before)
        raise
    complaints = loop.settle(before)
    if complaints:
        pytest.fail("the test passed but left behind:\n" + "\n".join(complaints), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    test = pyfuncitem.obj
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    inner = getattr(inner, "async_original", inner)  # parametrized tests share one function, maybe wrapped
    if inspect.iscoroutinefunction(inner):
        # Hypothesis calls the inner test once per example and knows nothing of loops.
        @functools.wraps(inner)
        def example(*args: Any, **kwargs: Any) -> None:
            _run_strictly(pyfuncitem, inner(*args, **kwargs))

        example.async_original = inner  # type: ignore[attr-defined]
        test.hypothesis.inner_test = example
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run_strictly(pyfuncitem, test(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if _LOOP in item.stash:
            complaints = item.stash[_LOOP].close()
            del item.stash[_LOOP]
            if complaints:
                pytest.fail("fixtures left behind:\n" + "\n".join(complaints), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Async fixtures (function scope) run on the loop of their test."""
    original = fixturedef.func
    if inspect.isasyncgenfunction(original) or inspect.iscoroutinefunction(original):
        if fixturedef.scope != "function":
            raise TypeError(
                f"async fixture {fixturedef.argname!r} must have function scope: each test has its own loop"
            )
        fixturedef.func = _on_loop(original, request)  # type: ignore[misc]
    try:
        return (yield)
    finally:
        if fixturedef.func is not original:
            fixturedef.func = original  # type: ignore[misc]


async def _next(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator)


def _on_loop(original: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    def setup(*args: Any, **kwargs: Any) -> Any:
        loop = _loop_of(request.node)
        made = original(*args, **kwargs)
        if inspect.iscoroutine(made):
            return loop.run(made)

        def finish() -> None:
            try:
                loop.run(_next(made))
            except StopAsyncIteration:
                return
            raise RuntimeError(f"async fixture {original.__name__!r} yields more than once")

        value = loop.run(_next(made))
        request.addfinalizer(finish)
        return value

    return setup


# -- fixtures -----------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)


@pytest.fixture
def namespace() -> str:
    """A namespace for this test alone, so that tests can share a server."""
    return f"t{next(_numbers)}x{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A nats-server with JetStream for the whole session: embedded, or in a container with NATS=container. If it
    does not start, that is an error, never a skip."""
    if os.environ.get("NATS") == "container":
        yield from _container()
        return
    from gangline.bus.embedded.server import EmbeddedServer

    # Each namespace reserves room: together more than the machine has.
    with tempfile.TemporaryDirectory() as folder:
        room = f'jetstream {{ store_dir: "{folder}", max_file_store: 1PB, max_memory_store: 1PB }}'
        with EmbeddedServer(config=room) as server:
            yield server.url


@pytest.fixture
def nats_server() -> Iterator[Any]:
    """A nats-server for this test alone, which may kill and restart it."""
    from gangline.bus.embedded.server import EmbeddedServer

    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts Python processes that have already imported Gangline."""
    with ForkServer() as server:
        yield server


def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    image = os.environ.get("NATS_IMAGE", "nats:2.15-alpine")
    container = DockerContainer(image).with_command("-js").with_exposed_ports(4222)
    with container:
        wait_for_logs(container, "Server is ready", timeout=60)
        yield f"nats://{container.get_container_host_ip()}:{container.get_exposed_port(4222)}"
