"""Tasks in child processes: crashes, kills and hangs stay theirs, and nothing of them outlives the worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from gangline.schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidResult,
    InvalidSettings,
    TaskCrashed,
    TaskFailed,
)
from gangline.worker.execution.executor_registry import ExecutorRegistry
from gangline.worker.execution.executors.execution import ExecutorSettings
from gangline.worker.execution.executors.processes import pool as processes
from gangline.worker.pool.pool import Outcome, Pool

from ....processes import ForkServer
from ....processes.state import state_of
from ....support.worker.harness import Harness, running
from ....waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes

MODULES = str(Path(__file__).resolve().parents[3] / "support" / "modules")


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of tasks, importable by its name here and in children."""
    monkeypatch.syspath_prepend(MODULES)
    import process_samples  # type: ignore[import-not-found]

    return cast(ModuleType, process_samples)


@pytest.fixture
def pool(samples: ModuleType) -> Pool:
    return cast(Pool, samples.pool)


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie that its new parent has not reaped yet has)."""
    return state_of(pid) in ("", "Z")


async def test_functions_and_coroutines_give_their_results_from_another_process(pool, new_interpreters):
    async with running(pool) as harness:
        assert await harness.value("add", a="1") == 2
        assert await harness.value("add_async", a=1, b=2) == 3
        assert await harness.value("area", size={"width": 3, "height": 4}) == {"width": 12, "height": 1}
        assert await harness.value("pid") != os.getpid()


async def test_a_child_is_used_again_and_more_start_when_they_are_needed(pool, tmp_path):
    async with running(pool) as harness:
        assert harness.executors.statistics()["processes"] == 1
        first = await harness.value("pid")
        assert await harness.value("pid") == first
        hanging = harness.launch("hang", marker=str(tmp_path / "marker"))
        assert await harness.value("pid") != first
        assert harness.executors.statistics()["processes"] == 2
        hanging.cancel()
        await hanging.done
        assert harness.executors.statistics() == {
            "launched": 4, "threads": 0, "idle_threads": 0, "processes": 1, "idle_processes": 1,
        }  # fmt: skip


async def test_no_more_children_are_kept_idle_than_allowed(pool):
    async with running(pool, ExecutorSettings(idle_processes=1, warm_processes=0)) as harness:
        assert harness.executors.statistics()["processes"] == 0
        launched = [harness.launch("add", a=i) for i in range(3)]
        assert [(await one.done).value for one in launched] == [1, 2, 3]
        await until(lambda: harness.executors.statistics()["processes"] == 1, "the others end")


async def test_the_context_is_there_in_the_child_and_so_are_its_own_resources(pool):
    async with running(pool) as harness:
        options = {
            "id": "r.7", "fence": 9, "labels": {"a": "b"}, "deadline": asyncio.get_running_loop().time() + 60,
        }  # fmt: skip
        assert await harness.value("facts", options=options) == {
            "id": "r.7", "method": "facts", "fence": 9, "labels": {"a": "b"}, "in_time": True, "resource": True,
        }  # fmt: skip


async def test_what_a_task_raises_comes_with_its_traceback(pool):
    async with running(pool) as harness:
        error = (await harness.run("fail", text="no luck")).error
        assert isinstance(error, TaskFailed)
        assert str(error) == "samples.fail raised ValueError: no luck"
        assert "in fail" in error.remote_traceback
        assert "executors" not in error.remote_traceback
        error = (await harness.run("unwritable")).error
        assert isinstance(error, InvalidResult)
        assert "result.a[0] has the type object" in str(error)


@pytest.mark.parametrize(
    ("kind", "text", "details"),
    [
        ("segfault", "samples.end: its process was ended by SIGSEGV", {"signal": "SIGSEGV"}),
        ("kill", "samples.end: its process was ended by SIGKILL", {"signal": "SIGKILL"}),
        ("exit", "samples.end: its process exited with code 3", {"exit_code": 3}),
    ],
)
async def test_a_crash_is_the_tasks_error_and_the_next_task_gets_a_fresh_child(pool, kind, text, details):
    async with running(pool) as harness:
        before = await harness.value("pid")
        error = (await harness.run("end", kind=kind)).error
        assert isinstance(error, TaskCrashed)
        assert str(error) == text
        assert error.details == details
        assert error.may_have_started
        assert await harness.value("pid") != before


@pytest.mark.parametrize("kind", ["sys.exit", "interrupt", "generator"])
async def test_what_python_can_raise_does_not_cost_the_child(pool, kind):
    async with running(pool) as harness:
        before = await harness.value("pid")
        assert isinstance((await harness.run("end", kind=kind)).error, TaskFailed)
        assert isinstance((await harness.run("exit_async")).error, TaskFailed)
        assert await harness.value("pid") == before


async def hanging(harness: Harness, tmp_path: Path, **options):
    """A task that runs for ever, its pid, and that of the program it started."""
    marker = tmp_path / "marker"
    launched = harness.launch("hang", marker=str(marker), options=options)
    await until(marker.exists, "the task runs")
    child, program = map(int, marker.read_text().split())
    assert not gone(child)
    assert not gone(program)
    return launched, child, program


async def test_cancelling_kills_the_child_and_what_it_started(pool, tmp_path):
    async with running(pool) as harness:
        launched, child, program = await hanging(harness, tmp_path)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)
        assert gone(child)
        await until(lambda: gone(program), "the program ends")
        assert await harness.value("add", a=1) == 2


async def test_a_tasks_own_timeout_kills_the_child(samples, tmp_path):
    pool = Pool("samples", executor="process")
    # The same functions in a pool of their own, as the child sees them.
    pool.task(timeout_s=0.5)(samples.hang)
    pool.task(samples.pid)
    for method in ("hang", "pid"):
        getattr(samples, method).__gangline_tasks__["samples"] = samples.pool.tasks[method]
    pool.lifespan(samples.resource)
    async with running(pool) as harness:
        child = await harness.value("pid")
        error = (await harness.run("hang", marker=str(tmp_path / "marker"))).error
        assert isinstance(error, DeadlineExceeded)
        assert gone(child)


async def test_a_cancel_while_the_child_starts_ends_the_task_and_keeps_the_child(pool, tmp_path):
    async with running(pool, ExecutorSettings(warm_processes=0)) as harness:
        marker = tmp_path / "marker"
        launched = harness.launch("hang", marker=str(marker))
        await asyncio.sleep(0)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)
        await until(lambda: harness.executors.statistics()["idle_processes"] == 1, "the child is up")
        assert not marker.exists()


async def test_stopping_leaves_no_child(pool):
    async with running(pool, ExecutorSettings(warm_processes=3)) as harness:
        pids = {(await one.done).value for one in [harness.launch("pid") for _ in range(3)]}
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)


async def test_stopping_kills_what_still_runs(pool, tmp_path, monkeypatch):
    # It gets none of the time that idle children have: with this much of it, the test would not end.
    monkeypatch.setattr(processes, "_CLOSE_S", 3600.0)
    async with running(pool) as harness:
        launched, child, _ = await hanging(harness, tmp_path)
    assert gone(child)
    assert isinstance((await launched.done).error, TaskCrashed)


async def test_an_idle_child_that_is_killed_is_replaced(pool):
    async with running(pool) as harness:
        pid = await harness.value("pid")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: harness.executors.statistics()["processes"] == 0, "the death is noticed")
        assert await harness.value("pid") != pid


# -- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["count", "count_async"])
async def test_streams_go_out_item_by_item_with_credit(pool, method):
    async with running(pool) as harness:
        launched = harness.launch(method, n=10, options={"streams": True, "window": 3})
        await launched.until_items(3)
        launched.execution.credit(3)
        await launched.until_items(6)
        assert launched.items == list(range(6))
        launched.execution.credit(4)
        assert await launched.done == Outcome(items=10)
        assert await harness.run(method, n=5) == Outcome(value=[0, 1, 2, 3, 4])


async def test_a_child_makes_no_more_items_than_its_reader_has_room_for(pool, tmp_path):
    marker = tmp_path / "made"
    async with running(pool) as harness:
        launched = harness.launch("count", n=100, marker=str(marker), options={"streams": True, "window": 3})
        await launched.until_items(3)
        await until(lambda: marker.read_text() == "3", "the next item is made, and held back")
        await asyncio.sleep(0.05)
        assert marker.read_text() == "3"
        assert launched.items == [0, 1, 2]
        launched.cancel()
        await launched.done


async def test_a_crash_in_mid_stream_comes_after_the_items(pool):
    async with running(pool) as harness:
        launched = harness.launch("count_then_die", n=5, options={"streams": True})
        outcome = await launched.done
        assert isinstance(outcome.error, TaskCrashed)
        assert launched.items == [0, 1, 2, 3, 4]


async def test_late_credit_does_not_reach_the_next_task_of_the_child(pool):
    async with running(pool) as harness:
        first = harness.launch("count", n=2, options={"streams": True})
        await first.done
        second = harness.launch("count", n=5, options={"streams": True, "window": 1})
        await second.until_items(1)
        first.execution.credit(100)
        assert await harness.value("add", a=1) == 2
        assert second.items == [0]
        second.execution.credit(4)
        assert await second.done == Outcome(items=5)


async def test_large_results_and_arguments_pass(pool):
    async with running(pool) as harness:
        assert len(await harness.value("big", n=5_000_000)) == 5_000_000
        error = (await harness.run("fail", text="x" * 3_000_000)).error
        assert isinstance(error, TaskFailed)


# -- the rest -----------------------------------------------------------------------------------------------------


async def test_log_records_reach_the_worker(pool, caplog):
    async with running(pool) as harness:
        with caplog.at_level(logging.WARNING, "samples"):
            await harness.value("log", text="from below")
    (record,) = [record for record in caplog.records if record.name == "samples"]
    assert record.getMessage() == "from below"
    assert record.process != os.getpid()
    assert record.action == "sampled"


async def test_models_are_loaded_in_children_and_reported_by_the_worker(pool):
    reported: list[tuple[str, ...]] = []
    async with running(pool, on_models=reported.append) as harness:
        first = await harness.value("model", options={"model_id": "m1"})
        assert first == await harness.value("model_async", options={"model_id": "m1"})
        assert harness.executors.models == ("m1",)
        await harness.value("model", options={"model_id": "m2"})
        await harness.value("model", options={"model_id": "m3"})
        assert list(harness.executors.models) == ["m2", "m3"]
    assert reported[0] == ("m1",)
    assert reported[-1] == ()


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> ModuleType:
    """A module of that text, imported; its file can be changed for the children."""
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    imported = __import__(name)
    monkeypatch.delitem(sys.modules, name)
    return imported


POOL = """
from gangline.worker.pool.pool import Pool
pool = Pool("p", executor="process")
@pool.task
def work() -> int:
    return 1
