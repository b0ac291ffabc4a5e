"""The loop that asks the ledger about suspects. What its answers mean is in `test_failure_detector`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gangline.bus.port.bus import StorageUnavailable
from gangline.runtime.failure_detector import CONFIRM_S, LOOK_S, PROMPT_S, SuspectProber
from gangline.runtime.tasks import TaskSet
from gangline.schemas.errors.base import GanglineError
from gangline.telemetry.logs import logger_for


class Ledger:
    """Who lives; what it was asked, and what came of that."""

    def __init__(self) -> None:
        self.living: set[str] = set()
        self.takes_s: Callable[[str], float] = lambda _who: 0.0
        self.away = False
        self.asked: list[tuple[float, str]] = []
        self.lost: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self.chores = TaskSet("suspects", logger_for("test"))
        self.suspects: SuspectProber[str] = SuspectProber(
            self.chores,
            ask=self.ask,
            on_lost=lambda who, why: self.lost.append((who, why)),
            on_failed=self.fails,
            unconfirmed_after_s=30.0,
        )

    async def ask(self, who: str) -> bool:
        self.asked.append((asyncio.get_running_loop().time(), who))
        answer = who in self.living
        await asyncio.sleep(self.takes_s(who))
        if self.away:
            raise StorageUnavailable("away", may_have_started=False)
        return answer

    def fails(self, who: str, error: GanglineError) -> None:
        self.failed.append(who)


@pytest.fixture
async def ledger() -> Ledger:
    return Ledger()


async def test_who_has_no_heartbeat_is_lost_and_not_asked_about_any_more(ledger: Ledger) -> None:
    assert ledger.suspects.suspect("w1", "not heard of") and not ledger.suspects.suspect("w1", "again")
    await asyncio.sleep(CONFIRM_S + 3 * LOOK_S)
    assert ledger.lost == [("w1", "not heard of, and its heartbeat has expired")]
    asked = len(ledger.asked)
    await asyncio.sleep(10.0)
    assert len(ledger.asked) == asked and len(ledger.chores) == 0


async def test_who_has_one_is_asked_about_until_it_is_heard_of(ledger: Ledger) -> None:
    ledger.living.add("w1")
    ledger.suspects.suspect("w1", "not heard of")
    await asyncio.sleep(10.0)
    assert len(ledger.asked) > 50 and not ledger.lost
    ledger.suspects.clear("w1")
    await asyncio.sleep(1.0)
    assert len(ledger.chores) == 0


async def test_a_slow_answer_holds_up_the_next_question_for_a_second_and_does_not_count(ledger: Ledger) -> None:
    ledger.takes_s = lambda who: 2 * PROMPT_S if who == "slow" else 0.0
    ledger.suspects.suspect("slow", "not heard of")
    ledger.suspects.suspect("w1", "not heard of")
    await asyncio.sleep(PROMPT_S / 2)
    assert [who for _, who in ledger.asked] == ["slow"]
    await asyncio.sleep(5 * PROMPT_S)
    assert [who for who, _ in ledger.lost] == ["w1"]
    ledger.chores.cancel()
    await ledger.chores.rest()


async def test_a_ledger_that_cannot_be_asked_loses_nobody_and_is_asked_again(ledger: Ledger) -> None:
    ledger.away = True
    ledger.suspects.suspect("w1", "not heard of")
    await asyncio.sleep(5.0)
    assert len(ledger.failed) > 10 and not ledger.lost
    ledger.away = False
    await asyncio.sleep(1.0)
    assert ledger.lost


async def test_a_look_is_one_question_before_all_others_and_loses_nobody(ledger: Ledger) -> None:
    ledger.suspects.look_up("w2")
    ledger.suspects.look_up("w1")
    ledger.suspects.look_up("w2")
    ledger.suspects.suspect("w3", "not heard of")
    await asyncio.sleep(10.0)
    assert [who for _, who in ledger.asked[:3]] == ["w2", "w1", "w3"]
    assert [who for _, who in ledger.asked].count("w2") == 1 and [who for who, _ in ledger.lost] == ["w3"]
