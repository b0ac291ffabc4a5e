"""Pools of names that nobody serves: callers may make up any number of them."""

from __future__ import annotations

import asyncio

import pytest

from gangline.schemas.errors.base import NoWorkers, QueueFull

from ...support.dispatcher.fakes import Rig

MOST = 5


async def unknown(rig: Rig, name: str) -> type[Exception]:
    with pytest.raises((NoWorkers, QueueFull)) as caught:
        await rig.client.call(f"{name}.echo")
    return caught.type


@pytest.mark.router(max_empty_pools=MOST)
async def test_names_that_nobody_serves_are_forgotten_when_there_are_too_many(rig: Rig) -> None:
    await rig.worker()
    for number in range(5 * MOST):
        assert await unknown(rig, f"nobody-{number}") is NoWorkers
        assert await rig.client.call("images.echo") == ["w1", "echo"]
    assert "images" in rig.router.pools and len(rig.router.pools) <= MOST + 1
    assert f"nobody-{5 * MOST - 1}" in rig.router.pools


@pytest.mark.router(max_empty_pools=MOST)
async def test_too_many_callers_of_names_that_nobody_serves_are_refused(rig: Rig) -> None:
    await rig.known_worker()
    found = await asyncio.gather(*(unknown(rig, f"nobody-{number}") for number in range(5 * MOST)))
    assert found.count(NoWorkers) == MOST and found.count(QueueFull) == 4 * MOST
    assert await rig.client.call("images.echo") == ["w1", "echo"]
    assert await unknown(rig, "late") is NoWorkers
