"""Which rank of a gang is the slowest, from the times of its ranks. Pure; board.rank_readings asks for them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from ..schemas.messages.operations import RankTimes, StatsReply
from .rows import Row


def rank_report(times: Iterable[tuple[str, RankTimes]]) -> Row:
    """`ranks`: a row for each rank, with its worker. `slowest` and `slowest_of_run`: the rank that worked longest
    without waiting for others, in the generation and in the last `gang.run`; None if fewer than two ranks have run
    tasks, or none was slower than another. `told`: the same in sentences.
    """
    found = sorted(times, key=lambda item: item[1].rank)
    ranks: list[Row] = [
        {
            "rank": each.rank,
            "worker": worker,
            "busy_s": each.busy_s,
            "waiting_s": each.waiting_s,
            "worked_s": each.worked_s,
            "ended": each.ended,
            "run": each.run,
            "run_busy_s": each.run_busy_s,
            "run_waiting_s": each.run_waiting_s,
            "run_worked_s": each.run_worked_s,
        }
        for worker, each in found
    ]
    last = max((each.run for _, each in found), default=0)
    whole = {each.rank: each.worked_s for _, each in found}
    of_run = {each.rank: each.run_worked_s for _, each in found if last and each.run == last}
    workers = {each.rank: worker for worker, each in found}
    slowest, slowest_of_run = _slowest(whole), _slowest(of_run)
    told = []
    if slowest is not None:
        told.append(f"slowest in this generation: {_sentence(slowest, whole, workers)}")
    if slowest_of_run is not None and (slowest_of_run != slowest or of_run != whole):
        told.append(f"slowest in run {last}: {_sentence(slowest_of_run, of_run, workers)}")
    return {"ranks": ranks, "slowest": slowest, "slowest_of_run": slowest_of_run, "run": last, "told": told}


def _slowest(worked: Mapping[int, float]) -> int | None:
    if len(worked) < 2 or len(set(worked.values())) == 1:
        return None
    return max(worked, key=lambda rank: (worked[rank], -rank))


def _sentence(rank: int, worked: Mapping[int, float], workers: Mapping[int, str]) -> str:
    """`rank 5 on gpu.w3 worked 41.2 s; the median of the 7 others is 30.1 s`"""
    others = [seconds for each, seconds in worked.items() if each != rank]
    median = statistics.median(others)
    compared = "the other" if len(others) == 1 else f"the median of the {len(others)} others is"
    return f"rank {rank} on {workers[rank]} worked {worked[rank]:.3g} s; {compared} {median:.3g} s"


def times_in(details: Mapping[str, object]) -> list[tuple[str, RankTimes]]:
    """From the details of an event, or of a record of the history; what cannot be read is left out."""
    given = details.get("times")
    found: list[tuple[str, RankTimes]] = []
    for each in given if isinstance(given, list) else ():
        try:
            found.append((str(each["worker"]), RankTimes.model_validate(each)))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def times_of(gang: str, generation: int, worker: str, stats: StatsReply) -> list[tuple[str, RankTimes]]:
    """Of one generation, from a worker's statistics."""
    return [
        (worker, times)
        for share in stats.gangs
        if share.gang == gang and share.generation == generation
        for times in share.times
    ]
