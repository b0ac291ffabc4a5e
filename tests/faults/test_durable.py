"""The scenarios of durable tasks under faults, once each: what must hold, strictly; times only where something else
than expected would have been at work. The figures come from `python -m bench.faults.durable`."""

from __future__ import annotations

import pytest

from bench.faults.figures import Row
from bench.faults.killed_under_tasks import (
    dispatcher_killed,
    limit_per_key,
    server_killed,
    stream_leader_killed,
    worker_killed,
)
from bench.faults.long_tasks import no_hoarding
from bench.faults.notes import Note, interrupted, most_at_once, unexplained_starts

pytestmark = [pytest.mark.server, pytest.mark.processes]


def checked(rows: list[Row]) -> Row:
    """Nothing was broken, and it was measured."""
    (row,) = rows
    assert row.broken == []
    assert row.samples
    return row


def silent(_: str) -> None:
    """Nobody reads the progress."""


async def test_a_worker_may_be_killed_under_a_thousand_tasks() -> None:
    assert checked(await worker_killed(1, silent)).worst < 10.0


async def test_the_dispatcher_may_be_killed_under_a_thousand_tasks() -> None:
    row = checked(await dispatcher_killed(1, silent))
    assert row.worst < 10.0
    assert "0 started twice" in row.note


async def test_the_server_may_be_killed_under_a_thousand_tasks() -> None:
    checked(await server_killed(1, silent))


async def test_the_leader_of_the_stream_may_be_killed_under_a_thousand_tasks() -> None:
    checked(await stream_leader_killed(1, silent))


async def test_a_limit_per_key_holds_when_the_dispatcher_is_killed() -> None:
    checked(await limit_per_key(1, silent))


async def test_a_long_task_does_not_keep_short_ones_waiting() -> None:
    """Late by a fifth would be one short task behind the long one; a busy machine is not that late."""
    assert checked(await no_hoarding(1, silent)).worst < 20.0


# -- the judges ---------------------------------------------------------------------------------------------------


def note(at: float, event: str, job: str = "a", pid: int = 1, attempt: int = 1, key: str | None = None) -> Note:
    return Note(at=at, event=event, job=job, attempt=attempt, key=key, pid=pid)


def test_a_second_start_needs_a_kill_that_cut_the_first_short() -> None:
    twice = [note(1, "start"), note(2, "start", pid=2, attempt=2), note(3, "end", pid=2, attempt=2)]
    assert unexplained_starts(twice, [1]) == []
    assert len(unexplained_starts(twice, [])) == 1
    assert len(unexplained_starts([note(1, "start"), note(1.5, "end"), *twice[1:]], [1])) == 1


def test_what_a_killed_process_did_not_end_is_found() -> None:
    notes = [note(1, "start"), note(2, "start", job="b"), note(3, "end")]
    assert interrupted(notes, 1) == {"b"}


def test_the_most_that_ran_of_a_key_at_once_is_counted() -> None:
    notes = [note(1, "start", key="k"), note(2, "start", job="b", key="k"), note(3, "end", key="k")]
    assert most_at_once(notes) == {"k": 2}
    assert most_at_once(notes, [1]) == {}
