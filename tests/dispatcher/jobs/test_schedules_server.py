"""A real server takes and refuses the same schedules as schemas.schedules."""

from __future__ import annotations

import random

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import PublishRefused
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import InvalidSchedule
from gangline.schemas.names import Names
from gangline.schemas.schedules import check_schedule
from gangline.schemas.wire import headers

from ...support.schedules import REFUSED, TAKEN

pytestmark = pytest.mark.server

_PARTS = (
    "*",
    "?",
    "0",
    "5",
    "7",
    "12",
    "31",
    "60",
    "mon",
    "feb",
    "*/2",
    "1-5",
    "5-1",
    "2/3",
    "1-9/4",
    "*/0",
    "1,3",
    "x",
)


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
    bus = await connect(ConnectionSettings.from_url(nats_url), name="schedules")
    names = Names(namespace)
    try:
        schedules = await TaskStreams(bus, names, TaskStorage()).schedules()
        taken: dict[str, bool] = {}
        for number, text in enumerate((*TAKEN, *REFUSED, *_drawn(200))):
            subject = names.schedule(f"s{number}")
            given = {headers.SCHEDULE: text, headers.SCHEDULE_TARGET: names.due_of(names.task("nobody", "nothing"))}
            try:
                await schedules.publish(subject, b"", headers=given)
                taken[text] = True
            except PublishRefused:
                taken[text] = False
            await schedules.purge(subject)
    finally:
        await bus.close()
    assert taken == {text: _takes(text) for text in taken}
    assert 20 < sum(taken[text] for text in _drawn(200)) < 180, "both kinds are drawn"
