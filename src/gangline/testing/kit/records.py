"""The records of a run: how they are written and read.

Tasks, clients and the harness append lines of JSON, each process to its own file. All times are CLOCK_MONOTONIC, which
all processes of the machine share. An incomplete last line of a killed process is ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

NEVER: Final = float("inf")


class Notebook:
    """Appends lines, each in one write, so that they are complete whatever happens to the process."""

    def __init__(self, folder: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"{name}-{os.getpid()}.jsonl", flags, 0o600)

    def note(self, event: str, **facts: Any) -> float:
        """The recorded time."""
        at = time.monotonic()
        line = {"e": event, "at": at, "pid": os.getpid(), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        return at

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution of a task, as the task recorded it."""

    id: str
    """Id of its request."""
    pid: int
    worker: str
    slots: int = 1
    epoch: int = 0
    token: str | None = None
    """Token of the lease, selection or seat that it ran on; None: a call without one."""
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
    """It ran to its end, and was neither cancelled nor raised."""
    cancelled: bool = False
    """It was cancelled."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of one generation of a gang, from its start function to its stop function."""

    gang: str
    generation: int
    rank: int
    pid: int
    fence: int = 0
    began: float
    ended: float = NEVER


@dataclass(slots=True, kw_only=True)
class SentRequest:
    """A client's request and its answer."""

    id: str
    kind: str
    pid: int
    asked: float
    due: float
    """Its deadline."""
    once: bool = False
    """Not idempotent: it may start at most once (for a run on a gang: once on each rank)."""
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
    """Job id of an acknowledged submission."""


@dataclass(slots=True, kw_only=True)
class HeldGrant:
    """A lease, selection or gang held by a client, as the client recorded it."""

    name: str
    """The token, or the gang's id."""
    pid: int
    """The client's."""
    asked: float
    told: float
    slots: int | None = None
    """Worker of a lease; None: the ledger does not show it under this name."""
    ttl_s: float | None = None
    """Its time to live; None: it is not renewed."""
    sync: bool = False
    """It was written into the ledger before it was granted."""
    left: float = NEVER
    """When the client had released it."""
    lost: bool = False
    """When the client knew that it had lost it."""


@dataclass(slots=True, kw_only=True)
class ShownToken:
    """A token in the ledger, as a reader of all revisions saw it."""

    token: str
    worker: str
    epoch: int
    seen: float
    due: float
    """When it expires there, by its latest revision."""
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
    """When a worker began to drain, as it recorded it."""
    overdue: bool = False
    """It was told to stop, did not in time, and was killed."""


@dataclass(slots=True, kw_only=True)
class Trouble:
    """An interval in which one process was frozen or cut off."""

    pid: int
    how: str
    """`frozen`: it did not run. `cut off`: it ran, and its connection was impaired."""
    since: float
    until: float = NEVER


@dataclass(slots=True, kw_only=True)
class SystemHistory:
    """Everything recorded about one run."""

    slots: int = 4
    """Of each worker."""
    per_key: int = 2
    """How many tasks of a key may run at once."""

    runs: list[Run] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    requests: list[SentRequest] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    results: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """The outcome of each acknowledged job, read at the end: its state, and its result or error."""
    holdings: list[HeldGrant] = field(default_factory=list)
    shown: list[ShownToken] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)
    """Intervals in which storage, or the ledger's reader, may have been unavailable, so the state of the ledger is
    unknown."""
    drains: dict[int, float] = field(default_factory=dict)
    """When each worker process recorded the start of its drain."""
    deposed: list[str] = field(default_factory=list)
    """Cases of two coordinators at once, found by the ledger's reader."""
    ledger: list[str] = field(default_factory=list)
    """Other breaches found by the reader of every revision of the ledger."""
    leaks: list[str] = field(default_factory=list)
    """What was still held after everything had had time to come to rest."""
    unrecovered: list[str] = field(default_factory=list)
    """Kinds of requests that did not succeed again after a fault."""


def save(history: SystemHistory, path: Path) -> None:
    """What the harness recorded, for people who investigate a verdict: one line per process, fault and result."""
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
    """The complete lines of one file."""
    for line in path.read_bytes().split(b"\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def read(folder: Path) -> SystemHistory:
    """The records of tasks and clients; the harness adds its own."""
    history = SystemHistory()
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


def _read_tasks(history: SystemHistory, lines: Iterator[dict[str, Any]]) -> None:
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
                gang, generation, rank = place
                who = {"gang": gang, "generation": generation, "rank": rank, "pid": line["pid"]}
                members[place] = Member(**who, fence=line.get("fence", 0), began=line["at"])
                history.members.append(members[place])
            case "member-stop":
                place = (line["gang"], line["generation"], line["rank"])
                if place in members:
                    members[place].ended = line["at"]
            case "drain":
                history.drains.setdefault(line["pid"], line["at"])
            case _:
                pass


_HELD: Final = ("slots", "ttl_s", "sync")


def _holdings_of(lines: Iterator[dict[str, Any]]) -> list[HeldGrant]:
    found: dict[str, HeldGrant] = {}
    for line in lines:
        if line["e"] == "held":
            facts = {name: line[name] for name in _HELD if name in line}
            found[line["name"]] = HeldGrant(
                name=line["name"], pid=line["pid"], asked=line["asked"], told=line["at"], **facts
            )
        elif line["e"] == "left":
            found[line["name"]].left = line["at"]
            found[line["name"]].lost = line["lost"]
    return list(found.values())


def _held(statistics: Mapping[str, Any]) -> Iterator[str]:
    """What a client still counts after it got all its answers."""
    for name in ("holds", "gangs", "in_flight"):
        if statistics[name]:
            yield f"{name} {statistics[name]}"
    for kind in ("pools", "gangsets"):
        for name, counts in statistics[kind].items():
            for what in ("waiting", "placed"):
                if counts[what]:
                    yield f"{what} {counts[what]} in {name}"


def requests_of(lines: Iterator[dict[str, Any]]) -> dict[str, SentRequest]:
    """The requests in one client's file, by id."""
    found: dict[str, SentRequest] = {}
    for line in lines:
        add(found, line)
    return found


_TOLD: Final = ("ok", "code", "may_have_started", "text", "value", "job")


def add(requests: dict[str, SentRequest], line: Mapping[str, Any]) -> SentRequest | None:
    """Process one line of a client; returns the request it is about, if any."""
    if line["e"] == "ask":
        given = {name: line[name] for name in ("once", "expected", "not_before", "line") if name in line}
        requests[line["id"]] = made = SentRequest(
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
    """Follows the files of clients while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._requests: dict[str, SentRequest] = {}

    def news(self) -> Sequence[SentRequest]:
        """The requests answered since the last call."""
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
