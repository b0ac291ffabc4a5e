"""One measurement of one system: a new server, its worker, a submitter; a burst, then a trickle."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from gangline.bench.loads import percentile
from gangline.bench.process import Child, ChildFailed
from gangline.bench.site import clean_environment

from .board import VARIABLE, Board
from .catalogue import MANY, Run
from .environments import Environment
from .servers import started

ROOT: Final = Path(__file__).resolve().parents[2]
WINDOW: Final = 64
"""Submissions at once."""
_WARM: Final = 300
_LEAST, _MOST = 200, 20_000
_LEAST_SERIAL, _SERIAL = 20, 300
_START_S: Final = 60.0
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.002
_SETTLE_S: Final = 0.2
"""Pause after the last task, for its acknowledgement."""
_END_S: Final = 5.0


class CellFailed(Exception):
    """A system failed; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Durations of a measurement."""

    burst_s: float = 1.0
    """Approximate duration of the burst, based on the rate of the warm-up."""
    trickle_s: float = 2.0
    rate: float = 100.0
    """Tasks per second of the trickle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of one measurement."""

    done_per_s: float
    """From the first submission to the last task."""
    submitted_per_s: float
    start_p50_ms: float
    """From submission to start, at the trickle's rate."""
    start_p99_ms: float
    cpu_us: Mapping[str, float]
    """CPU time per task of the burst, in microseconds, by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """The results of one measurement with results kept and awaited."""

    answered_per_s: float
    """Tasks submitted and their results received, 64 at once."""
    answer_p50_ms: float
    """From submission to result, one task at a time."""
    answer_p99_ms: float
    cpu_us: Mapping[str, float]
    """As of Cell."""


async def measure(run: Run, environment: Environment | None, plan: Plan) -> Cell:
    """Measure one system once; `environment` None: Gangline.

    Raises:
        CellFailed, NotInstalled, ChildFailed: it could not be measured.
    """
    return await _system(run, environment, False, lambda board, near, pids: _measured(run, board, near, plan, pids))


async def measure_results(run: Run, environment: Environment | None, plan: Plan) -> ResultCell:
    """As `measure`, with results kept and awaited."""
    return await _system(run, environment, True, lambda board, near, pids: _answered(board, near, plan, pids))


T = TypeVar("T")


async def _system(
    run: Run,
    environment: Environment | None,
    results: bool,
    do: Callable[[Board, Child, Mapping[str, int]], Awaitable[T]],
) -> T:
    """Start all processes of a system, and stop them after `do`."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-")))
        board = Board(folder / "board", make=True)
        stack.callback(board.close)
        url, server = await stack.enter_async_context(started(run.server))
        environ = _environ(run, url, folder / "board", results)
        python = sys.executable if environment is None else environment.python
        said = stack.enter_context((folder / "submitter.log").open("wb"))
        near = await stack.enter_async_context(
            await Child.run(
                (python, "-m", "bench.peers.near", run.app),
                name=run.app,
                environment=environ,
                folder=str(ROOT),
                errors=said,
            )
        )
        pids = {"server": server, "submitter": near.pid}
        for name, command in _commands(run, environment, url):
            pids[name] = await stack.enter_async_context(_process(command, environ, folder / f"{name}.log"))
        try:
            return await do(board, near, pids)
        except TimeoutError:
            raise CellFailed(f"{run.name} ran {board.count} tasks and no more; {_last_words(folder)}") from None


def _environ(run: Run, url: str, board: Path, results: bool) -> dict[str, str]:
    return {
        **clean_environment(),
        VARIABLE: str(board),
        "GANGLINE_BENCH_URL": url,
        "GANGLINE_BENCH_KIND": run.kind,
        "GANGLINE_BENCH_TUNED": "1" if run.tuned else "0",
        "GANGLINE_BENCH_RESULTS": "1" if results else "0",
        "PYTHONPATH": str(ROOT),
        **dict(run.environ),
    }