"""


TRACING = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from gangline.telemetry.tracing import tracer
from gangline.worker.pool.pool import Pool

if os.environ.get("TRACE_IN_CHILD"):
    trace.set_tracer_provider(TracerProvider())
pool = Pool("p", executor="process")

@pool.task
def work() -> str | None:
    return tracer.traceparent()
"""


async def test_code_in_a_child_that_traces_goes_on_with_the_callers_trace(tmp_path, monkeypatch):
    imported = module(tmp_path, monkeypatch, "child_traces", TRACING)
    options = {"trace": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    async with running(imported.pool) as harness:
        assert await harness.value("work", options=options) is None
    monkeypatch.setenv("TRACE_IN_CHILD", "1")
    async with running(imported.pool) as harness:
        value = await harness.value("work", options=options)
    assert value.startswith(f"00-{'ab' * 16}-")
    assert value.endswith("-01")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (POOL.replace("def work", "def other"), "a child process cannot import work from child_changed"),
        ("raise RuntimeError('not today')", "could not start: RuntimeError: not today"),
        ("import os; os._exit(9)", "could not start: it exited with code 9 while it started"),
        (POOL.replace('"p"', '"q"'), r"child_changed\.work is not a task of pool 'p' in a child process"),
        (POOL + "@pool.lifespan\ndef broken():\n    raise OSError('no disk')\n    yield\n", "OSError: no disk"),
    ],
)
async def test_what_children_cannot_import_is_known_at_the_start(tmp_path, monkeypatch, changed, text):
    imported = module(tmp_path, monkeypatch, "child_changed", POOL)
    (tmp_path / "child_changed.py").write_text(changed)
    executors = ExecutorRegistry(imported.pool)
    with pytest.raises(GanglineError, match=text):
        await executors.start()
    assert executors.statistics()["processes"] == 0


