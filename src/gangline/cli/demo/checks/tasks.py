"""The demo's claims about durable tasks, as functions of recorded facts; see checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .calls import Record


def started_once(
    jobs: Iterable[str], journals: Mapping[str, Sequence[Record]], killed: frozenset[str], answered: Mapping[str, str]
) -> list[str]:
    """L10: a job was started again only if its previous start, or the answer to it, was interrupted by a kill.

    An answer that became the result was not interrupted. For another answer of a killed worker, nobody can say whether
    it was stored anywhere before the worker died.

    Args:
        answered: by job, the worker whose answer became the result.
    """
    starts: defaultdict[str, list[str]] = defaultdict(list)
    for worker, records in journals.items():
        for record in records:
            if record.get("job") and record["event"] == "start":
                starts[record["job"]].append(worker)
    found: list[str] = []
    for job in jobs:
        workers = starts.get(job, [])
        if not workers:
            found.append(f"job {job} was never started")
        uncut = [worker for worker in workers if worker not in killed or answered.get(job) == worker]
        if len(uncut) > 1:
            found.append(f"job {job} was started by {', '.join(workers)}, although nothing cut it short")
    return found


def buried(wanted: Mapping[str, str], letters: Mapping[str, str]) -> list[str]:
    """Exactly these are dead letters, each for its expected reason."""
    found = [f"job {job} is no dead letter" for job in wanted if job not in letters]
    found += [f"job {job} is a dead letter: {reason}" for job, reason in letters.items() if job not in wanted]
    found += [
        f"job {job} is dead because {letters[job]}, not {reason}"
        for job, reason in wanted.items()
        if letters.get(job, reason) != reason
    ]
    return found
