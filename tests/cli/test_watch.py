"""What `--watch` and `gang events` print for each change, and to whom no longer."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from gangline.board.board_core import Board
from gangline.bus.memory.server import MemoryServer
from gangline.cli.console.watching import WATCH_S, ChangeLog, ListView, Page, watch_list
from gangline.cli.views.gang_follow import print_events
from gangline.cli.views.jobs import queues_table
from gangline.cli.views.workers import LeaseLog, WorkerRow, lease_json, workers_table
from gangline.schemas.errors.base import Disconnected, NoWorkers, UnknownMethod
from gangline.schemas.messages.gangs import GangEvent
from gangline.schemas.messages.jobs import QueueStats
from gangline.schemas.names import Names, public_id
from gangline.schemas.records.workers import Heartbeat, LeaseRecord, Registration

LEASE = LeaseRecord(
    pool="p", worker="w", epoch=1, token="t", slots=2, fence=1, single_use=False, owner="me", granted_at=1.0,
    expires_at=2.0,
)  # fmt: skip


class WatchedBoard:
    """A board whose changes a log prints."""

    def __init__(self, log: LeaseLog) -> None:
        self.board = Board()
        self.log = log

    def put(self, expires_at: float = 2.0) -> None:
        self._see(LEASE.model_copy(update={"expires_at": expires_at}).model_dump_json().encode())

    def gone(self) -> None:
        self._see(None)

    def _see(self, value: bytes | None) -> None:
        self.board.see_entry("lease.p.w.t", value)
        delta = self.board.take()
        if delta is not None:
            self.log.see(delta)


def test_each_change_is_one_line(capsys):
    watched = WatchedBoard(LeaseLog(print_lines=True, as_json=False))
    watched.put()
    watched.put(3.0)
    watched.gone()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["granted", "renewed", "gone"]
    assert all(line.endswith(f"p.w  2 slots  {public_id('t')}  me") for line in lines)


def test_json_lines_carry_the_lease_also_when_it_goes(capsys):
    watched = WatchedBoard(LeaseLog(print_lines=True, as_json=True))
    watched.put()
    watched.gone()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["lease"]["token"]) for line in lines] == [
        ("granted", public_id("t")),
        ("gone", public_id("t")),
    ]
    assert {*lines[0]["lease"]} == {*lease_json(LEASE)}, "the same fields as without --watch"


def test_nobody_who_reads_is_an_end_and_not_an_error_of_the_watch(monkeypatch):
    """`gangline leases --watch | head -1`"""
    ends = []
    log = LeaseLog(print_lines=True, as_json=False, on_end=lambda: ends.append("end"))

    def closed(_line, **_kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", closed)
    watched = WatchedBoard(log)
    watched.put()
    watched.put(3.0)
    watched.gone()
    assert ends == ["end"] and isinstance(log.broken, BrokenPipeError)


async def test_events_that_nobody_reads_end_the_command(monkeypatch):
    """`gangline gang events | head -1`"""
    hub, names = MemoryServer(), Names("watched")
    following = asyncio.ensure_future(print_events(hub.connect("follows"), names, None, True))
    await asyncio.sleep(1)

    def closed(_line, **_kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", closed)
    event = GangEvent(kind="formed", gang="g1", generation=1, size=2)
    for _ in range(2):
        hub.connect("tells").publish(names.gang_event("g1"), event.model_dump_json().encode())
    with pytest.raises(BrokenPipeError):
        await following


BEAT = Heartbeat(epoch=1, instance="i", running=0, reserved=0, total=1)


@pytest.mark.parametrize(
    ("beat", "state", "shown"),
    [
        (BEAT, "serving", "serving"),
        (BEAT.model_copy(update={"draining": True}), "serving", "draining"),
        (BEAT, "draining", "draining"),
        (None, "serving", "lost"),
    ],
)
def test_a_worker_is_lost_without_a_heartbeat(beat, state, shown):
    row = WorkerRow(
        registration=Registration(pool="p", worker="w", epoch=1, instance="i", slots=1, state=state), heartbeat=beat
    )
    assert row.state == shown
    assert row.to_json()["state"] == shown
    assert (row.to_json()["load"] is None) is (beat is None)


def worker(name: str = "w1", running: int = 0) -> WorkerRow:
    made = Registration(pool="p", worker=name, epoch=1, instance="i", slots=1)
    return WorkerRow(registration=made, heartbeat=BEAT.model_copy(update={"running": running}))


def queue(**fields) -> QueueStats:
    counts = {"depth": 0, "seen": 0, "running": 0, "waiting": 0, "blocked": 0, "credit": 0, "leased": 0}
    return QueueStats(endpoint="p", dispatcher="d", **{**counts, **fields})


WORKERS = ListView(
    item="worker", table=workers_table, empty="no workers", key=WorkerRow.identity, to_json=WorkerRow.to_json
)
QUEUES = ListView(
    item="queue",
    table=queues_table,
    empty="no queues",
    key=lambda each: each.endpoint,
    to_json=lambda each: each.model_dump(mode="json"),
    restless=frozenset({"oldest_s"}),
)


def test_rows_that_are_new_changed_or_gone_are_lines_with_the_columns_of_the_table():
    log = ChangeLog(WORKERS, as_json=False)
    first = log.lines([worker("w1"), worker("w2")])
    assert [line.split()[1:5] for line in first] == [
        ["added", "p.w1", "STATE", "serving"],
        ["added", "p.w2", "STATE", "serving"],
    ]
    assert log.lines([worker("w1"), worker("w2")]) == []
    changed, gone = log.lines([worker("w2", running=1)])
    assert changed.split()[1:3] == ["changed", "p.w2"] and "SLOTS ■ 1+0/1" in changed and "[" not in changed
    assert gone.split()[1:3] == ["gone", "p.w1"]


def test_rows_as_json_lines_carry_the_object_that_json_lists():
    log = ChangeLog(WORKERS, as_json=True)
    lines = [json.loads(line) for rows in ([worker()], [worker(running=1)], []) for line in log.lines(rows)]
    assert lines == [
        {"event": "added", "worker": worker().to_json()},
        {"event": "changed", "worker": worker(running=1).to_json()},
        {"event": "gone", "worker": worker(running=1).to_json()},
    ]


def test_a_queue_whose_oldest_task_only_grew_older_has_not_changed():
    log = ChangeLog(QUEUES, as_json=False)
    assert len(log.lines([queue(depth=1, oldest_s=1.0)])) == 1
    assert log.lines([queue(depth=1, oldest_s=3.0)]) == []
    assert len(log.lines([queue(depth=2, oldest_s=5.0)])) == 1


class Reads:
    """Answers the reads of a watch one by one, and then ends the watch with an error."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.times: list[float] = []

    async def __call__(self):
        self.times.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if self.answers else UnknownMethod("the last read")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_watch_reads_every_two_seconds_and_survives_a_moment_without_answers(capsys):
    bus, away = MemoryServer().connect("watches"), NoWorkers("nobody answers")
    reads = Reads(Page([worker()]), away, away, Page([worker(running=1)], ("a note",)))
    with pytest.raises(UnknownMethod, match="the last read"):
        await watch_list(bus, reads, WORKERS, as_json=False)
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["added", "changed"]
    assert err.splitlines() == ["not up to date: nobody answers", "a note"]
    assert [at - reads.times[0] for at in reads.times] == pytest.approx([WATCH_S * count for count in range(5)])


