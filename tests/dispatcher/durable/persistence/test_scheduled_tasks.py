"""Schedules and delayed tasks of tenants: how many of them, and how large, their quotas allow."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Stream
from gangline.dispatcher.durable.persistence.scheduled_tasks import ScheduledTasks, ScheduleRoom
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import QuotaExceeded
from gangline.schemas.names import Names, job_of_tenant
from gangline.schemas.permissions.quotas import parse_quotas
from gangline.schemas.wire import headers

from ....support.rows import in_rows

NAMES = Names("ns")


def subject_of(name: str, tenant: str = "lab") -> str:
    return NAMES.schedule(job_of_tenant(f"images.{name}", "images", tenant))


class Owner:
    """Of the queue, with these quotas."""

    def __init__(self, stream: Stream, *quotas: str) -> None:
        self.stream = stream
        self.tasks = ScheduledTasks("images", NAMES, parse_quotas(quotas))

    async def stores(self, name: str, *, tenant: str = "lab", size: int = 300, cron: str = "@daily") -> str:
        """The quota that forbids it; empty: it is stored."""
        subject, task = subject_of(name, tenant), f"{NAMES.task('images', 'resize')}.@{tenant}"
        given = {headers.SCHEDULE: cron, headers.SCHEDULE_TARGET: NAMES.due_of(task)}

        async def publish() -> None:
            await self.stream.purge(subject)
            await self.stream.publish(subject, b"", headers=given)

        try:
            await self.tasks.store(tenant, self.stream, subject, size, publish, repeats=not cron.startswith("@at"))
        except QuotaExceeded as error:
            return str(error.details["quota"])
        return ""


async def schedules() -> Stream:
    return await TaskStreams(MemoryServer().connect("d"), NAMES).schedules()


LATER = "@at 2999-01-01T00:00:00Z"


async def test_so_many_are_stored_and_a_declaration_replaces_its_own() -> None:
    owner = Owner(await schedules(), "schedules=2", "delayed_tasks=1")
    assert [await owner.stores(name) for name in ("a", "b", "c", "a")] == ["", "", "schedules", ""]
    assert [await owner.stores(name, cron=LATER) for name in ("d", "e", "d")] == ["", "delayed_tasks", ""]
    assert [await owner.stores(name, tenant="shop") for name in ("a", "b", "c")] == ["", "", "schedules"]
    assert [await owner.stores(name, tenant="") for name in "abcdef"] == [""] * 6, "our own account has no quotas"


async def test_what_ran_or_was_removed_makes_room_within_a_second() -> None:
    owner = Owner(await schedules(), "schedules=1")
    assert await owner.stores("a") == "" and await owner.stores("b") == "schedules"
    await owner.stream.purge(subject_of("a"))
    await asyncio.sleep(1.1)
    assert await owner.stores("b") == "" and await owner.stores("a") == "schedules"


async def test_the_next_owner_counts_what_is_there() -> None:
    stream = await schedules()
    first = Owner(stream, "schedules=2", "delayed_tasks=2", "delayed_bytes=5000")
    for name, cron in (("a", "@daily"), ("b", "@daily"), ("c", LATER)):
        assert await first.stores(name, cron=cron) == ""
    second = Owner(stream, "schedules=2", "delayed_tasks=2", "delayed_bytes=5000")
    assert await second.stores("d") == "schedules"
    assert await second.stores("e", cron=LATER, size=5000) == "delayed_bytes"
    assert [await second.stores(name, cron=LATER) for name in ("e", "f")] == ["", "delayed_tasks"]


async def test_submissions_at_the_same_time_stay_within_the_quota() -> None:
    owner = Owner(await schedules(), "schedules=5")
    found = await asyncio.gather(*(owner.stores(f"s{number}") for number in range(20)))
    assert sorted(found) == [""] * 5 + ["schedules"] * 15


@in_rows("wanted, short", [(-1, True), (2000, True), (1000, False)])
async def test_where_the_queues_have_a_share_schedules_have_four_times_that(wanted: int, short: bool) -> None:
    bus = MemoryServer().connect("d")
    streams = TaskStreams(bus, NAMES, TaskStorage(tasks_max_bytes=1000))
    tasks, stream = await streams.tasks(), await streams.schedules()
    room = ScheduleRoom(wanted)
    await room.take(1900, tasks, stream)
    await room.take(1900, tasks, stream)
    with pytest.raises(QuotaExceeded, match="replay") if short else contextlib.nullcontext():
        await room.take(300, tasks, stream)
    await asyncio.sleep(2)
    await room.take(3900, tasks, stream)  # as they were not stored
    await bus.close()
