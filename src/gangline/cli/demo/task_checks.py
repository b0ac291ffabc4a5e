"""What the demo claims of durable tasks, as functions of recorded facts; see checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .checks import Record


def started_once(jobs: Iterable[str], journals: Mapping[str, Sequence[Record]], killed: frozenset[str]) -> list[str]:
    """L10: a job was started again only where its start before was cut short by a kill."""
    starts: defaultdict[str, list[str]] = defaultdict(list)
    whole: set[tuple[str, str]] = set()
    for worker, records in journals.items():
        for record in records:
            job = record.get("job")
            if job and record["event"] == "start":
                starts[job].append(worker)
            elif job and record["event"] == "end":
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
