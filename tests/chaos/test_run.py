"""Half a minute of `make chaos`, and how long a run waits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.chaos.client import KINDS
from bench.chaos.run import _Play, chaos
from bench.chaos.system import ROLES
from gangline.testing.kit.judge import judge
from gangline.testing.kit.records import Life, SentRequest, Trouble, read

EACH_S = 50.0
"""A slow machine: between two kinds of requests that succeed again."""
IN_TIME = "every request is answered in time"


@pytest.mark.long  # test_judge shows that it would find what is broken, tests/faults plays single faults
@pytest.mark.server
@pytest.mark.processes
@pytest.mark.timeout(900)
async def test_the_laws_hold_through_half_a_minute_of_faults() -> None:
    lines: list[str] = []
    outcome = await chaos(1, 0.5, say=lines.append)
    found = [f"{law}: {text}" for law, texts in outcome.verdicts.items() for text in texts]
    assert not found, "\n".join([*lines, *found, *outcome.notes])
    assert outcome.played
    assert {request.kind for request in outcome.history.requests if request.ok} >= {"once", "lease", "job", "gang"}


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_slow_system_has_recovered_once_all_kinds_of_requests_succeed(tmp_path: Path, lost: int) -> None:
    loop, places = asyncio.get_running_loop(), [(name, kind) for name in ROLES["client"] for kind in KINDS]

    def news() -> list[SentRequest]:
        count = min(int(loop.time() / EACH_S), len(places) - lost)
        return [
            SentRequest(id=f"{name}-1", kind=kind, pid=1, asked=1.0, due=9.0, told=2.0 + number, ok=True, answers=1)
            for number, (name, kind) in enumerate(places[:count])
        ]

    play = _Play(SimpleNamespace(folder=tmp_path), 1, print)  # type: ignore[arg-type]
    play.follower = SimpleNamespace(news=news)  # type: ignore[assignment]
    name, kind = places[-1]
    took_s = None if lost else 1.0 + len(places) - 1
    assert await play.recovered(1.0) == (took_s, f"{kind} of {name}")


def test_an_answer_may_be_as_late_as_its_client_was_kept_from_running(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"e": "ask", "at": 0.0, "pid": 5, "id": "c-1", "kind": "call", "due": 5.0},
        {"e": "stalled", "at": 14.0, "pid": 5, "since": 4.0, "until": 14.0},
        {"e": "told", "at": 14.5, "pid": 5, "id": "c-1", "ok": False, "code": "deadline_exceeded"},
    ]
    (tmp_path / "client-5.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = read(tmp_path)
    history.lives = [Life(name="c", role="client", pid=5, began=0.0)]
    assert judge(history)[IN_TIME] == []
    history.troubles.append(Trouble(pid=5, how="frozen", since=3.0, until=13.0))  # the same time, and counts once
    history.requests[0].told = 20.0
    assert len(judge(history)[IN_TIME]) == 1