def _commands(run: Run, environment: Environment | None, url: str) -> list[tuple[str, tuple[str, ...]]]:
    if environment is not None:
        return [("worker", (environment.script(run.worker[0]), *run.worker[1:]))]
    ours = (sys.executable, "-m", "gangline.cli")
    return [
        ("worker", (*ours, *run.worker, "-s", url)),
        ("dispatcher", (*ours, "dispatcher", "-s", url)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    count: int
    began_at: float
    seconds: float
    """Until the last was submitted (or answered)."""
    last_at: float
    """When the last task ran."""
    cpu_us: Mapping[str, float]


async def _burst(board: Board, near: Child, plan: Plan, pids: Mapping[str, int], window: int) -> _Burst:
    """As many tasks as take about `plan.burst_s`."""
    await _first(board, near)
    board.reset()
    began = await near.ask("burst", count=_WARM, window=WINDOW)
    await _ran(board, _WARM)
    took_s = max(board.last_at - began["began_at"], began["seconds"])
    count = round(min(_MOST, max(_LEAST, plan.burst_s * _WARM / took_s)))
    await asyncio.sleep(_SETTLE_S)
    board.reset()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    burst = await near.ask("burst", count=count, window=window)
    await _ran(board, count)
    last_at = board.last_at
    await asyncio.sleep(_SETTLE_S)
    cpu_us = {name: round((cpu_s(pid) - before[name]) / count * 1e6, 1) for name, pid in pids.items()}
    if board.count != count:
        raise CellFailed(f"{board.count} tasks ran where {count} were submitted")
    board.reset()
    return _Burst(count=count, began_at=burst["began_at"], seconds=burst["seconds"], last_at=last_at, cpu_us=cpu_us)


async def _answered(board: Board, near: Child, plan: Plan, pids: Mapping[str, int]) -> ResultCell:
    burst = await _burst(board, near, plan, pids, WINDOW)
    count = round(min(_SERIAL, max(_LEAST_SERIAL, plan.trickle_s * burst.count / burst.seconds / WINDOW)))
    took: list[float] = (await near.ask("answers", count=count))["seconds"]
    return ResultCell(
        answered_per_s=burst.count / burst.seconds,
        answer_p50_ms=percentile(took, 0.5) * 1000,
        answer_p99_ms=percentile(took, 0.99) * 1000,
        cpu_us=burst.cpu_us,
    )


async def _measured(run: Run, board: Board, near: Child, plan: Plan, pids: Mapping[str, int]) -> Cell:
    burst = await _burst(board, near, plan, pids, MANY if run.kind == "many" else WINDOW)
    trickle = round(plan.rate * plan.trickle_s)
    await near.ask("paced", count=trickle, rate=plan.rate)
    await _ran(board, trickle)
    starts = board.starts_s()
    return Cell(
        done_per_s=burst.count / (burst.last_at - burst.began_at),
        submitted_per_s=burst.count / burst.seconds,
        start_p50_ms=percentile(starts, 0.5) * 1000,
        start_p99_ms=percentile(starts, 0.99) * 1000,
        cpu_us=burst.cpu_us,
    )


async def _first(board: Board, near: Child) -> None:
    """Wait until a task runs: with some systems only the worker creates what submitters need."""
    async with asyncio.timeout(_START_S):
        while True:
            try:
                await near.ask("burst", count=1, window=1)
                break
            except ChildFailed:
                await asyncio.sleep(_SETTLE_S)
        await _ran(board, 1, _START_S)


async def _ran(board: Board, count: int, patience_s: float = _PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while board.count < count:  # noqa: ASYNC110 - other processes write it
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _process(command: tuple[str, ...], environ: Mapping[str, str], log: Path) -> AsyncIterator[int]:
    """A process and its children in a process group; all of them are stopped at the end of the block."""
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=ROOT, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # processes that it left behind


def cpu_s(pid: int) -> float:
    """CPU time of a process and all of its children; 0 without /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for one in (pid, *_children(pid)):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_children(child)]
    return found


def _last_words(folder: Path) -> str:
    """The end of its processes' logs."""
    said = [f"{log.stem}: {line}" for log in folder.glob("*.log") for line in _tail(log)]
    return " | ".join(said) or "nothing was said"


def _tail(log: Path) -> list[str]:
    return [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
