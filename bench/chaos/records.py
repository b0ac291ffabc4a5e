"""What is written down during a run, and how it is read back.

Tasks, clients and the harness each append lines of JSON to a file of their own process. All times are CLOCK_MONOTONIC,
which is one for the machine. A line that a killed process did not finish is no line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "GANGLINE_CHAOS_FOLDER"
"""The variable that says where the files are."""
NEVER: Final = float("inf")


class Notebook:
    """Appends lines, each in one write, so that they are whole whatever happens to the process."""

    def __init__(self, folder: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"{name}-{os.getpid()}.jsonl", flags, 0o600)

    def note(self, event: str, **facts: Any) -> float:
        """The time that was noted."""
        at = time.monotonic()
        line = {"e": event, "at": at, "pid": os.getpid(), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        return at

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution of a task, as it noted it itself."""

    id: str
    """Of the request that it is for."""
    pid: int
    worker: str
    slots: int = 1
    epoch: int = 0
    token: str | None = None
    """Of the lease, the selection or the seat that it ran on; None: a call without one."""
    job: str | None = None
    attempt: int = 1
    fence: int = 0
    key: str | None = None
    gang: str | None = None
    generation: int = 0
    rank: int | None = None
    began: float
    ended: float = NEVER
    done: bool = False
    """It came to its end, rather than having been cancelled or having raised."""
    cancelled: bool = False
    """It was stopped from outside."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of one generation of a gang, from its start hook to its stop hook."""

    gang: str
    generation: int
    rank: int
    pid: int
    fence: int = 0
    began: float
    ended: float = NEVER


@dataclass(slots=True, kw_only=True)
class Request:
    """What a client asked, and what it was told."""

    id: str
    kind: str
    pid: int
    asked: float
    due: float
    """Its deadline."""
    once: bool = False
    """Not idempotent: it may start at most once (of a gang's run: once on each rank)."""
    expected: Any = None
    not_before: float = 0.0
    line: str | None = None
    """The ordered key of a submission."""
    told: float = NEVER
    answers: int = 0
    ok: bool = False
    code: str = ""
    may_have_started: bool = True
    text: str = ""
    value: Any = None
    job: str | None = None
    """Of a submission that was acknowledged."""


@dataclass(slots=True, kw_only=True)
class Holding:
    """A lease, a selection or a gang that a client held, as it noted it itself."""

    name: str
    """The token, or the gang's id."""
    pid: int
    """The client's."""
    asked: float
    told: float
    slots: int | None = None
    """Of a lease; None: of nothing that the ledger shows by this name."""
    ttl_s: float | None = None
    """Its time to live; None: it is not renewed."""
    sync: bool = False
    """Written into the ledger before it was granted."""
    left: float = NEVER
    """When the client had given it back."""
    lost: bool = False
    """The client knew by then that it had lost it."""


@dataclass(slots=True, kw_only=True)
class Shown:
    """A token in the ledger, as a reader of all revisions saw it."""

    token: str
    worker: str
    epoch: int
    seen: float
    due: float
    """When it expires there, by the last word on it."""
    gone: float = NEVER


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, from its start to its end."""

    name: str
    role: str
    pid: int
    began: float
    ended: float = NEVER
    killed: bool = False
    worker: str = ""
    """The worker's id, if it is one."""
    drains: float = NEVER
    """When a worker began to drain, as it noted it itself."""
    overdue: bool = False
    """It was told to end, did not in time, and was killed."""


@dataclass(slots=True, kw_only=True)
class Trouble:
    """A time in which one process was frozen or cut off."""

    pid: int
    how: str
    """`frozen`: it did not run. `cut off`: it ran, and its connection did not work as it should."""
    since: float
    until: float = NEVER


@dataclass(slots=True, kw_only=True)
class History:
    """All that is known of one run."""

    runs: list[Run] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    results: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """How each acknowledged job ended, asked at the very end: its state, and its result or why not."""
    holdings: list[Holding] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)
    """Times in which storage, or the ledger's reader, may have been away: nobody knows what the ledger showed."""
    drains: dict[int, float] = field(default_factory=dict)
    """When each worker process noted that it drains."""
    deposed: list[str] = field(default_factory=list)
    """What the reader of the ledger found of two coordinators at once."""
    ledger: list[str] = field(default_factory=list)
    """What the reader of every revision of the ledger found wrong."""
    leaks: list[str] = field(default_factory=list)
    """What was still held when all had had time to come to rest."""
    unrecovered: list[str] = field(default_factory=list)
    """Kinds of requests that did not succeed again after a fault."""


