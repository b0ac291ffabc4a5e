"""Useful work under overload, on virtual time."""

from __future__ import annotations

import pytest

from gangline.bench.overload import KINDS, Load, imagine

from ..scale import repetitions

SECONDS = repetitions(2, whole=4)


@pytest.mark.parametrize("kind", KINDS)
async def test_ten_times_too_many_requests_leave_the_work_done_as_it_is(kind: str) -> None:
    found = await imagine(Load(kind=kind, slots=2, takes_s=0.2, deadline_s=1.0), SECONDS)
    assert found.of_capacity >= 0.9, found
    assert found.started_in_vain <= found.ended / 10, found
    if kind != "job":
        assert found.refused_at_once > found.offered / 2, found


async def test_nobody_is_refused_below_the_capacity() -> None:
    found = await imagine(Load(times=0.7, slots=8, takes_s=0.2, deadline_s=1.0), SECONDS)
    assert found.ended >= found.offered - 8 and not found.errors, found
