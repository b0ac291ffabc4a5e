"""Load generators, on a request that takes no time and on one that never ends well."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bench.loads import closed_loop, open_loop, percentile


@pytest.mark.realtime
async def test_a_closed_loop_counts_what_was_answered():
    under_way = most = done = 0

    async def once() -> None:
        nonlocal under_way, most, done
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        done += 1

    found = await closed_loop(once, concurrency=7, seconds=0)
    assert (found.count, most, under_way) == (done, 7, 0)
    assert found.rate == found.count / found.seconds > 0
    assert found.cpu_s > 0


@pytest.mark.realtime
async def test_an_open_loop_asks_as_often_as_it_was_told_however_slow_the_answers_are():
    gate = asyncio.Event()
    asked = 0

    async def once() -> None:
        nonlocal asked
        asked += 1
        if asked == 50:
            gate.set()  # nobody was answered until here
        await gate.wait()

    latencies = await open_loop(once, rate=1000, seconds=0.05)
    assert asked == len(latencies) == 50
    assert latencies == sorted(latencies)
    # The first one waited for the fiftieth, which was due 49 ms later.
    assert latencies[-1] >= 0.049


@pytest.mark.realtime
async def test_what_a_request_raises_ends_the_load():
    async def once() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ExceptionGroup) as group:
        await closed_loop(once, concurrency=2, seconds=0)
    assert group.group_contains(ConnectionError)
    with pytest.raises(ExceptionGroup) as group:
        await open_loop(once, rate=1000, seconds=0.002)
    assert group.group_contains(ConnectionError)


def test_a_percentile_is_one_of_the_values():
    values = [float(number) for number in range(200)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (100.0, 198.0, 7.0)
