"""Checks of workers' journals (`gangline worker --journal`): what each worker says of its own slots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

Record = Mapping[str, Any]
"""One line of a journal."""
Journals = Mapping[str, Sequence[Record]]
"""By worker."""
_GIVEN_BACK: Final = frozenset({"use", "release", "expire", "drop"})
"""Events that end a lease."""


def interrupted(records: Sequence[Record]) -> set[str]:
    """Tasks that a worker had started and not finished when it was killed."""
    return {_task(record) for record in records if record["event"] == "start"} - {
        _task(record) for record in records if record["event"] == "end"
    }


def _task(record: Record) -> str:
    """Sender and id together identify a task."""
    return f"{record.get('sender', '')}/{record['id']}"


def slots_kept(journals: Journals, killed: Collection[str] = (), slots: int | None = None) -> list[str]:
    """L1 and L2, as far as the journals show.

    Args:
        killed: workers that were killed.
        slots: the expected total; None: it may change.
    """
    found: list[str] = []
    for worker, records in journals.items():
        found += [f"{worker} {text}" for text in _over_capacity(records, slots)]
        found += [f"{worker} {text}" for text in _not_adding_up(records)]
        found += [f"{worker}: {text}" for text in _unbalanced(records, killed=worker in killed)]
    return found


def _over_capacity(records: Sequence[Record], slots: int | None) -> list[str]:
    """L1: running + reserved never exceed the total."""
    found = [] if records else ["has an empty journal"]
    for number, record in enumerate(records, 1):
        running, reserved, total = record["running"], record["reserved"], record["total"]
        if slots not in (None, total):
            found.append(f"line {number}: {total} slots, not {slots}")
        if running < 0 or reserved < 0 or running + reserved > total:
            found.append(f"line {number} ({record['event']}): {running}+{reserved} of {total} slots")
    return found


def _not_adding_up(records: Sequence[Record]) -> list[str]:
    """The number of running tasks must agree with the events, wherever a task starts or ends. A single-use token counts
    as running from its `use` on, which comes just before its task's `start`."""
    running = 0
    used: set[str] = set()
    for number, record in enumerate(records, 1):
        event, token = record["event"], str(record.get("token"))
        if event == "use":
            used.add(token)
        if event == "start" and token in used:
            used.discard(token)
        else:
            running += {"use": 1, "start": 1, "end": -1}.get(event, 0)
        if event in ("start", "end") and running != record["running"]:
            return [f"line {number}: {record['running']} running, but its events make {running}"]
    return []


def _unbalanced(records: Sequence[Record], *, killed: bool) -> list[str]:
    """L2: one end per start, one release per grant. For a killed worker: at most one."""
    found: list[str] = []
    tasks = {
        event: Counter(_task(record) for record in records if record["event"] == event) for event in ("start", "end")
    }
    granted = Counter(str(record["token"]) for record in records if record["event"] == "grant")
    back = Counter(str(record["token"]) for record in records if record["event"] in _GIVEN_BACK)
    for what, ins, outs in (("task", tasks["start"], tasks["end"]), ("lease", granted, back)):
        found += [f"{what} {name} began {times} times" for name, times in ins.items() if times > 1]
        found += [f"{what} {name} ended without beginning" for name in outs if name not in ins]
        found += [f"{what} {name} ended {times} times" for name, times in outs.items() if times > 1]
        if not killed:
            found += [f"{what} {name} never ended" for name in ins if name not in outs]
    return found


def drained_well(worker: str, records: Sequence[Record], exit_code: int | None) -> list[str]:
    """L11: after `drain` nothing is granted; the worker exits with nothing running or reserved, and exit code 0."""
    events = [record["event"] for record in records]
    if "drain" not in events:
        return [f"{worker} never began to drain"]
    after = records[events.index("drain") + 1 :]
    found = [f"{worker} granted {record['token']} while draining" for record in after if record["event"] == "grant"]
    last = records[-1]
    if last["event"] != "leave":
        found.append(f"{worker}'s last record is {last['event']!r}, not 'leave'")
    if (last["running"], last["reserved"]) != (0, 0):
        found.append(f"{worker} left with {last['running']} running and {last['reserved']} reserved slots")
    return found + ([f"{worker} ended with exit code {exit_code}"] if exit_code != 0 else [])


def dead_stay_dead(journals: Journals) -> list[str]:
    """L8: after the teardown of a generation nothing starts on its tokens, and it is never formed again."""
    found: list[str] = []
    for worker, records in journals.items():
        seats: defaultdict[str, set[str]] = defaultdict(set)
        dead: set[str] = set()
        over: dict[str, int] = {}
        for number, record in enumerate(records, 1):
            gang, event = str(record.get("gang", "")), record["event"]
            if event == "grant" and gang:
                seats[gang].add(str(record["token"]))
            elif event == "teardown":
                dead |= seats.pop(gang, set())
                over[gang] = record["generation"]
            elif event == "form" and record["generation"] <= over.get(gang, 0):
                found.append(f"{worker} line {number}: generation {record['generation']} of {gang} after its teardown")
            elif event == "start" and record.get("token") in dead:
                found.append(f"{worker} line {number}: a task started on a seat of a generation that was torn down")
    return found
