"""Correct uses of typed handles: type checkers find nothing wrong, and no result is Any."""

from __future__ import annotations

from typing import Any, assert_type

from tasks import Order, count, lines, numbers, place, pool, resize, thumbnail

import gangline


async def calls(client: gangline.Client) -> None:
    assert_type(await client.call(count, text="a b"), int)
    assert_type(await client.call(count, "a b", least=2), int)
    assert_type(await client.options(timeout_s=5).call(thumbnail, "a.png", width=64), bytes)
    assert_type(await client.call(numbers, to=3), list[int])
    assert_type(await client.call(lines, "a"), list[str])
    assert_type(await client.call(place, order=Order(id=1)), Order)
    assert_type(await client.call(resize, image=b"", width=1), bytes)
    assert_type(await client.call(gangline.handle(count, pool), text="a"), int)
    assert_type(await client.call("words.count", text="a", anything=1), Any)
    async for number in client.stream(numbers, 3):
        assert_type(number, int)
    async for line in client.stream(lines, text="a"):
        assert_type(line, str)
    async for item in client.stream("words.numbers", to=3):
        assert_type(item, Any)


async def jobs(client: gangline.Client) -> None:
    job = await client.submit(count, text="a")
    assert_type(job, gangline.Job[int])
    assert_type(await job.result(), int)
    assert_type(await client.submit(numbers, to=3), gangline.Job[None])
    assert_type(await client.submit_many(count, [{"text": "a"}]), list[gangline.Job[int]])
    assert_type(client.job("x").of(thumbnail), gangline.Job[bytes])
    plain: gangline.Job = await client.submit("words.count", text="a")
    assert_type(await plain.result(), Any)


async def slots(client: gangline.Client) -> None:
    async with client.lease(count, slots=2) as lease:
        assert_type(await lease.call(count, "a"), int)
        assert_type(await lease.call("count", "a"), Any)
        async for number in lease.stream(numbers, to=1):
            assert_type(number, int)
    async with client.choose_worker(thumbnail) as selection:
        assert_type(await client.dispatch(selection, thumbnail, "a.png"), bytes)
        assert_type(await client.dispatch(selection, "thumbnail", "a.png"), Any)
        async for number in client.stream(selection, numbers, to=1):
            assert_type(number, int)


async def gangs(client: gangline.Client) -> None:
    async with client.gang(pool="words", size=4) as gang:
        assert_type(await gang.run(count, "a"), list[int])
        assert_type(await gang.options(retries=3).run(numbers, 1), list[list[int]])
        assert_type(await gang.run("count", "a"), list[Any])
        assert_type(await gang.run_each(count, [("a",), ("b",)]), list[int])
        assert_type(await gang.call(0, count, text="a"), int)
        async for number in gang.stream(0, numbers, to=1):
            assert_type(number, int)


def plain_code(client: gangline.SyncClient) -> None:
    assert_type(client.call(count, text="a b"), int)
    assert_type(client.call(numbers, to=3), list[int])
    assert_type(client.call(thumbnail, "a.png"), bytes)
    assert_type(client.submit(count, text="a").result(), int)
    assert_type(client.submit_many(thumbnail, [])[0].result(timeout_s=1), bytes)
    for number in client.stream(numbers, to=3):
        assert_type(number, int)
    with client.lease(count) as lease:
        assert_type(lease.call(place, Order(id=1)), Order)
    with client.gang(pool="words", size=2) as gang:
        assert_type(gang.run(count, "a"), list[int])
    with client.choose_worker(count) as selection:
        assert_type(client.dispatch(selection, count, "a"), int)
