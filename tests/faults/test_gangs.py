"""The scenarios of bench.faults with gangs: their laws, and never their times.

The quick suite runs each kind once, as small as it can be; the whole one as large as the benchmark does.
"""

from __future__ import annotations

from typing import Literal

import pytest

from bench.faults.cluster import stream_leader_killed
from bench.faults.contention import eight_under_flood, two_on_three
from bench.faults.deposed import two_leaders
from bench.faults.failover import DEATHS, Death, leader_killed
from bench.faults.forming import time_to_form
from bench.faults.members import member_lost
from bench.faults.seam import Moment
from bench.faults.standing import all_replaced, member_killed
from bench.faults.trial import Trial
from bench.faults.twins import woken_twin

from ..scale import repetitions
from .judge import checked

pytestmark = [pytest.mark.server, pytest.mark.processes]

QUICK_DEATHS = ("after the batch, before the broadcast", "when half of the members are stopped")
"""One in a grant and one in a teardown, each when some know of it and others do not."""


@pytest.mark.parametrize(("how", "found_by"), [("killed", "no responders"), ("frozen", "")])
async def test_a_lost_member_ends_its_generation(trial: Trial, how: Literal["killed", "frozen"], found_by: str) -> None:
    """A killed one is found out by a ping, not by its heartbeat key, which expires much later."""
    told, _, _ = checked(await member_lost(trial, how))
    assert f"found out by: {found_by}" in told.note


@pytest.mark.parametrize(
    "death",
    [pytest.param(death, marks=() if death.name in QUICK_DEATHS else pytest.mark.long) for death in DEATHS],
    ids=lambda death: death.name,
)
async def test_a_leader_may_be_killed_at_each_step(trial: Trial, death: Death) -> None:
    checked(await leader_killed(trial, (death,)))


@pytest.mark.parametrize("moment", [Moment.BATCH, pytest.param(Moment.CLOSE, marks=pytest.mark.long)])
async def test_a_deposed_leader_writes_nothing(trial: Trial, moment: Moment) -> None:
    checked(await two_leaders(trial, (moment,)))


async def test_a_leader_whose_grants_were_not_fenced_would_be_caught(trial: Trial) -> None:
    rows = await two_leaders(trial, (Moment.BATCH,), unfenced=True)
    assert any("L9: both wrote" in text for row in rows for text in row.broken)


@pytest.mark.long  # tests/coordinator/server/test_server.py kills it too
async def test_the_leader_of_the_stream_may_be_killed_while_gangs_are_granted(trial: Trial) -> None:
    checked(await stream_leader_killed(trial, gangs=repetitions(20, whole=40)))


async def test_two_gangs_of_2_on_3_slots_never_deadlock(patient_trial: Trial) -> None:
    checked(await two_on_three(patient_trial, rounds=repetitions(10, whole=40)))


@pytest.mark.long
async def test_a_gang_of_8_gets_its_slots_under_a_flood_of_calls(patient_trial: Trial) -> None:
    checked(await eight_under_flood(patient_trial))


@pytest.mark.long
async def test_callers_of_other_standing_gangs_see_nothing_of_a_dead_member(patient_trial: Trial) -> None:
    checked(await member_killed(patient_trial, watched_s=repetitions(1, whole=3)))


@pytest.mark.long
async def test_all_standing_gangs_are_replaced_without_a_failed_call(patient_trial: Trial) -> None:
    checked(await all_replaced(patient_trial))


async def test_a_worker_that_wakes_beside_its_successor_is_in_nobodys_way(trial: Trial) -> None:
    checked(await woken_twin(trial))


@pytest.mark.long
async def test_gangs_form_on_many_workers_and_among_many_more(patient_trial: Trial) -> None:
    checked(
        await time_to_form(
            patient_trial, more=repetitions(100, whole=400), workers=repetitions(5, whole=16), settle_s=0.0
        )
    )
