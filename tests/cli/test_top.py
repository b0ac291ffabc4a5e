"""`gangline top`: drawn plainly, as JSON, and with keys."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import pytest
from rich.console import Console
from textual.widgets import TabbedContent

from gangline.board.board_core import Board
from gangline.board.feed import BoardFeed, following
from gangline.board.slots import Cells
from gangline.cli.top.interactive import Confirm, Top
from gangline.cli.top.screen import (
    LEGEND,
    cells_text,
    headline,
    owners_of,
    screen,
    system_lines,
    wait_lines,
    worker_names,
)
from gangline.cli.views.gangs import why_lines
from gangline.dispatcher.client.audit import AuditTrail
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.schemas.messages.gangs import GangAhead, GangObstacle, GangWhyReply
from gangline.schemas.records.gangs import GangState, LeaderAlive, LeaderRecord
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ..board.test_board_core import beat, gang, lease, member, register

POOL = Pool("train", slots=4)
SMALL = (90, 16)
"""Of the terminal: drawing it takes most of the time."""


@POOL.task
async def wait() -> None:
    await asyncio.Event().wait()


def drawn(board: Board, words: str = "") -> str:
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as caught:
        console.print(screen(board, words))
    return caught.get()


def test_a_slot_has_a_character_for_what_it_does():
    cells = [
        Cells("gang", 3, "g", 1),
        Cells("lease", 1, "~x"),
        Cells("kept", 2, "g2"),
        Cells("free", 2),
        Cells("lost", 1),
    ]
    assert cells_text(cells).plain == "■▤▤□▨▨··✕"
    assert cells_text(cells, 4).plain == "■▤▤□ +5"


def test_the_screen_shows_workers_their_holders_and_what_waits():
    board = Board()
    register(board, node="gpu-1")
    beat(board, running=1, reserved=2)
    lease(board, slots=2)
    register(board, "w2")
    gang(board)
    board.take()
    text = drawn(board)
    assert "p.w1" in text and "me 2" in text and "lost" in text and "slots 3/4" in text
    assert "gang g1" in text and "2 members" in text
    assert worker_names(board, "gpu") == ["p.w1"] == worker_names(board, "ME w1")
    assert "p.w2" not in drawn(board, "gpu-1")
    assert "no workers" in drawn(Board())


def test_the_screen_and_why_say_the_same_of_a_gang_that_waits(monkeypatch):
    board, now = Board(), 1_750_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    gang(board)
    lease_ = GangObstacle(pool="p", worker="w1", holder="lease ~x", slots=2, owner="etl", ends_in_s=200.0)
    tasks = GangObstacle(pool="p", worker="w1", holder="tasks", slots=1)
    ahead = GangAhead(id="g0", priority=5, waiting_s=61.0, size=2, owner="ann")
    why = GangWhyReply(
        id="g1",
        step="queued",
        place=1,
        lacks=("it lacks 2 slots",),
        target={"p.w1": 4},
        kept={"p.w1": 1},
        obstacles=(lease_, tasks),
        ahead=(ahead,),
    )
    board.answer_why(why, now)
    board.take()
    told = why_lines(why)
    assert told == [
        "gang g1 is queued, number 2 in the queue",
        "  it lacks 2 slots",
        "  behind gang g0 (ann): priority 5, size 2, waits for 1 min 1 s",
        "p.w1: 4 slots wanted, 1 kept for it already",
        "  lease ~x (etl) has 2 slots, ends in 3 min 20 s if not renewed",
        "  tasks have 1 slot",
    ]
    assert [line.plain.removeprefix("  ") for line in wait_lines(board)][1:] == told
    sentences = board.rows["waits"]["gang:g1"]["told"]
    assert [sentence["text"].strip() in line for sentence, line in zip(sentences, told, strict=True)] == [True] * 6


def test_the_gangs_of_a_set_can_be_told_apart_on_their_worker():
    board = Board()
    register(board)
    beat(board)
    for id in ("llama-1795648424-1", "llama-1795648424-2"):
        gang(board, id, GangState.FORMED, gangset="llama")
        member(board, id, 1)
    gang(board, "tJM0xzJEtoYemyoQRJiGg7", GangState.FORMED)
    member(board, "tJM0xzJEtoYemyoQRJiGg7", 1)
    board.take()
    assert owners_of(board, "p.w1") == "gang llama-1795648424-1, gang llama-1795648424-2, gang tJM0xzJEtoYe"


def test_gateways_and_other_services_are_counted_below_the_first_line():
    board = Board()
    assert system_lines(board) == []
    names = {"a": "gateway", "b": "gateway", "c": "dispatcher"}
    board.answer_services(
        {f"service:{id}": {"kind": "service", "id": id, "name": name, "version": "1"} for id, name in names.items()}
    )
    board.take()
    assert [line.plain for line in system_lines(board)] == ["dispatchers 1  gateways 2"]
    assert "gateways 2" in drawn(board)


def test_the_first_line_says_since_when_there_is_a_leader():
    board = Board()
    assert "no leader" in headline(board).plain
    leader = LeaderRecord(term=1795535920, instance="c1", since=time.time() - 60)
    board.see_entry("leader", leader.model_dump_json().encode())
    board.see_entry("leader_alive", LeaderAlive(term=1795535920, instance="c1").model_dump_json().encode())
    board.take()
    shown = headline(board).plain
    assert f"leader since {datetime.fromtimestamp(leader.since).astimezone():%H:%M:%S}" in shown
    assert "1795535920" not in shown
    assert len(shown) <= len("gangline top  leader since 14:03:12  slots 12/32  waiting 3  workers 4, 1 lost") <= 78
    assert len(LEGEND) <= 78  # with its padding, in 80 columns


def test_a_queue_in_which_one_task_waits_is_said_so():
    board = Board()
    board.rows["waits"]["queue:words"] = {"kind": "queue", "id": "words", "owner": "", "count": 1, "unit": "tasks"}
    assert wait_lines(board)[0].plain.startswith("queue words  1 task ")


@pytest.mark.server
@pytest.mark.processes
def test_it_prints_once_for_people_and_for_programs(commands):
    commands.started("worker", "words:pool", "--id", "w1", "--slots", "3")
    rows = commands.json("top", "--once")
    assert [row["worker"] for row in rows["workers"]] == ["w1"]
    assert rows["slots"][0]["total"] == 3 and rows["waits"] == []
    assert "words.w1" in commands.run("top", "--once").stdout


async def press(pilot, *keys, wait_s=0):
    """Press the keys, and let the screen settle `wait_s` later."""
    await pilot.press(*keys)
    await asyncio.sleep(wait_s)
    await pilot.pause()


async def test_keys_filter_inspect_and_drain_after_asking(monkeypatch):
    """With Textual's pilot, over a whole system in memory."""
    running = cluster(POOL, workers=2, coordinator=True)
    async with running as client, following(BoardFeed(client)) as feed:
        app = Top(client, feed)
        async with client.lease("train", slots=2), app.run_test(size=SMALL) as pilot:
            await press(pilot, wait_s=2)
            assert app.table("workers").row_count == 2
            await press(pilot, "slash", *"w2", "enter")
            assert app.table("workers").row_count == 1 and app.chosen == "train.w2"
            await press(pilot, "i", wait_s=1)
            assert app.query_one("#detail").display
            await press(pilot, "d", wait_s=1)
            assert isinstance(app.screen, Confirm)
            await press(pilot, "escape")
            assert running.workers["train.w2"].statistics().state == "serving"
            await press(pilot, "d", wait_s=1)
            await press(pilot, *"done", "enter", wait_s=5)
            assert "train.w2" not in feed.board.slots or feed.board.rows["workers"]["train.w2"]["state"] == "draining"


