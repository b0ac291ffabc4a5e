"""The pytest plugin: fixtures `gangline_cluster` and `gangline_client`, and the marker `gangline`.

::

    @pytest.mark.gangline(pool, dispatcher=True, virtual_time=True)
    async def test_a_late_reminder(gangline_client):
        job = await gangline_client.options(delay_s=86_400).submit(remind, user="a")
        assert await job.result() == "reminded"

An `async def` test that uses a fixture of these, or has the marker, runs on an event loop of this plugin, together
with its async fixtures, whether pytest-asyncio or anyio is installed or not. All other tests are left alone. In a plain
`def` test the fixtures are a SyncCluster and a SyncClient.

pytest loads this in every run, so it imports nothing of Gangline before a test needs it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    import asyncio

    from .dispatcher.client.client import Client
    from .dispatcher.client.sync import SyncClient
    from .testing.in_memory import Cluster
    from .testing.in_memory_sync import SyncCluster

_MARKER: Final = "gangline"
_FIXTURES: Final = frozenset({"gangline_cluster", "gangline_client"})
_OPTIONS: Final = frozenset(
    (
        *("workers", "coordinator", "dispatcher", "namespace"),
        *("worker_settings", "router_settings", "dispatcher_settings", "virtual_time"),
    )
)
_LIMIT_S: Final = 366 * 86_400.0
"""Virtual seconds after which a test has failed: something goes round in circles."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gangline(*pools, workers=1, coordinator=False, dispatcher=False, virtual_time=False, ...): what the fixtures "
        "gangline_cluster and gangline_client run; the options are those of gangline.testing.cluster. With "
        "virtual_time, sleeps, deadlines, delays and schedules take no time",
    )


# -- what a test asks for ----------------------------------------------------------------------------------------------


def _options(item: pytest.Item) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pools and options of its markers: the closest one counts."""
    pools: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    for marker in item.iter_markers(_MARKER):
        pools = pools or marker.args
        options = {**marker.kwargs, **options}
    for name in options:
        if name not in _OPTIONS:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.gangline has no option {name!r}; it has: {', '.join(sorted(_OPTIONS))}"
            )
    return pools, options


def _is_ours(item: pytest.Item) -> bool:
    """Whether this plugin runs the test."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return False
    return item.get_closest_marker(_MARKER) is not None or not _FIXTURES.isdisjoint(item.fixturenames)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_ours(item):
            # On the item itself: other plugins for async tests replace its class, or look at its function.
            item.runtest = functools.partial(_run, item)  # type: ignore[method-assign]


def _run(item: Any) -> None:
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    function = getattr(item.obj, "__func__", None)
    test = item.obj if function is None else functools.partial(function, item.instance)
    _loop_of(item).run(test(**arguments))


# -- its event loop ----------------------------------------------------------------------------------------------------


class _Loop:
    """The event loop of one test, its fixtures and its cluster."""

    def __init__(self, *, virtual_time: bool) -> None:
        import asyncio
        import contextvars

        loop: asyncio.AbstractEventLoop
        if virtual_time:
            from .testing.loop import VirtualLoop

            loop = VirtualLoop(limit_s=_LIMIT_S)
        else:
            loop = asyncio.new_event_loop()
        self._loop = loop
        self._context = contextvars.copy_context()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(self._loop.create_task(coroutine, context=self._context))

    def close(self) -> None:
        from .testing.loop import close_loop

        close_loop(self._loop)


_LOOP: Final = pytest.StashKey[_Loop]()


def _loop_of(item: pytest.Item) -> _Loop:
    if _LOOP not in item.stash:
        _, options = _options(item)
        item.stash[_LOOP] = _Loop(virtual_time=options.get("virtual_time", False))
    return item.stash[_LOOP]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if _LOOP in item.stash:
            item.stash[_LOOP].close()
            del item.stash[_LOOP]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Async fixtures of these tests run on the loop of their test."""
    original = fixturedef.func
    asynchronous = inspect.isasyncgenfunction(original) or inspect.iscoroutinefunction(original)
    if asynchronous and fixturedef.scope == "function" and _is_ours(request.node):
        fixturedef.func = _on_loop(original, request)  # type: ignore[misc]
    try:
        return (yield)
    finally:
        if fixturedef.func is not original:
            fixturedef.func = original  # type: ignore[misc]


def _on_loop(original: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    async def following(generator: AsyncGenerator[Any, None]) -> Any:
        return await anext(generator)

    def setup(*args: Any, **kwargs: Any) -> Any:
        loop = _loop_of(request.node)
        made = original(*args, **kwargs)
        if inspect.iscoroutine(made):
            result: Any = loop.run(made)
            return result

        def finish() -> None:
            try:
                loop.run(following(made))
            except StopAsyncIteration:
                return
            raise RuntimeError(f"async fixture {original.__name__!r} yields more than once")

        value: Any = loop.run(following(made))
        request.addfinalizer(finish)
        return value

    return setup


# -- fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gangline_pools() -> tuple[Any, ...]:
    """The pools of tests whose marker names none: override it, for example in `conftest.py`."""
    return ()


def _as_tuple(pools: Any) -> tuple[Any, ...]:
    return tuple(cast("list[Any]", pools)) if isinstance(pools, (list, tuple)) else (pools,)


@pytest.fixture
def _gangline_running(
    request: pytest.FixtureRequest, gangline_pools: Any
) -> Iterator[tuple[Cluster, Client] | tuple[SyncCluster, SyncClient]]:
    pools, options = _options(request.node)
    if not pools:
        pools = _as_tuple(gangline_pools)
    if not pools:
        raise pytest.UsageError(
            f"{request.node.nodeid} has no pool: mark it with @pytest.mark.gangline(pool), or override the fixture "
            "gangline_pools"
        )
    if not _is_ours(request.node):
        from .testing.in_memory_sync import cluster_sync

        plain = cluster_sync(*pools, **options)
        with plain as plain_client:
            yield plain, plain_client
        return
    from .testing.in_memory import cluster

    loop = _loop_of(request.node)
    running = cluster(*pools, **{name: value for name, value in options.items() if name != "virtual_time"})
    client = loop.run(running.__aenter__())
    try:
        yield running, client
    finally:
        loop.run(running.__aexit__(None, None, None))


@pytest.fixture
def gangline_cluster(_gangline_running: Any) -> Cluster | SyncCluster:
    """The cluster in memory that runs the test's pools: a Cluster in an `async def` test, a SyncCluster in a `def`
    test. Its `kill`, `freeze` and `cut` play accidents."""
    cluster: Cluster | SyncCluster = _gangline_running[0]
    return cluster


@pytest.fixture
def gangline_client(_gangline_running: Any) -> Client | SyncClient:
    """A client of `gangline_cluster`: a Client in an `async def` test, a SyncClient in a `def` test."""
    client: Client | SyncClient = _gangline_running[1]
    return client
