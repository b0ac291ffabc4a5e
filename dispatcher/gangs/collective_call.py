"""One task on every rank: all results, or the first failure with all other ranks cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ...schemas.errors.base import DeadlineExceeded, GangFailed, GanglineError, InvalidArguments, InvalidRequest
from ...schemas.text import count_of
from .members import Formation

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one rank."""

RankCall = Callable[[int, Arguments], Awaitable[Any]]
"""Runs the task on one rank."""


def same_for_all(size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
    return [(args, kwargs)] * size


def by_rank(size: int, arguments: Sequence[Any]) -> list[Arguments]:
    """One item for each rank: a mapping has keyword arguments, a list or tuple positional ones.

    Raises:
        InvalidArguments: the number of items is not the number of ranks, or an item is neither.
    """
    if isinstance(arguments, (str, bytes)) or not isinstance(arguments, Sequence) or len(arguments) != size:
        raise InvalidArguments(f"give a list of {count_of(size, 'item')}: the arguments for each rank")
    found: list[Arguments] = []
    for rank, item in enumerate(arguments):
        if isinstance(item, Mapping):
            found.append(((), dict(item)))
        elif isinstance(item, (list, tuple)):
            found.append((tuple(item), {}))
        else:
            raise InvalidArguments(
                f"the arguments of rank {rank} are a {type(item).__name__}: give a tuple of positional arguments or a "
                "dict of named ones"
            )
    return found


async def run_on_all(formation: Formation, call: RankCall, arguments: list[Arguments], *, partial: bool) -> list[Any]:
    """Results by rank. Cancelling cancels all.

    Args:
        partial: wait for every rank, and return errors among the results.

    Raises:
        GangFailed: the first failure, with its rank; the others were cancelled.
        GangRestarted, GangEnded: the whole generation has ended.
        InvalidRequest, DeadlineExceeded: as a rank raised it.
    """
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(_as_task(call(rank, item)), name=f"gangline-rank-{rank}")
        for rank, item in enumerate(arguments)
    ]
    try:
        when = asyncio.ALL_COMPLETED if partial else asyncio.FIRST_EXCEPTION
        await asyncio.wait(tasks, return_when=when)
    finally:
        # Also if this is cancelled: each task cancels its work on the worker and ends in this turn of the loop.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = {rank: error for rank, task in enumerate(tasks) if (error := _error(task)) is not None}
    results = {rank: task.result() for rank, task in enumerate(tasks) if not task.cancelled() and rank not in errors}
    strange = next((error for error in errors.values() if not isinstance(error, GanglineError)), None)
    if strange is not None:
        raise strange
    if partial:
        return [results[rank] if rank in results else errors[rank] for rank in range(len(tasks))]
    if errors:
        raise failure(formation, errors, results)
    return [results[rank] for rank in range(len(tasks))]


def failure(formation: Formation, errors: Mapping[int, BaseException], results: dict[int, Any]) -> GanglineError:
    """The error of a run: the end of the whole generation if that is known, else the first failure of a rank."""
    started = _may_have_started(formation.size, errors)
    whole = next((error for error in errors.values() if isinstance(error, GangFailed)), None)
    if whole is not None:
        whole.results = results
        whole.may_have_started = started
        return whole
    rank, error = min(errors.items())
    assert isinstance(error, GanglineError)
    error.may_have_started = started
    if isinstance(error, (InvalidRequest, DeadlineExceeded)) or formation.down is not None:
        return error
    failed = GangFailed(
        f"rank {rank} ({formation.members[rank].worker}) of gang {formation.gang} failed: {error}",
        details={"generation": formation.generation, "rank": rank, "reason": str(error), "code": error.code},
        may_have_started=started,
    )
    failed.results = results
    failed.__cause__ = error
    return failed


def _may_have_started(size: int, errors: Mapping[int, BaseException]) -> bool:
    """Whether any rank of a failed run may have started. `errors` has no ranks that succeeded or were cancelled."""
    return len(errors) < size or any(
        not isinstance(error, GanglineError) or error.may_have_started for error in errors.values()
    )


async def _as_task(work: Awaitable[Any]) -> Any:
    return await work


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
