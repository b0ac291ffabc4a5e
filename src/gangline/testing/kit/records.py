"""The records of a run: how they are written and read.

Tasks, clients and the harness append lines of JSON, each process to its own file. All times are CLOCK_MONOTONIC, which
all processes of the machine share. An incomplete last line of a killed process is ignored.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from ...worker.context.task_context import current_task

T = TypeVar("T")
NEVER: Final = float("inf")
STALL_S: Final = 0.5
"""A process whose timers are later than this is recorded as stalled."""


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

    async def note_stalls(self) -> NoReturn:
        """Record for how long this process did not run, whoever kept it from doing so."""
        clock, due = time.monotonic, 0.0
        while True:
            due = clock() + STALL_S
            await asyncio.sleep(STALL_S)
            if clock() - due > STALL_S:
                self.note("stalled", since=due, until=clock())

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
    """Public id of the lease, selection or seat that it ran on; None: a call without one."""
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
    """The public id of the lease, or the gang's id."""
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
    """A lease in the ledger, by its public id, as a reader of all revisions saw it."""

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
    """`frozen`: it did not run, or so slowly that its timers were late. `cut off`: it ran, and its connection was
    impaired."""
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
        _read_client(history, lines_of(path))
    history.runs.sort(key=lambda run: run.began)
    return history


def _made(kind: type[T], line: Mapping[str, Any], **more: Any) -> T:
    """An item with the fields that the line has."""
    return kind(**{name: line[name] for name in _NAMES[kind] & line.keys()}, **more)


def _read_tasks(history: SystemHistory, lines: Iterator[dict[str, Any]]) -> None:
    runs: dict[int, Run] = {}
    members: dict[tuple[str, int, int], Member] = {}
    for line in lines:
        place = (line.get("gang", ""), line.get("generation", 0), line.get("rank", 0))
        match line["e"]:
            case "start":
                runs[line["n"]] = run = _made(Run, line, began=line["at"])
                history.runs.append(run)
            case "end":
                run = runs[line["n"]]
                run.ended, run.done, run.cancelled = line["at"], line["done"], line.get("cancelled", False)
            case "member-start":
                members[place] = member = _made(Member, line, began=line["at"])
                history.members.append(member)
            case "member-stop" if place in members:
                members[place].ended = line["at"]
            case "drain":
                history.drains.setdefault(line["pid"], line["at"])
            case _:
                pass


def _read_client(history: SystemHistory, lines: Iterator[dict[str, Any]]) -> None:
    requests: dict[str, SentRequest] = {}
    held: dict[str, HeldGrant] = {}
    for line in lines:
        add(requests, line)
        match line["e"]:
            case "held":
                held[line["name"]] = _made(HeldGrant, line, told=line["at"])
            case "left":
                held[line["name"]].left, held[line["name"]].lost = line["at"], line["lost"]
            case "stalled":
                history.troubles.append(_made(Trouble, line, how="frozen"))
            case "over":
                history.leaks += [f"client {line['pid']} ended with {what}" for what in _held(line["statistics"])]
            case _:
                pass
    history.requests += requests.values()
    history.holdings += held.values()


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


def add(requests: dict[str, SentRequest], line: Mapping[str, Any]) -> SentRequest | None:
    """Process one line of a client; returns the request it is about, if any."""
    if line["e"] == "ask":
        requests[line["id"]] = made = _made(SentRequest, line, asked=line["at"])
        return made
    if line["e"] != "told":
        return None
    request = requests[line["id"]]
    request.answers += 1
    request.told = line["at"]
    for name in _NAMES[SentRequest] & line.keys():
        setattr(request, name, line[name])
    return request


_NAMES: Final[dict[type[Any], set[str]]] = {
    kind: {each.name for each in fields(kind)} for kind in (Run, Member, SentRequest, HeldGrant, Trouble)
}


FOLDER: Final = "GANGLINE_RECORDS"
"""Environment variable with the folder of the files; without it, nothing is recorded."""
_numbers = itertools.count(1)


@cache
def notebook() -> Notebook | None:
    """That of this process."""
    return Notebook(Path(os.environ[FOLDER]), "task") if FOLDER in os.environ else None


@contextmanager
def recorded(id: str, *, slots: int = 1) -> Iterator[None]:
    """Record an execution of the task that runs now; `id` is that of its request."""
    book = notebook()
    if book is None:
        yield
        return
    task, number = current_task(), next(_numbers)
    facts = {
        "worker": task.worker.partition(".")[2], "epoch": task.epoch, "slots": slots, "token": task.token,
        "job": task.job, "attempt": task.attempt, "fence": task.fence, "key": task.key,
    }  # fmt: skip
    if task.in_gang:
        facts |= {"gang": task.gang.id, "generation": task.gang.generation, "rank": task.gang.rank}
    book.note("start", n=number, id=id, **facts)
    done = cancelled = False
    try:
        yield
        done = True
    except (asyncio.CancelledError, GeneratorExit):
        cancelled = True
        raise
    finally:
        book.note("end", n=number, done=done, **({"cancelled": True} if cancelled else {}))


class _Drains(logging.Handler):
    """Records when the process begins to drain, which only the process itself knows."""

    def emit(self, record: logging.LogRecord) -> None:
        book = notebook()
        if book is not None and getattr(record, "action", "") == "worker.drain":
            book.note("drain")


if FOLDER in os.environ:  # in a worker whose tasks are recorded
    logging.getLogger("gangline").addHandler(_Drains())
