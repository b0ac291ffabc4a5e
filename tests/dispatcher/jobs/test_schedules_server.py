"""A real server takes and refuses the same schedules as schemas.schedules."""

from __future__ import annotations

import random

import pytest

from gangline.bus.port.bus import PublishRefused
from gangline.schemas.errors.base import InvalidSchedule
from gangline.schemas.schedules import check_schedule
from gangline.schemas.wire import headers

from ...support.durable.site import ServerSite
from ...support.schedules import REFUSED, TAKEN

pytestmark = pytest.mark.server

_NUMBERS = ("0", "5", "7", "12", "31", "60")
_PARTS = ("*", "?", *_NUMBERS, "mon", "feb", "*/2", "1-5", "5-1", "2/3", "1-9/4", "*/0", "1,3", "x")


def _drawn(count: int) -> list[str]:
    draw = random.Random("schedules")
    weights = [12, 2, *[1] * (len(_PARTS) - 2)]
    return [" ".join(draw.choices(_PARTS, weights, k=6)) for _ in range(count)]


def _takes(text: str) -> bool:
    try:
        check_schedule(text)
    except InvalidSchedule:
        return False
    return True


async def test_the_server_takes_and_refuses_the_same(nats_url: str, namespace: str) -> None:
    async with ServerSite(nats_url, namespace) as site:
        schedules = await site.streams.schedules()
        target = site.names.due_of(site.names.task("nobody", "nothing"))
        taken: dict[str, bool] = {}
        for number, text in enumerate((*TAKEN, *REFUSED, *_drawn(200))):
            subject = site.names.schedule(f"s{number}")
            given = {headers.SCHEDULE: text, headers.SCHEDULE_TARGET: target}
            try:
                await schedules.publish(subject, b"", headers=given)
                taken[text] = True
            except PublishRefused:
                taken[text] = False
            await schedules.purge(subject)
    assert taken == {text: _takes(text) for text in taken}
    assert 20 < sum(taken[text] for text in _drawn(200)) < 180, "both kinds are drawn"
