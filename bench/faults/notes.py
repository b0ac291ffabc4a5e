"""The records that workers wrote about their tasks (bench.faults.work), and checks on them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    at: float
    event: str
    job: str
    attempt: int
    key: str | None
    pid: int


def read_notes(folder: Path) -> list[Note]:
    """All records so far, ordered by time. An incomplete line of a killed process is ignored."""
    found: list[Note] = []
    for path in folder.glob("notes-*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                found.append(Note(**json.loads(line)))
            except ValueError:
                continue
    return sorted(found, key=lambda note: note.at)


def unexplained_starts(notes: Sequence[Note], killed: Iterable[int]) -> list[str]:
    """Jobs that were started again although every earlier attempt ended, or continued, in a process that was not
    killed."""
    lost = set(killed)
    ended = {(note.job, note.pid, note.attempt) for note in notes if note.event == "end"}
    starts: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        if note.event == "start":
            starts[note.job].append(note)
    wrong = []
    for job, each in starts.items():
        for before in each[:-1]:
            cut_off = before.pid in lost and (job, before.pid, before.attempt) not in ended
            if not cut_off:
                wrong.append(f"{job} was started {len(each)} times, by {[note.pid for note in each]}")
                break
    return wrong


def interrupted(notes: Sequence[Note], pid: int) -> set[str]:
    """Jobs that were started by that process and did not end there."""
    begun = {note.job for note in notes if note.pid == pid and note.event == "start"}
    return begun - {note.job for note in notes if note.pid == pid and note.event == "end"}


def most_at_once(notes: Sequence[Note], dead: Iterable[int] = ()) -> dict[str, int]:
    """For each key, the maximum number of its tasks that ran at once. Tasks of a killed process ended with it, and
    are left out."""
    lost = set(dead)
    now: Counter[str] = Counter()
    most: dict[str, int] = {}
    for note in notes:
        if note.key is None or note.pid in lost:
            continue
        now[note.key] += 1 if note.event == "start" else -1
        most[note.key] = max(most.get(note.key, 0), now[note.key])
    return most
