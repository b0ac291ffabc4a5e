"""The demo's claims, as functions of recorded facts. Each returns its violations; if there are none, the claim
holds.

Nothing here talks to a server. Tests plant each kind of violation and check that it is found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..fixtures.corpus import Expected

Record = Mapping[str, Any]
"""One line of a worker's journal."""

MAX_SHOWN: Final = 5
"""How many violations of one kind are shown in full."""

_GIVEN_BACK: Final = frozenset({"use", "release", "expire", "drop"})
"""Events that end a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One finished task of the demo."""

    path: str
    """The file."""
    way: str
    """How it was sent: call, dispatch, lease, gateway."""
    worker: str
    """The worker that ran it, found by its process id."""
    seconds: float
    size: int
    packed: int
    sha256: str
    together: int

    @classmethod
    def of(cls, answer: Mapping[str, Any], *, path: str, way: str, worker: str, seconds: float = 0.0) -> Done:
        """Reported by the task: see fixtures.pool.Squeezed."""
        said = {name: answer[name] for name in ("size", "packed", "sha256", "together")}
        return cls(path=path, way=way, worker=worker, seconds=seconds, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """What is still held when all work is done; everything must be zero."""

    limiters: Mapping[str, tuple[int, int]]
    """Running and reserved slots of each living worker, from the worker itself."""
    heartbeats: Mapping[str, tuple[int, int]]
    """The same, from each worker's heartbeat."""
    ledger: Sequence[str]
    """Tokens that remain in the ledger."""
    gauges: Mapping[str, float]
    """This process's own metrics as an exporter reads them: reserved slots, queue size."""


def results_are_right(expected: Mapping[str, Expected], done: Iterable[Done], ways: Mapping[str, int]) -> list[str]:
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
        wanted = expected.get(one.path)
        if wanted is None:
            found.append(f"{one.path} was never asked for")
        elif (one.size, one.packed, one.sha256) != (wanted.size, wanted.packed, wanted.sha256):
            found.append(f"{one.path} by {one.way} is wrong: {one.packed} bytes, sha256 {one.sha256[:12]}")
    found += [f"{path} came back {times} times by {way}" for (way, path), times in seen.items() if times > 1]
    for way, count in ways.items():
        if by_way[way] != count:
            found.append(f"{count} files went out by {way}, {by_way[way]} came back")
    return found


def never_over_capacity(journals: Mapping[str, Sequence[Record]], slots: int | None) -> list[str]:
    """L1: running + reserved never exceed the total, in any worker's own records.

    Args:
        slots: the expected total; None: it may change.
    """
    found: list[str] = []
    for worker, records in journals.items():
        if not records:
            found.append(f"{worker} has an empty journal")
        for number, record in enumerate(records, 1):
            running, reserved, total = record["running"], record["reserved"], record["total"]
            if slots is not None and total != slots:
                found.append(f"{worker} line {number}: {total} slots, not {slots}")
            if running < 0 or reserved < 0 or running + reserved > total:
                found.append(f"{worker} line {number} ({record['event']}): {running}+{reserved} of {total} slots")
    return found


def journals_add_up(journals: Mapping[str, Sequence[Record]]) -> list[str]:
    """The journal's own number of running tasks agrees with its events, wherever a task starts or ends.

    A single-use token counts as running from its `use` on, which comes just before its task's `start`.
    """
    found: list[str] = []
    for worker, records in journals.items():
        running = 0
        used: set[str] = set()
        for number, record in enumerate(records, 1):
            match record["event"]:
                case "use":
                    running += 1
                    used.add(str(record["token"]))
                case "start" if record.get("token") in used:
                    used.discard(str(record["token"]))
                case "start":
                    running += 1
                case "end":
                    running -= 1
            if record["event"] in ("start", "end") and running != record["running"]:
                found.append(f"{worker} line {number}: {record['running']} running, but its events make {running}")
                break
    return found


def bodies_agree(done: Iterable[Done], slots: int) -> list[str]:
    """The tasks themselves never counted more than `slots` running tasks of their kind in one process."""
    return [
        f"{one.path}: {one.together} tasks at once on {one.worker}" for one in done if not 1 <= one.together <= slots
    ]


def balanced(journals: Mapping[str, Sequence[Record]], killed: frozenset[str]) -> list[str]:
    """L2: one end per start, one release per grant. For a killed worker: at most one."""
    found: list[str] = []
    for worker, records in journals.items():
        started = Counter(_task(record) for record in records if record["event"] == "start")
        ended = Counter(_task(record) for record in records if record["event"] == "end")
        granted = Counter(str(record["token"]) for record in records if record["event"] == "grant")
        back = Counter(str(record["token"]) for record in records if record["event"] in _GIVEN_BACK)
        for what, ins, outs in (("task", started, ended), ("lease", granted, back)):
            twice = [name for name, times in ins.items() if times > 1]
            found += [f"{worker}: {what} {name} began {ins[name]} times" for name in twice]
            found += [f"{worker}: {what} {name} ended without beginning" for name in outs if name not in ins]
            found += [f"{worker}: {what} {name} ended {times} times" for name, times in outs.items() if times > 1]
            if worker not in killed:
                found += [f"{worker}: {what} {name} never ended" for name in ins if name not in outs]
    return found


def slots_kept(journals: Mapping[str, Sequence[Record]], killed: frozenset[str], slots: int | None = None) -> list[str]:
    """L1 and L2, as far as the journals show."""
    return [*never_over_capacity(journals, slots), *journals_add_up(journals), *balanced(journals, killed)]


def drained_well(worker: str, records: Sequence[Record], exit_code: int | None) -> list[str]:
    """L11: after `drain` nothing is granted; the worker exits with nothing running or reserved, and exit code 0."""
    found: list[str] = []
    events = [record["event"] for record in records]
    if "drain" not in events:
        return [f"{worker} never began to drain"]
    after = records[events.index("drain") + 1 :]
    found += [f"{worker} granted {record['token']} while draining" for record in after if record["event"] == "grant"]
    last = records[-1]
    if last["event"] != "leave":
        found.append(f"{worker}'s last record is {last['event']!r}, not 'leave'")
    if (last["running"], last["reserved"]) != (0, 0):
        found.append(f"{worker} left with {last['running']} running and {last['reserved']} reserved slots")
    if exit_code != 0:
        found.append(f"{worker} ended with exit code {exit_code}")
    return found


def all_zero(rest: AtRest) -> list[str]:
    """L12: limiters, gauges and ledger agree at rest, on zero."""
    found: list[str] = []
    if not rest.limiters:
        found.append("no worker is left to ask")
    for what, loads in (("limiter", rest.limiters), ("heartbeat", rest.heartbeats)):
        found += [f"{worker}'s {what} shows {load[0]}+{load[1]}" for worker, load in loads.items() if load != (0, 0)]
    missing = rest.limiters.keys() ^ rest.heartbeats.keys()
    found += [f"{worker} is known by its heartbeat or by its limiter only" for worker in sorted(missing)]
    found += [f"the ledger still holds {token}" for token in rest.ledger]
    found += [f"the gauge {name} shows {number:g}" for name, number in rest.gauges.items() if number != 0]
    if not rest.gauges:
        found.append("no gauge could be read")
    return found


def interrupted(records: Sequence[Record]) -> int:
    """How many tasks a killed worker had started and not finished."""
    started = {_task(record) for record in records if record["event"] == "start"}
    return len(started - {_task(record) for record in records if record["event"] == "end"})


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not sorted_values:
        return 0.0
    rank = max(1, -(-len(sorted_values) * round(share * 1000) // 1000))
    return sorted_values[min(rank, len(sorted_values)) - 1]


def per_worker(done: Iterable[Done]) -> dict[str, dict[str, int]]:
    """How many tasks each worker did, by way."""
    counts: defaultdict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in done:
        counts[one.worker][one.way] += 1
    return {worker: dict(ways) for worker, ways in counts.items()}


def _task(record: Record) -> str:
    """Sender and id together identify a task."""
    return f"{record.get('sender', '')}/{record['id']}"
