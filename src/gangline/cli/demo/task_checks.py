"""What the demo claims of durable tasks, as functions of recorded facts; see checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from .checks import Record

ANSWER_S: Final = 0.1
"""What a worker ended so shortly before it was killed, it may not have answered yet."""


def started_once(jobs: Iterable[str], journals: Mapping[str, Sequence[Record]], killed: frozenset[str]) -> list[str]:
    """L10: a job was started again only where its start before, or the answer to that, was cut short by a kill."""
    starts: defaultdict[str, list[str]] = defaultdict(list)
    whole: set[tuple[str, str]] = set()
    for worker, records in journals.items():
        died_at = max((record["t"] for record in records), default=0.0) if worker in killed else float("inf")
        for record in records:
            job = record.get("job")
            if job and record["event"] == "start":
                starts[job].append(worker)
            elif job and record["event"] == "end" and record["t"] < died_at - ANSWER_S:
                whole.add((job, worker))
    found: list[str] = []
    for job in jobs:
        workers = starts.get(job, [])
        if not workers:
            found.append(f"job {job} was never started")
        uncut = [worker for worker in workers if worker not in killed or (job, worker) in whole]
        if len(uncut) > 1:
            found.append(f"job {job} was started by {', '.join(workers)}, although nothing cut it short")
    return found


def buried(wanted: Mapping[str, str], letters: Mapping[str, str]) -> list[str]:
    """Exactly these are dead letters, each for that reason."""
    found = [f"job {job} is no dead letter" for job in wanted if job not in letters]
    found += [f"job {job} is a dead letter: {reason}" for job, reason in letters.items() if job not in wanted]
    found += [
        f"job {job} is dead because {letters[job]}, not {reason}"
        for job, reason in wanted.items()
        if letters.get(job, reason) != reason
    ]
    return found
