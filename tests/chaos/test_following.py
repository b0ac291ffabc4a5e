"""The records of clients, followed while they are written."""

from __future__ import annotations

from pathlib import Path

from bench.chaos.following import Follower
from gangline.testing.kit.records import Notebook


def test_answers_are_followed_while_they_are_written(tmp_path: Path) -> None:
    book, follower = Notebook(tmp_path, "client"), Follower(tmp_path)
    book.note("ask", id="c1", kind="call", due=7.0)
    assert follower.news() == []
    book.note("told", id="c1", ok=True, value="c1")
    assert [(request.id, request.ok) for request in follower.news()] == [("c1", True)]
    assert follower.news() == []
