"""The scenarios of bench.faults with durable tasks: their laws, and never their times.

The quick suite runs each kind once, as small as it can be; the whole one as large as the benchmark does.
"""

from __future__ import annotations

import pytest

from bench.faults.killed_under_tasks import (
    dispatcher_killed,
    limit_per_key,
    server_killed,
    stream_leader_killed,
    worker_killed,
)
from bench.faults.long_tasks import no_hoarding
from bench.faults.trial import Trial

from ..scale import repetitions
from .judge import checked

pytestmark = [pytest.mark.server, pytest.mark.processes]

TASKS = repetitions(200, whole=500)


@pytest.mark.long
async def test_a_worker_may_be_killed_under_many_tasks(patient_trial: Trial) -> None:
    checked(await worker_killed(patient_trial, TASKS))


async def test_the_dispatcher_may_be_killed_under_many_tasks(trial: Trial) -> None:
    (row,) = checked(await dispatcher_killed(trial, TASKS))
    assert "0 started twice" in row.note


@pytest.mark.long
async def test_the_server_may_be_killed_under_many_tasks(trial: Trial) -> None:
    checked(await server_killed(trial, TASKS))


async def test_the_leader_of_the_stream_may_be_killed_under_many_tasks(trial: Trial) -> None:
    checked(await stream_leader_killed(trial, TASKS))


@pytest.mark.long  # the simulator kills it under such a limit, and a test above in real processes
async def test_a_limit_per_key_holds_when_the_dispatcher_is_killed(trial: Trial) -> None:
    checked(await limit_per_key(trial, TASKS))


async def test_a_long_task_does_not_keep_short_ones_waiting(patient_trial: Trial) -> None:
    checked(await no_hoarding(patient_trial, short_s=0.1))
