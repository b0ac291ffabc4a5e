"""A short run of `make fuzz`, and that it finds what it looks for."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from bench.fuzz.doors import Doors
from bench.fuzz.run import _Fire, _of_log, fuzz


@pytest.mark.long
@pytest.mark.server
@pytest.mark.processes
@pytest.mark.timeout(900)
async def test_hostile_messages_on_all_doors_do_no_harm() -> None:
    verdict = await fuzz(1, seconds=600.0, most=4000)
    assert not verdict.findings, verdict.text()
    assert verdict.sent.total() == 4000 and len(verdict.sent) == 11 and min(verdict.sent.values()) > 25


async def test_a_slow_system_is_given_time_while_it_answers_and_what_it_forgets_is_found() -> None:
    async def flush() -> None: ...

    fire = _Fire(SimpleNamespace(flush=flush), Doors(Random(1), "fuzz", 1), 1)  # type: ignore[arg-type]
    fire._pending = {number: (0.0, f"subject.{number % 3} body") for number in range(10)}
    for number in range(9):
        asyncio.get_running_loop().call_later(25.0 * number, fire.on_answer, f"_INBOX.fuzz.{number}", "", b"")
    fire._expire()
    await fire.rest()
    assert (fire.answered, fire.examples, dict(fire.unanswered)) == (9, ["subject.0 body"], {"subject.0": 1})


def test_exceptions_and_floods_are_found_in_a_log() -> None:
    line = '{"action": "x.failed", "message": "m"}\n'
    assert _of_log("w", line * 100) == []
    assert _of_log("w", line * 5001) == ["w logged 5001 lines"]
    bug = '{"action": "x.bug", "exception": "Traceback\\nValueError: 5"}\n'
    [found] = _of_log("w", line + bug * 3)
    assert found.startswith("w: 3 x x.bug: ValueError: 5")
    assert _of_log("w", "Traceback (most recent call last):\n") == ["w printed Traceback (most recent call last):"]
