"""Recurring schedules through the whole system: listed, paused, resumed, deleted, and linked to their runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.schedules import put_schedule
from gangline.schemas.errors.base import InvalidRequest, InvalidSchedule, InvalidSettings, JobDead, UnknownJob
from gangline.schemas.messages.jobs import JobInfo, run_of
from gangline.schemas.records.jobs import JobState

from ...support.dispatcher.jobs_rig import ImagesSystem, on_images
from ...waiting import until


async def stored(client: Client, count: int = 1) -> list[Any]:
    await until(lambda: listed(client, count))
    return await client.schedules()


async def listed(client: Client, count: int) -> bool:
    return len(await client.schedules()) == count


async def declared(client: Client, name: str, cron: str = "@every 10s", **options: Any) -> Any:
    """Submit it, and wait until its dispatcher has stored it."""
    await client.options(cron=cron, idempotency_key=name, **options).submit("images.echo", name)
    await until(lambda: known(client, name))
    return await client.schedule(name)


async def known(client: Client, name: str) -> bool:
    return any(each.name == name for each in await client.schedules())


@on_images(slots=4, start="2026-06-01T12:00:00Z")
async def test_schedules_are_listed_with_their_next_run(client: Client) -> None:
    await declared(client, "nightly", "0 3 * * *", time_zone="Europe/Berlin", priority=3)
    await declared(client, "ticks", "@every 1h")
    await client.options(delay_s=60).submit("images.echo", "later")  # is no schedule
    nightly, ticks = await client.schedules()
    assert (nightly.name, nightly.target, nightly.cron) == ("nightly", "images.echo", "0 0 3 * * *")
    assert (nightly.time_zone, nightly.paused, nightly.arguments) == ("Europe/Berlin", False, ["nightly"])
    assert datetime.fromtimestamp(nightly.next_at or 0, UTC).isoformat() == "2026-06-02T01:00:00+00:00"
    assert (ticks.name, ticks.cron, ticks.time_zone) == ("ticks", "@every 1h", "")
    assert ticks.next_at is not None and 3590 < ticks.next_at - ticks.declared_at < 3610
    assert await client.schedules("videos") == []


@on_images(slots=4, start="2026-06-01T00:59:40Z")
async def test_a_run_happens_at_the_time_of_its_time_zone(system: ImagesSystem, client: Client) -> None:
    await declared(client, "nightly", "0 3 * * *", time_zone="Europe/Berlin")
    await asyncio.sleep(10)
    assert system.ran == []
    await asyncio.sleep(15)
    assert system.ran == ["nightly"]


@on_images(slots=4)
async def test_each_run_names_its_schedule(system: ImagesSystem, client: Client) -> None:
    schedule = await declared(client, "ticks", key="k")
    await until(lambda: len(system.ran) == 2)
    ran = [await client.job(str(number)).status() for number in (2, 3)]
    assert [info.schedule for info in ran] == [schedule.id] * 2
    assert [info.state for info in ran] == [JobState.DONE] * 2
    assert [info.key for info in ran] == ["k"] * 2


@on_images(slots=4)
async def test_a_run_is_found_by_a_title_that_names_its_schedule(system: ImagesSystem, client: Client) -> None:
    schedule = await declared(client, "ticks")
    await until(lambda: len(system.ran) == 1)
    run = await client.job("2").status()
    assert run.title == f"{schedule.id}-2" and run.model_dump()["job"] == "2"
    assert (await client.find_job(run.title)).id == "2"
    with pytest.raises(UnknownJob):
        await client.find_job(f"{schedule.id}-9")
    with pytest.raises(UnknownJob):
        await client.find_job("images.another-2")


@on_images(slots=4)
async def test_a_job_whose_own_id_looks_like_a_title_is_found_by_it(system: ImagesSystem, client: Client) -> None:
    schedule = await declared(client, "ticks")
    await until(lambda: len(system.ran) == 1)
    job = await client.options(idempotency_key="mine-2").submit("images.echo")
    assert (await job.status()).title == job.id and (await client.find_job(job.id)).id == job.id
    assert (await client.find_job(f"{schedule.id}-2")).id == "2"


def test_a_title_that_would_be_too_long_for_an_id_is_the_number() -> None:
    run = JobInfo(job="17", endpoint="images", state=JobState.DONE, schedule=f"images.{'n' * 126}")
    assert run.title == "17" and run.model_copy(update={"schedule": f"images.{'n' * 125}"}).title.endswith("nn-17")
    assert (run_of("images.nightly-17"), run_of("17"), run_of("-17"), run_of("images.nightly-x")) == (
        ("images.nightly", "17"), None, None, None,
    )  # fmt: skip


@on_images(slots=4)
async def test_a_run_that_becomes_a_dead_letter_names_its_schedule(client: Client) -> None:
    await client.options(cron="@every 10s", idempotency_key="bad").submit("images.fail")
    [schedule] = await stored(client)
    await asyncio.sleep(11)
    [letter] = await client.dead_letters()
    assert letter.schedule == schedule.id
    with pytest.raises(JobDead):
        await client.job(letter.job).result()
    await client.delete_schedule("bad")
    again = await client.replay(letter)
    with pytest.raises(JobDead):
        await again.result()
    assert (await again.status()).schedule == schedule.id


@on_images(slots=4)
async def test_a_paused_schedule_has_no_runs_until_it_is_resumed(system: ImagesSystem, client: Client) -> None:
    await declared(client, "ticks", "@every 10s", time_zone=None)
    await until(lambda: len(system.ran) == 1)
    paused = await client.pause_schedule("ticks")
    assert paused.paused and paused.next_at is None
    count = len(system.ran)
    await asyncio.sleep(25)
    assert len(system.ran) == count
    info = await client.job(paused.id).status()
    assert info.state is JobState.SCHEDULED and info.reason == "paused; recurring: @every 10s"
    again = await client.pause_schedule("ticks")
    assert again.paused_at == paused.paused_at, "pausing it twice does not change it"
    resumed = await client.resume_schedule("ticks")
    assert not resumed.paused and resumed.next_at is not None
    await asyncio.sleep(21)
    assert len(system.ran) == count + 2
    assert (await client.resume_schedule("ticks")).declared_at == resumed.declared_at


@on_images(slots=4)
async def test_a_paused_schedule_stays_paused_when_a_program_declares_it_again(
    system: ImagesSystem, client: Client
) -> None:
    await declared(client, "ticks", "0 0 * * *", time_zone="Europe/Berlin")
    paused = await client.pause_schedule("ticks")
    await client.options(cron="@every 5s", idempotency_key="ticks").submit("images.echo", "new")
    await until(lambda: cron_is(client, "@every 5s"))
    [schedule] = await client.schedules()
    assert (schedule.paused_at, schedule.arguments, schedule.id) == (paused.paused_at, ["new"], paused.id)
    await asyncio.sleep(12)
    assert system.ran == []
    await client.resume_schedule("ticks")
    await asyncio.sleep(6)
    assert system.ran == ["new"]


async def cron_is(client: Client, cron: str) -> bool:
    return [each.cron for each in await client.schedules()] == [cron]


@on_images(slots=4)
async def test_a_schedule_is_deleted_paused_or_not(client: Client) -> None:
    await declared(client, "one")
    await declared(client, "two")
    await client.pause_schedule("two")
    assert (await client.delete_schedule("one")).name == "one"
    assert (await client.delete_schedule("two")).paused
    assert await client.schedules() == []
    with pytest.raises(UnknownJob, match="there is no schedule 'two'"):
        await client.delete_schedule("two")


async def test_a_schedule_declared_again_after_its_cancellation_stands_until_it_is_cancelled_again() -> None:
    system = ImagesSystem(slots=4)
    running = system.cluster(dispatcher=False)
    async with running as client:
        every = client.options(cron="@every 10s", idempotency_key="ticks")
        for value in ("the same", "the same", "another"):  # and no dispatcher has seen any of them
            job = await every.submit("images.echo", value)
            assert (await job.status()).state is JobState.SCHEDULED
            await asyncio.sleep(1)
            assert await job.cancel()
            assert not await job.cancel()
            assert (await job.status()).state is JobState.CANCELLED
            await asyncio.sleep(1)
        await running.add_dispatcher()
        await asyncio.sleep(15)
        assert (system.ran, await client.schedules()) == ([], [])


async def test_a_schedule_declared_half_a_millisecond_after_its_cancellation_is_another_one() -> None:
    running = ImagesSystem().cluster(dispatcher=False)
    async with running as client:
        every = client.options(cron="@every 10s", idempotency_key="ticks")
        job = await every.submit("images.echo", "first")
        assert await job.cancel()
        await asyncio.sleep(0.0005)
        await every.submit("images.echo", "second")
        await running.add_dispatcher()
        await asyncio.sleep(3)
        assert await cron_is(client, "@every 10s")


@pytest.mark.parametrize("first", ["cancelled", "deleted", "replaced"])
async def test_of_several_declarations_that_waited_for_a_dispatcher_the_last_one_stands(first: str) -> None:
    system = ImagesSystem(slots=4)
    running = system.cluster(dispatcher=False)
    async with running as client:
        every = client.options(idempotency_key="ticks")
        for value in ("one", "two", "three"):
            job = await every.options(cron="@every 10s").submit("images.echo", value)
            await asyncio.sleep(1)
            if first == "cancelled":
                assert await job.cancel()
                await asyncio.sleep(1)
        await every.options(cron="@every 3s").submit("images.echo", "last")
        await running.add_dispatcher()
        await asyncio.sleep(1)
        if first == "deleted":
            await client.delete_schedule("ticks")
            await every.options(cron="@every 3s").submit("images.echo", "last")
        await asyncio.sleep(10)
        assert (set(system.ran), len(system.ran)) == ({"last"}, 3)
        assert await cron_is(client, "@every 3s")
        assert (await job.status()).state is JobState.SCHEDULED
        assert await job.cancel()
        assert await client.schedules() == []


@on_images(slots=4)
async def test_a_paused_schedule_can_be_cancelled_as_a_job(client: Client) -> None:
    job = await client.options(cron="@hourly", idempotency_key="x").submit("images.echo", 1)
    await stored(client)
    await client.pause_schedule("x")
    assert await job.cancel()
    assert await client.schedules() == []


@on_images(slots=4)
async def test_a_schedule_is_found_by_name_by_id_and_by_the_beginning_of_its_id(client: Client) -> None:
    schedule = await declared(client, "nightly")
    local = schedule.id.partition(".")[2]
    for which in ("nightly", "images.nightly", schedule.id, schedule.id[:-6], local, local[:8]):
        assert (await client.schedule(which)).id == schedule.id
    await declared(client, "hourly")
    with pytest.raises(InvalidRequest, match="several schedules.*ENDPOINT.NAME says which"):
        await client.schedule("images.i")
    for which in ("images", "nope", "xyz"):
        with pytest.raises((UnknownJob, InvalidRequest)):
            await client.schedule(which)


@on_images(slots=4)
async def test_waiting_for_the_result_of_a_schedule_is_refused(client: Client) -> None:
    schedule = await declared(client, "nightly", "@hourly")
    with pytest.raises(InvalidRequest, match="is a schedule"):
        await client.job(schedule.id).result()
    info = await client.job(schedule.id).status()
    assert (info.cron, info.reason) == ("@hourly", "recurring: @hourly")
    assert info.next_try_at == schedule.next_at


async def test_a_time_zone_that_cannot_be_meant_is_refused() -> None:
    berlin = "Europe/Berlin"
    refused: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"time_zone": berlin}, InvalidSettings, "but there is no cron"),
        ({"time_zone": berlin, "delay_s": 5}, InvalidSettings, "but there is no cron"),
        ({"cron": "0 3 * * *", "time_zone": "Mars/Base"}, InvalidSchedule, "there is no time zone 'Mars/Base'"),
        ({"cron": "@every 5m", "time_zone": berlin}, InvalidSchedule, "only cron schedules take a time zone"),
    )
    async with ImagesSystem(slots=4).cluster() as client:
        for options, error, hint in refused:
            with pytest.raises(error, match=hint):
                client.options(**options)


@on_images(slots=4)
async def test_a_time_of_its_own_replaces_cron_and_time_zone(client: Client) -> None:
    nightly = client.options(cron="0 3 * * *", time_zone="Europe/Berlin")
    assert await (await nightly.options(delay_s=1).submit("images.echo", 1)).result() == 1


@on_images(slots=4)
async def test_a_tenants_schedule_replaces_the_one_of_an_earlier_version_and_never_one_of_our_own_account(
    client: Client,
) -> None:
    streams, names = client._submitter._streams, client._submitter._streams.names
    schedules = await streams.schedules()
    earlier, now = names.schedule("images.i7"), names.schedule("images.t3-lab-i7")

    def given(tenant: str) -> dict[str, str]:
        target = names.due_of(names.of_tenant(names.task("images", "echo"), tenant))
        return {"Nats-Schedule": "0 0 3 * * *", "Nats-Schedule-Target": target}

    paused = {"Gangline-Paused": "2026-01-01T00:00:00Z", "Gangline-Cron": "0 0 3 * * *"}
    theirs = {**paused, "Gangline-Subject": names.of_tenant(names.task("images", "echo"), "lab")}
    await schedules.publish(earlier, b"[1]", headers=theirs)

    class Raced:
        """Our own account's schedule comes when the tenant's is stored, before the earlier one is removed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(schedules, name)

        async def purge(self, pattern: str, **bounds: Any) -> int:
            await put_schedule(schedules, names, earlier, b"[2]", given(""))
            return await schedules.purge(pattern, **bounds)

    raced: Any = Raced()
    await put_schedule(raced, names, now, b"[3]", given("lab"))
    found = {each.id: (each.arguments, each.paused) for each in await client.schedules()}
    assert found == {"images.t3-lab-i7": ([3], True), "images.i7": ([2], False)}