NEWEST = ListView(
    item="worker", table=WORKERS.table, empty="none", key=WORKERS.key, to_json=WORKERS.to_json, newest=True
)


def test_of_a_list_of_the_newest_nothing_is_gone_only_because_it_is_no_longer_listed():
    log = ChangeLog(NEWEST, as_json=False)
    assert len(log.lines([worker("w1"), worker("w2")])) == 2
    (line,) = log.lines([worker("w2"), worker("w3")])
    assert "added" in line and "w3" in line


async def test_a_low_terminal_shows_the_newest(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"COLUMNS": "100", "LINES": "8", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    reads = Reads(Page([worker(f"w{number:02}") for number in range(30)]))
    with pytest.raises(UnknownMethod):
        await watch_list(MemoryServer().connect("watches"), reads, NEWEST, as_json=False)
    out = capsys.readouterr().out
    assert [number for number in range(30) if f"p.w{number:02}" in out] == [26, 27, 28, 29]


async def test_a_watch_whose_first_read_fails_ends_with_that_error():
    with pytest.raises(NoWorkers):
        await watch_list(MemoryServer().connect("watches"), Reads(NoWorkers("none")), WORKERS, as_json=True)


async def test_a_watch_ends_when_its_connection_is_closed_for_good(capsys):
    bus = MemoryServer().connect("watches")
    following = asyncio.ensure_future(watch_list(bus, Reads(Page([worker()])), WORKERS, as_json=True))
    await asyncio.sleep(WATCH_S / 2)
    await bus.close()
    with pytest.raises(Disconnected, match="closed"):
        await following
    assert json.loads(capsys.readouterr().out)["event"] == "added"


async def test_a_watch_on_a_terminal_redraws_the_table_with_its_notes(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    bus = MemoryServer().connect("watches")
    reads = Reads(Page([]), Page([worker("w1")]), Page([worker("w1"), worker("w2")], ("a note",)))
    with pytest.raises(UnknownMethod):
        await watch_list(bus, reads, WORKERS, as_json=False)
    out = capsys.readouterr().out
    places = [out.index(text) for text in ("no workers (Ctrl-C stops)", "p.w1", "p.w2", "a note")]
    assert places == sorted(places)
