"""Tracebacks of errors that leave the client show the user's lines only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gangline
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.errors import GangFailed, InvalidName, JobDead, NoWorkers, ServerUnreachable, TaskFailed
from gangline.runtime.tracebacks import all_frames, hide_frames
from gangline.schemas.names import Names
from gangline.testing import cluster, cluster_sync
from gangline.worker.service import Worker

pool = gangline.Pool("words", slots=4)


@pool.task
async def bad(text: str) -> int:
    raise ValueError(f"bad {text}")


@pool.task
async def bad_items(text: str) -> AsyncIterator[int]:
    yield 1
    raise ValueError(f"bad {text}")


def files_of(error: BaseException) -> set[str]:
    """The files in its traceback and in those of its causes."""
    found: set[str] = set()
    link: BaseException | None = error
    seen: list[BaseException] = []
    while link is not None and link not in seen:
        seen.append(link)
        found |= {frame.filename for frame in traceback.extract_tb(link.__traceback__)}
        link = link.__cause__ or link.__context__
    return found


async def call(client: gangline.Client) -> None:
    await client.call("words.bad", "x")


async def call_function(client: gangline.Client) -> None:
    await client.call(bad, "x")


async def call_with_a_key(client: gangline.Client) -> None:
    await client.options(key="k").call(bad, "x")


async def stream(client: gangline.Client) -> None:
    async for _ in client.stream(bad_items, "x"):
        pass


async def dispatch(client: gangline.Client) -> None:
    async with client.choose_worker("words") as selection:
        await client.dispatch(selection, bad, "x")


async def stream_on_a_selection(client: gangline.Client) -> None:
    async with client.choose_worker("words") as selection:
        async for _ in client.stream(selection, bad_items, "x"):
            pass


async def call_on_a_lease(client: gangline.Client) -> None:
    async with client.lease("words") as lease:
        await lease.call(bad, "x")


async def stream_on_a_lease(client: gangline.Client) -> None:
    async with client.lease("words") as lease:
        async for _ in lease.stream(bad_items, "x"):
            pass


async def call_one_rank(client: gangline.Client) -> None:
    async with client.gang(pool="words") as gang:
        await gang.call(0, bad, "x")


async def stream_of_one_rank(client: gangline.Client) -> None:
    async with client.gang(pool="words") as gang:
        async for _ in gang.stream(0, bad_items, "x"):
            pass


async def run_on_all_ranks(client: gangline.Client) -> None:
    async with client.gang(pool="words") as gang:
        await gang.run(bad, "x")


async def run_each_rank(client: gangline.Client) -> None:
    async with client.gang(pool="words") as gang:
        await gang.run_each(bad, [("x",)])


async def result(client: gangline.Client) -> None:
    await (await client.options(max_attempts=1).submit(bad, "x")).result()


async def items(client: gangline.Client) -> None:
    async for _ in (await client.options(max_attempts=1).submit(bad_items, "x")).items():
        pass


async def submit(client: gangline.Client) -> None:
    await client.submit("words.", "x")


async def submit_many(client: gangline.Client) -> None:
    await client.submit_many("words.", [{"text": "x"}])


async def no_workers(client: gangline.Client) -> None:
    await client.options(deadline_s=1).call("nobody.bad", "x")


async def no_worker_to_choose(client: gangline.Client) -> None:
    async with client.options(deadline_s=1).choose_worker("nobody"):
        pass


async def no_worker_to_lease(client: gangline.Client) -> None:
    async with client.options(deadline_s=1).lease("nobody"):
        pass


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        *((use, TaskFailed) for use in (call, call_function, call_with_a_key, stream, dispatch, stream_on_a_selection)),
        *((use, TaskFailed) for use in (call_on_a_lease, stream_on_a_lease, call_one_rank, stream_of_one_rank)),
        *((use, GangFailed) for use in (run_on_all_ranks, run_each_rank)),
        *((use, JobDead) for use in (result, items)),
        *((use, InvalidName) for use in (submit, submit_many)),
        *((use, NoWorkers) for use in (no_workers, no_worker_to_choose, no_worker_to_lease)),
    ],
)
async def test_only_the_users_lines_are_in_the_traceback(
    use: Callable[[gangline.Client], Awaitable[None]], kind: type[Exception]
) -> None:
    async with cluster(pool, dispatcher=True, coordinator=True) as client:
        with pytest.raises(kind) as caught:
            await use(client)
    assert files_of(caught.value) == {__file__}


async def test_middleware_stays_in_the_traceback() -> None:
    async def hook(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    running = cluster(pool)
    async with running, Client(running.hub.connect("hooked"), names=running.names, middleware=[hook]) as client:
        with pytest.raises(TaskFailed) as caught:
            await client.call(bad, "x")
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_middleware_stays_in_the_traceback", "hook"]


def test_the_same_holds_without_async() -> None:
    with cluster_sync(pool, dispatcher=True) as client:
        with pytest.raises(TaskFailed) as called:
            client.call(bad, "x")
        with pytest.raises(TaskFailed) as streamed:
            list(client.stream(bad_items, "x"))
        with pytest.raises(JobDead) as submitted:
            client.options(max_attempts=1).submit(bad, "x").result()
        with pytest.raises(NoWorkers) as leased, client.options(deadline_s=0.1).lease("nobody"):
            pass
    for caught in (called, streamed, submitted, leased):
        assert files_of(caught.value) == {__file__}


async def test_all_frames_are_there_when_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_DEBUG", "1")
    async with cluster(pool) as client:
        with pytest.raises(TaskFailed) as caught:
            await call(client)
    assert any(file.endswith("router.py") for file in files_of(caught.value))


async def test_a_block_can_ask_for_all_frames() -> None:
    async with cluster(pool) as client:
        with pytest.raises(TaskFailed) as caught, all_frames():
            await call(client)
        assert any(file.endswith("router.py") for file in files_of(caught.value))
        with pytest.raises(TaskFailed) as again:
            await call(client)
        assert files_of(again.value) == {__file__}


async def test_errors_that_are_not_ours_keep_their_frames() -> None:
    async def broken() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError) as caught:
        try:
            await broken()
        except TimeoutError as error:
            hide_frames(error)
            raise
    assert any("asyncio" in file for file in files_of(caught.value))


def test_a_cycle_of_causes_ends() -> None:
    first, second = TaskFailed("first"), TaskFailed("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(TaskFailed):
        try:
            raise first
        except TaskFailed:
            hide_frames(first)
            raise
    assert files_of(first) == {__file__}


SCRIPT = """
    import asyncio, sys
    import gangline

    async def main():
        async with gangline.connect(sys.argv[1], namespace=sys.argv[2]) as client:
            await client.call("words.bad", "x")

    asyncio.run(main())
"""


@pytest.mark.server
async def test_a_script_prints_its_own_line_and_the_remote_traceback(
    nats_url: str, namespace: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {name: value for name, value in os.environ.items() if name != "GANGLINE_DEBUG"}
    bus = await connect_bus(ConnectionSettings.from_url(nats_url), name="worker")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(bus.close)
        await stack.enter_async_context(Worker(pool, bus=bus, names=Names(namespace)))
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(script), nats_url, namespace],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
    ours = str(Path(gangline.__file__).parent)
    at_the_caller, _, at_the_worker = ended.stderr.partition("At the worker:\n")
    assert ours not in at_the_caller
    assert 'await client.call("words.bad", "x")' in at_the_caller
    assert at_the_caller.splitlines()[-1] == "gangline.errors.TaskFailed: words.bad raised ValueError: bad x"
    assert at_the_worker.splitlines()[0] == "Traceback (most recent call last):"
    assert at_the_worker.splitlines()[-1] == "ValueError: bad x"


@pytest.mark.server
async def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ServerUnreachable) as caught:
        settings = replace(ConnectionSettings.from_url("nats://127.0.0.1:1"), connect_timeout_s=0.1)
        async with gangline.connect(settings):
            pass
    assert files_of(caught.value) == {__file__}