async def test_a_child_that_cannot_start_later_is_the_tasks_error_and_nothing_has_run(tmp_path, monkeypatch):
    imported = module(tmp_path, monkeypatch, "child_broken_later", POOL)
    async with running(imported.pool, ExecutorSettings(warm_processes=0)) as harness:
        (tmp_path / "child_broken_later.py").write_text("raise RuntimeError('not today')")
        error = (await harness.run("work")).error
        assert isinstance(error, TaskCrashed)
        assert "p.work did not start: a child process of pool 'p' could not start: RuntimeError: not today" in str(
            error
        )
        assert not error.may_have_started
        (tmp_path / "child_broken_later.py").write_text(POOL)
        assert await harness.value("work") == 1


async def test_a_child_that_takes_too_long_to_start_is_killed(tmp_path, monkeypatch):
    imported = module(tmp_path, monkeypatch, "child_slow", POOL)
    (tmp_path / "child_slow.py").write_text("import time; time.sleep(600)")
    executors = ExecutorRegistry(imported.pool, settings=ExecutorSettings(process_start_s=0.5))
    with pytest.raises(
        GanglineError, match=r"was not ready after 0.5 s of imports and lifespans: raise process_start_s"
    ):
        await executors.start()
    assert executors.statistics()["processes"] == 0


