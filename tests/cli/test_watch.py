"""What `leases --watch` and `gang events` print for each change, and to whom no longer."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.cli.views.gang_follow import print_events
from gangline.cli.views.workers import Board, WorkerRow
from gangline.schemas.messages.gangs import GangEvent
from gangline.schemas.names import Names, public_id
from gangline.schemas.records.workers import Heartbeat, LeaseRecord, Registration

LEASE = LeaseRecord(
    pool="p",
    worker="w",
    epoch=1,
    token="t",
    slots=2,
    fence=1,
    single_use=False,
    owner="me",
    granted_at=1.0,
    expires_at=2.0,
)


def put(lease: LeaseRecord = LEASE) -> KvEntry:
    return KvEntry(key="lease.p.w.t", value=lease.model_dump_json().encode(), revision=1)


def gone(key: str = "lease.p.w.t") -> KvEntry:
    return KvEntry(key=key, value=b"", revision=2, operation=KvOperation.DELETE)


def test_each_change_is_one_line(capsys):
    board = Board(print_lines=True, as_json=False)
    for entry in (put(), put(), gone()):
        board.see(entry)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["granted", "renewed", "gone"]
    assert all(line.endswith(f"p.w  2 slots  {public_id('t')}  me") for line in lines)


def test_json_lines_carry_the_lease_also_when_it_goes(capsys):
    board = Board(print_lines=True, as_json=True)
    board.see(put())
    board.see(gone())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["lease"]["token"]) for line in lines] == [
        ("granted", public_id("t")),
        ("gone", public_id("t")),
    ]


def test_what_was_never_seen_goes_in_silence_and_foreign_values_are_skipped(capsys):
    board = Board(print_lines=True, as_json=False)
    board.see(gone())
    board.see(KvEntry(key="lease.p.w.t", value=b"hello", revision=1))
    assert capsys.readouterr().out == ""
    assert board.leases == {}


def test_a_table_keeps_silent_and_knows_what_is_there(capsys):
    board = Board(print_lines=False, as_json=False)
    board.see(put())
    assert capsys.readouterr().out == ""
    assert list(board.leases.values()) == [LEASE]


def test_nobody_who_reads_is_an_end_and_not_an_error_of_the_watch(monkeypatch):
    """`gangline leases --watch | head -1`"""
    ends = []
    board = Board(print_lines=True, as_json=False, on_end=lambda: ends.append("end"))

    def closed(_line):
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", closed)
    for entry in (put(), put(), gone()):
        board.see(entry)
    assert ends == ["end"] and isinstance(board.broken, BrokenPipeError)


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
