"""The demo's own claims, as functions of recorded facts. Each returns its violations; if there are none, the claim
holds. gangline.testing.kit checks the laws that any system of real processes must keep.

Nothing here talks to a server. Tests plant each kind of violation and check that it is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.messages.gangs import GangEvent
from .pools import ALL, Counted, Squeezed, Tally, added


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One finished task of the demo."""

    path: str
    """The file."""
    way: str
    """How it was sent: call, dispatch, lease, gateway, submit."""
    worker: str
    """The worker that ran it, found by its process id."""
    seconds: float = 0.0
    answer: Squeezed

    @classmethod
    def of(cls, answer: Mapping[str, Any], *, path: str, way: str, worker: str, seconds: float = 0.0) -> Done:
        return cls(path=path, way=way, worker=worker, seconds=seconds, answer=Squeezed(**answer))


def results_are_right(expected: Mapping[str, Squeezed], done: Iterable[Done], ways: Mapping[str, int]) -> list[str]:
    """Every file has exactly one answer for each way, equal to what was computed here.

    Args:
        ways: number of files sent in each way.
    """
    found: list[str] = []
    seen: Counter[tuple[str, str]] = Counter()
    by_way: Counter[str] = Counter()
    for one in done:
        seen[one.way, one.path] += 1
        by_way[one.way] += 1
        wanted, given = expected.get(one.path), one.answer
        if wanted is None:
            found.append(f"{one.path} was never requested")
        elif (given.size, given.packed, given.sha256) != (wanted.size, wanted.packed, wanted.sha256):
            found.append(f"{one.path} by {one.way} is wrong: {given.packed} bytes, sha256 {given.sha256[:12]}")
    found += [f"{path} came back {times} times by {way}" for (way, path), times in seen.items() if times > 1]
    for way, count in ways.items():
        if by_way[way] != count:
            found.append(f"{count} files were sent by {way}, {by_way[way]} came back")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPart:
    """One part of the files, counted by all ranks of a gang."""

    number: int
    ranks: Sequence[Counted]
    """The answer of each rank."""


def counts_are_right(expected: Tally, parts: Sequence[CountedPart], *, wanted: int, size: int) -> list[str]:
    """Every part was counted once, all its ranks agree, and the total equals what was counted here."""
    found: list[str] = []
    times = Counter(part.number for part in parts)
    found += [f"part {n} was counted {times[n]} times" for n in range(wanted) if times[n] != 1]
    for part in parts:
        ranks = [one.rank for one in part.ranks]
        if ranks != list(range(size)):
            found.append(f"part {part.number} was counted by the ranks {ranks}")
            continue
        tallies = [one.tally for one in part.ranks]
        differ = [one.rank for one in part.ranks if one.tally != tallies[0]]
        found += [f"part {part.number}: rank {rank} gathered other counts than rank 0" for rank in differ]
        if sum(one.own for one in part.ranks) != tallies[0][ALL]:
            found.append(f"part {part.number}: the shares do not make up the sum")
        generations = sorted({one.generation for one in part.ranks})
        if len(generations) != 1:
            found.append(f"part {part.number} was counted by the generations {generations} together")
    total = added(part.ranks[0].tally for part in parts if part.ranks)
    wrong = [word for word in expected.keys() | total.keys() if expected.get(word, 0) != total.get(word, 0)]
    return found + [f"{word!r}: {total.get(word, 0)} instead of {expected.get(word, 0)}" for word in sorted(wrong)]


def noticed(torn: GangEvent | None, *, generation: int, ranks: frozenset[int], after_s: float) -> list[str]:
    """A member's process was killed: its generation was torn down afterwards, for that reason."""
    if torn is None:
        return ["no teardown event arrived"]
    found = []
    if torn.generation != generation:
        found.append(f"generation {torn.generation} was torn down, not {generation}")
    if torn.rank not in ranks:
        found.append(f"rank {torn.rank} was reported lost, but {sorted(ranks)} were killed")
    return found + ([f"the event came {-after_s:.1f} s before the kill"] if after_s < 0 else [])


def restarted(parts: Sequence[CountedPart], *, generations: int) -> list[str]:
    """The parts were counted by these generations, in this order."""
    order = [part.ranks[0].generation for part in parts if part.ranks]
    if order != sorted(order) or set(order) != set(range(1, generations + 1)):
        return [f"the parts were counted by the generations {order}"]
    return []


def buried(wanted: Mapping[str, str], letters: Mapping[str, str]) -> list[str]:
    """Exactly these are dead letters, each for its expected reason."""
    found = [f"job {job} is no dead letter" for job in wanted if job not in letters]
    for job, reason in letters.items():
        if job not in wanted:
            found.append(f"job {job} is a dead letter: {reason}")
        elif reason != wanted[job]:
            found.append(f"job {job} is dead because {reason}, not {wanted[job]}")
    return found