async def test_a_job_is_cancelled_after_asking_for_the_reason():
    async with cluster(POOL, dispatcher=True) as client, following(BoardFeed(client)) as feed:
        app = Top(client, feed)
        async with app.run_test(size=SMALL) as pilot:
            running, kept = [await client.submit("train.wait") for _ in range(2)]
            app.query_one("#tabs", TabbedContent).active = "jobs"
            await press(pilot, wait_s=2)
            assert app.table("jobs").row_count == 2 and app.chosen in (running.id, kept.id)
            chosen, other = (running, kept) if app.chosen == running.id else (kept, running)
            await press(pilot, "w", wait_s=1)
            assert app.query_one("#detail").display
            await press(pilot, "c", wait_s=1)
            assert isinstance(app.screen, Confirm)
            await press(pilot, "escape")
            assert (await chosen.status()).state == "running"
            await press(pilot, "c", wait_s=1)
            await press(pilot, *"wrong", "enter", wait_s=5)
            assert (await chosen.status()).state == "cancelled" and (await other.status()).state == "running"
            assert app.table("jobs").row_count == 1
            (entry,) = await trail_of(client)
            assert (entry.action, entry.target, entry.reason) == ("cancel", chosen.id, "wrong")


async def trail_of(client):
    router = client.router
    trail = AuditTrail(router.bus, router.names, TaskStreams(router.bus, router.names))
    return [entry.record for entry in await trail.entries() if entry.record.stage == "done"]
