"""The scenarios of bench.faults, once each: laws strictly, times only where something else than expected would have
been at work. The figures come from `python -m bench.faults.gangs`."""

from __future__ import annotations

from typing import Literal

import pytest

from bench.faults.cluster import stream_leader_killed
from bench.faults.contention import eight_under_flood, two_on_three
from bench.faults.deposed import two_leaders
from bench.faults.failover import DEATHS, Death, leader_killed
from bench.faults.figures import Row
from bench.faults.forming import time_to_form
from bench.faults.members import member_lost
from bench.faults.seam import Moment
from bench.faults.standing import all_replaced, member_killed

pytestmark = [pytest.mark.server, pytest.mark.processes]


def checked(rows: list[Row]) -> dict[str, Row]:
    """No law was broken, and everything was measured."""
    assert [(row.name, row.broken) for row in rows if row.broken] == []
    assert [row.name for row in rows if not row.samples] == []
    return {row.name: row for row in rows}


def silent(_: str) -> None:
    """Nobody reads the progress."""


@pytest.mark.parametrize(("how", "within_s"), [("killed", 3.0), ("frozen", 8.0)])
async def test_a_lost_member_ends_its_generation(how: Literal["killed", "frozen"], within_s: float) -> None:
    """A killed one is found out sooner than its heartbeat key expires."""
    rows = checked(await member_lost(how, 2, silent))
    assert rows[f"member {how}: teardown event"].worst < within_s


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.name)
async def test_a_leader_may_be_killed_at_each_step(death: Death) -> None:
    rows = checked(await leader_killed(1, silent, (death,)))
    assert rows[f"leader killed {death.name}: next one serves"].worst < 15.0
    assert rows[f"leader killed {death.name}: gang and slots right"].worst < 15.0


async def test_a_deposed_leader_writes_nothing() -> None:
    checked(await two_leaders(1, silent))


async def test_a_leader_whose_grants_were_not_fenced_would_be_caught() -> None:
    rows = await two_leaders(1, silent, (Moment.BATCH,), unfenced=True)
    assert any("L9: both wrote" in text for row in rows for text in row.broken)


async def test_the_leader_of_the_stream_may_be_killed_while_gangs_are_granted() -> None:
    checked(await stream_leader_killed(1, silent))


async def test_two_gangs_of_2_on_3_slots_never_deadlock() -> None:
    checked(await two_on_three(1, silent))


async def test_a_gang_of_8_gets_its_slots_under_a_flood_of_calls() -> None:
    rows = checked(await eight_under_flood(1, silent))
    assert rows["gang of 8 under a flood of calls: formed"].worst < 20.0


async def test_callers_of_other_standing_gangs_see_nothing_of_a_dead_member() -> None:
    checked(await member_killed(1, silent))


async def test_all_standing_gangs_are_replaced_without_a_failed_call() -> None:
    checked(await all_replaced(1, silent))


async def test_gangs_form_on_many_workers_and_among_many_more() -> None:
    checked(await time_to_form(1, silent))
