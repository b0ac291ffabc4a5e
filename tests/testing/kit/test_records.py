"""What processes write down, and how it is read back."""

from __future__ import annotations

import os
from pathlib import Path

from gangline.testing.kit.records import NEVER, Notebook, read


def test_what_was_noted_is_read_back(tmp_path: Path) -> None:
    task = Notebook(tmp_path, "task")
    began = task.note("start", n=1, id="c1", worker="w1", slots=2, epoch=5, job=None)
    ended = task.note("end", n=1, done=True)
    task.note("start", n=2, id="c2", worker="w1", slots=1, epoch=5, job="j", attempt=3, fence=9)
    task.note("member-start", gang="G", generation=2, rank=1)
    client = Notebook(tmp_path, "client")
    client.note("ask", id="c1", kind="once", due=7.0, once=True, expected="c1")
    client.note("told", id="c1", ok=False, code="saturated", may_have_started=False, text="full")
    client.note("ask", id="c2", kind="call", due=7.0)
    history = read(tmp_path)
    first, second = history.runs
    assert (first.began, first.ended, first.done, first.slots, first.pid) == (began, ended, True, 2, os.getpid())
    assert (second.ended, second.done, second.job, second.attempt, second.fence) == (NEVER, False, "j", 3, 9)
    assert [(member.gang, member.generation, member.ended) for member in history.members] == [("G", 2, NEVER)]
    told, waiting = history.requests
    assert (told.answers, told.code, told.may_have_started, told.once) == (1, "saturated", False, True)
    assert (waiting.answers, waiting.told) == (0, NEVER)


def test_what_a_client_holds_at_its_end_is_a_leak(tmp_path: Path) -> None:
    book = Notebook(tmp_path, "client")
    pools = {"chaos": {"waiting": 0, "placed": 2}}
    book.note("over", statistics={"holds": 1, "gangs": 0, "in_flight": 0, "pools": pools, "gangsets": {}})
    whose = f"client {os.getpid()} ended with"
    assert read(tmp_path).leaks == [f"{whose} holds 1", f"{whose} placed 2 in chaos"]


def test_a_line_that_was_not_finished_is_no_line(tmp_path: Path) -> None:
    book = Notebook(tmp_path, "client")
    book.note("ask", id="c1", kind="call", due=7.0)
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"e": "told", "id": "c1", "at')
    assert [request.answers for request in read(tmp_path).requests] == [0]


def test_what_a_client_holds_is_read_back(tmp_path: Path) -> None:
    book = Notebook(tmp_path, "client")
    told = book.note("held", name="T", asked=1.0, slots=2, ttl_s=5.0, sync=True)
    book.note("held", name="G", asked=2.0, ttl_s=5.0)
    left = book.note("left", name="T", lost=True)
    first, second = read(tmp_path).holdings
    assert (first.name, first.asked, first.told, first.left, first.sync, first.lost) == (
        "T", 1.0, told, left, True, True,
    )  # fmt: skip
    assert (second.name, second.slots, second.left, second.lost) == ("G", None, NEVER, False)


def test_what_a_worker_notes_of_its_drain_is_read_back(tmp_path: Path) -> None:
    book = Notebook(tmp_path, "task")
    book.note("start", n=1, id="c1", worker="w1", token="T")
    at = book.note("drain")
    book.note("end", n=1, done=False, cancelled=True)
    history = read(tmp_path)
    assert history.drains == {os.getpid(): at}
    assert [(run.token, run.cancelled, run.done) for run in history.runs] == [("T", True, False)]
