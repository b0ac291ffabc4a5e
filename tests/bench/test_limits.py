"""What limits over all workers cost under contention, on virtual time."""

from __future__ import annotations

import pytest

from bench.limits import Load, Moves, imagine
from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.schemas.records.workers import HeldShare, LimitRecord

from ..scale import repetitions

SECONDS = repetitions(1, whole=3)


def test_the_ideal_is_what_the_callers_and_both_limits_allow() -> None:
    assert Load(max_running=4, hold_s=0.02).ideal_per_s == 200
    assert Load(max_running=40, callers=2, hold_s=0.02).ideal_per_s == 100
    assert Load(max_running=4, hold_s=0.02, rate_per_s=30).ideal_per_s == 30
    assert Load(hold_s=0.0, rate_per_s=30).ideal_per_s == 30


def test_a_move_is_a_unit_that_another_worker_has_afterwards() -> None:
    moves = Moves()
    for revision, units in enumerate(({"a": 3}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 2, "b": 1})):
        shares = {name: HeldShare(instance=name, units=count) for name, count in units.items()}
        value = LimitRecord(incarnation="i", limit=3, shares=shares).model_dump_json().encode()
        moves.see(KvEntry(key="limit.p.m", value=value, revision=revision, operation=KvOperation.PUT))
    assert (moves.moved, moves.writes) == (3, 3)


@pytest.mark.long
async def test_units_are_in_use_nearly_always_and_workers_write_less_than_once_for_each_execution() -> None:
    found = await imagine(Load(max_running=4, callers=16), SECONDS)
    assert found.of_ideal > 0.9 and found.moves_per_s > 0
    assert found.writes_per_s < 0.6 * found.per_s


async def test_nothing_is_written_while_there_is_room_for_all() -> None:
    found = await imagine(Load(max_running=64, callers=8), 0.5)
    assert found.of_ideal > 0.99 and found.writes_per_s == 0


@pytest.mark.long
async def test_a_rate_over_several_workers_is_used_in_full() -> None:
    found = await imagine(Load(rate_per_s=50.0, hold_s=0.0, callers=32), SECONDS)
    assert 0.95 < found.of_ideal < 1.05