def save(history: History, path: Path) -> None:
    """What the harness knows, for people who look into a verdict: one line for each process, trouble and result."""
    with path.open("w") as file:
        for what, items in (
            ("life", history.lives),
            ("trouble", history.troubles),
            ("shown", history.shown),
        ):
            for item in items:
                file.write(json.dumps({"e": what, **asdict(item)}) + "\n")
        for since, until in history.blind:
            file.write(json.dumps({"e": "blind", "since": since, "until": until}) + "\n")
        for job, (state, value) in history.results.items():
            file.write(json.dumps({"e": "result", "job": job, "state": state, "value": value}) + "\n")


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of one file."""
    for line in path.read_bytes().split(b"\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def read(folder: Path) -> History:
    """What tasks and clients wrote. What the harness knows is added by it."""
    history = History()
    for path in sorted(folder.glob("task-*.jsonl")):
        _read_tasks(history, lines_of(path))
    for path in sorted(folder.glob("client-*.jsonl")):
        history.requests += requests_of(lines_of(path)).values()
        history.holdings += _holdings_of(lines_of(path))
        for line in lines_of(path):
            if line["e"] == "over":
                history.leaks += [f"client {line['pid']} ended with {held}" for held in _held(line["statistics"])]
    history.runs.sort(key=lambda run: run.began)
    return history


_RUN: Final = ("worker", "slots", "epoch", "token", "job", "attempt", "fence", "key", "gang", "generation", "rank")


def _read_tasks(history: History, lines: Iterator[dict[str, Any]]) -> None:
    runs: dict[int, Run] = {}
    members: dict[tuple[str, int, int], Member] = {}
    for line in lines:
        match line["e"]:
            case "start":
                facts = {name: line[name] for name in _RUN if name in line}
                run = Run(id=line["id"], pid=line["pid"], began=line["at"], **facts)
                runs[line["n"]] = run
                history.runs.append(run)
            case "end":
                runs[line["n"]].ended = line["at"]
                runs[line["n"]].done = line["done"]
                runs[line["n"]].cancelled = line.get("cancelled", False)
            case "member-start":
                place = (line["gang"], line["generation"], line["rank"])
                member = Member(
                    gang=place[0],
                    generation=place[1],
                    rank=place[2],
                    pid=line["pid"],
                    fence=line.get("fence", 0),
                    began=line["at"],
                )
                members[place] = member
                history.members.append(member)
            case "member-stop":
                place = (line["gang"], line["generation"], line["rank"])
                if place in members:
                    members[place].ended = line["at"]
            case "drain":
                history.drains.setdefault(line["pid"], line["at"])
            case _:
                pass


_HELD: Final = ("slots", "ttl_s", "sync")


def _holdings_of(lines: Iterator[dict[str, Any]]) -> list[Holding]:
    found: dict[str, Holding] = {}
    for line in lines:
        if line["e"] == "held":
            facts = {name: line[name] for name in _HELD if name in line}
            found[line["name"]] = Holding(
                name=line["name"], pid=line["pid"], asked=line["asked"], told=line["at"], **facts
            )
        elif line["e"] == "left":
            found[line["name"]].left = line["at"]
            found[line["name"]].lost = line["lost"]
    return list(found.values())


def _held(statistics: Mapping[str, Any]) -> Iterator[str]:
    """What a client that has had all its answers still counts."""
    for name in ("holds", "gangs", "in_flight"):
        if statistics[name]:
            yield f"{name} {statistics[name]}"
    for kind in ("pools", "gangsets"):
        for name, counts in statistics[kind].items():
            for what in ("waiting", "placed"):
                if counts[what]:
                    yield f"{what} {counts[what]} in {name}"


def requests_of(lines: Iterator[dict[str, Any]]) -> dict[str, Request]:
    """Those of one client's file, by id."""
    found: dict[str, Request] = {}
    for line in lines:
        add(found, line)
    return found


_TOLD: Final = ("ok", "code", "may_have_started", "text", "value", "job")


def add(requests: dict[str, Request], line: Mapping[str, Any]) -> Request | None:
    """Take one line of a client; the request that it is about, if it is about one."""
    if line["e"] == "ask":
        given = {name: line[name] for name in ("once", "expected", "not_before", "line") if name in line}
        requests[line["id"]] = made = Request(
            id=line["id"], kind=line["kind"], pid=line["pid"], asked=line["at"], due=line["due"], **given
        )
        return made
    if line["e"] == "told":
        request = requests[line["id"]]
        request.answers += 1
        request.told = line["at"]
        for name in _TOLD:
            if name in line:
                setattr(request, name, line[name])
        return request
    return None


class Follower:
    """Reads on in the files of clients while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._requests: dict[str, Request] = {}

    def news(self) -> Sequence[Request]:
        """The requests that have been answered since it was asked last."""
        found = []
        for path in self._folder.glob("client-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                fields = json.loads(line)
                request = add(self._requests, fields)
                if request is not None and fields["e"] == "told":
                    found.append(request)
                    del self._requests[request.id]
        return found