async def test_a_script_cannot_have_its_own_functions_run_in_children(monkeypatch):
    def work() -> None: ...

    work.__module__ = "__main__"
    work.__qualname__ = "work"
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    pool = Pool("p")
    pool.task(executor="process")(work)
    with pytest.raises(InvalidSettings, match=r"p\.work runs in child processes, .* move the pool to a module"):
        await ExecutorRegistry(pool).start()


WORKER = """
import asyncio, os, sys
sys.path.insert(0, {modules!r})
import process_samples
from gangline.worker.context.task_context import TaskContext
from gangline.worker.execution.executor_registry import ExecutorRegistry

async def main():
    executors = ExecutorRegistry(process_samples.pool)
    await executors.start()
    call = process_samples.pool.find("hang").bind(None, {{"marker": {marker!r}}})
    executors.launch(call, TaskContext(), on_done=print)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_children_die_with_a_worker_that_is_killed(tmp_path, forks: ForkServer):
    marker = tmp_path / "marker"
    worker = forks.start(["-c", WORKER.format(modules=MODULES, marker=str(marker))])
    try:
        await until(marker.exists, "the task runs")
        child, program = map(int, marker.read_text().split())
        try:
            assert not gone(child)
            worker.kill()
            await until(lambda: gone(child), "the child ends")
        finally:
            os.kill(program, signal.SIGKILL)
    finally:
        worker.kill()
        worker.wait(PATIENCE_S)


async def test_without_pidfd_the_end_of_a_child_is_still_noticed(pool, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    async with running(pool) as harness:
        assert await harness.value("add", a=1) == 2
        error = (await harness.run("end", kind="segfault")).error
        assert isinstance(error, TaskCrashed)
        assert error.details == {"signal": "SIGSEGV"}
        assert await harness.value("add", a=1) == 2


@pytest.mark.long
async def test_no_file_is_left_open(pool, new_interpreters):
    def open_files() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    async with running(pool) as harness:  # what is opened once for good
        await harness.value("add", a=1)
    before = open_files()
    async with running(pool) as harness:
        await harness.run("end", kind="exit")
        await harness.value("add", a=1)
    assert open_files() <= before
