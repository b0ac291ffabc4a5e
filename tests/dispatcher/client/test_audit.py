"""The audit trail: what is written before and after an action, and what is read."""

from __future__ import annotations

import logging
from inspect import isfunction, signature

import pytest

from gangline.bus.port.bus import NotPermitted, StorageUnavailable
from gangline.dispatcher.client.audit import NOBODY, AuditTrail
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.client.history import HistoryFilter, HistoryReader
from gangline.dispatcher.client.sync import SyncClient
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.schemas.errors.base import InvalidRequest, InvalidRoute, NoCoordinator, NoWorkers, UnknownJob
from gangline.schemas.wire.codec import from_json

from ...support.dispatcher.jobs_rig import JobsRig, in_memory
from ...support.rows import in_rows
from ...waiting import PATIENCE_S


def trail_of(rig: JobsRig) -> AuditTrail:
    return AuditTrail(rig.bus, rig.names, rig.streams)


@in_memory
async def test_an_action_is_recorded_before_it_and_after_it(rig: JobsRig) -> None:
    trail = trail_of(rig)
    assert await trail.entries() == []
    async with trail.noted("drain", "images.w1", "new kernel"):
        [begun] = await trail.entries()
    with pytest.raises(NoWorkers):
        async with trail.noted("resize", "images.w2"):
            raise NoWorkers("there is no such worker")
    entries = await trail.entries()
    assert entries[0] == begun and {entry.user for entry in entries} == {NOBODY}
    told = [(e.record.action, e.record.target, e.record.reason, e.record.stage.value, e.record.error) for e in entries]
    assert told == [
        ("drain", "images.w1", "new kernel", "begun", ""),
        ("drain", "images.w1", "new kernel", "done", ""),
        ("resize", "images.w2", "", "begun", ""),
        ("resize", "images.w2", "", "failed", "no_workers"),
    ]
    assert [entry.record.action for entry in await trail.entries(limit=1)] == ["resize"]
    assert await trail.entries(user="alice") == []
    assert len(await trail.entries(user=NOBODY)) == 4


@in_memory
async def test_who_only_looks_makes_no_streams(rig: JobsRig) -> None:
    """They would be stored as the looker's environment says, and observers may not make any."""
    client, streams = rig.client, TaskStreams(rig.client.router.bus, rig.names)
    assert await HistoryReader(rig.client.router.bus, rig.names).records() == []
    assert await AuditTrail(rig.client.router.bus, rig.names, streams).entries() == []
    assert not (await client.jobs()).jobs
    assert (await client.dead_letters(), await client.schedules(), await client.queues()) == ([], [], [])
    assert (await client.workers(), await client.leases(), await client.gangsets()) == ([], [], {})
    made = (rig.names.tasks_stream, rig.names.history_stream)
    for name in (*made, f"KV_{rig.names.results_bucket}", f"KV_{rig.names.ledger_bucket}"):
        answer = await rig.bus.request(f"$JS.API.STREAM.INFO.{name}", timeout_s=PATIENCE_S)
        assert from_json(answer.data)["error"]["err_code"] == 10059


@in_memory
async def test_an_unreadable_record_hides_no_other(rig: JobsRig) -> None:
    trail = trail_of(rig)
    async with trail.noted("drain", "images.w1"):
        stream = await rig.streams.audit()
        await stream.publish(rig.names.audit("alice"), b"by hand")
    assert [entry.record.stage.value for entry in await trail.entries()] == ["begun", "done"]


@in_memory
async def test_an_action_goes_on_if_it_cannot_be_recorded(rig: JobsRig, monkeypatch, caplog) -> None:
    trail, done = trail_of(rig), []

    async def fail() -> None:
        raise StorageUnavailable("no leader")

    monkeypatch.setattr(trail._streams, "audit", fail)
    with caplog.at_level(logging.WARNING):
        async with trail.noted("drain", "images.w1"):
            done.append(True)
    assert done
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["audit.not_recorded"]


@in_memory
async def test_an_unrecorded_action_that_fails_is_warned_of_unless_it_was_forbidden_itself(
    rig: JobsRig, monkeypatch, caplog
) -> None:
    trail = trail_of(rig)

    async def fail() -> None:
        raise NotPermitted("not the audit trail")

    monkeypatch.setattr(trail._streams, "audit", fail)
    for error, warned in ((NotPermitted("forbidden"), False), (NoWorkers("none"), True)):
        with caplog.at_level(logging.WARNING), pytest.raises(type(error)):
            async with trail.noted("drain", "images.w1"):
                raise error
        told = [record.action for record in caplog.records if hasattr(record, "action")]
        assert told == ["audit.not_recorded"] * warned


async def told(rig: JobsRig) -> list[tuple[str, str, str, str]]:
    records = [entry.record for entry in await trail_of(rig).entries()]
    return [
        (record.action, record.target, record.reason, record.error or record.stage.value)
        for record in records
        if record.stage.value != "begun"
    ]


@in_memory
async def test_what_a_client_does_as_an_operator_is_recorded_with_its_reason(rig: JobsRig) -> None:
    client = rig.client
    await client.set_route("images", {"to": {"images-v2": 1}}, reason="new model")
    await client.delete_route("images")
    with pytest.raises(InvalidRoute):
        await client.set_route("images", {"to": {"images-v2": -1}})
    with pytest.raises(NoWorkers):
        await client.drain("images.w1", reason="new kernel")
    await rig.bury("images.j1")
    await rig.bury("images.j2")
    await client.drop("images.j1", reason="test")
    await client.replay((await client.dead_letters())[0])
    with pytest.raises(NoCoordinator):
        await client.end_gang("g1", reason="hangs")
    assert await told(rig) == [
        ("route set", "images", "new model", "done"),
        ("route rm", "images", "", "done"),
        ("drain", "images.w1", "new kernel", "no_workers"),
        ("dead rm", "images.j1", "test", "done"),
        ("dead replay", "images.j2", "", "done"),
        ("gang rm", "g1", "hangs", "no_coordinator"),
    ]


@in_memory
async def test_a_dead_letter_with_a_number_for_an_id_is_recorded_with_its_task(rig: JobsRig) -> None:
    for job in ("42", "43", "images.jabcdef"):
        await rig.bury(job)
    await rig.client.drop("42")
    await rig.client.drop((await rig.client.dead_letters())[0])
    await rig.client.drop("jabcd")
    with pytest.raises(UnknownJob):
        await rig.client.drop("44")
    assert [(target, outcome) for _, target, _, outcome in await told(rig)] == [
        ("images.echo 42", "done"),
        ("images.echo 43", "done"),
        ("images.jabcdef", "done"),
        ("44", "unknown_job"),
    ]
    reader = HistoryReader(rig.bus, rig.names, rig.streams)
    for wanted in (HistoryFilter(job="42"), HistoryFilter(endpoint="images", job="43")):
        [found] = await reader.records(wanted)
        assert found.details["target"] == f"images.echo {wanted.job}"


@in_memory
async def test_a_cancel_is_recorded_if_it_has_a_reason_since_producers_cancel_too(rig: JobsRig) -> None:
    await rig.take_queue()
    jobs = [await rig.client.submit("images.render") for _ in range(2)]
    await jobs[0].cancel()
    await jobs[1].cancel(reason="wrong input")
    assert await told(rig) == [("cancel", jobs[1].id, "wrong input", "done")]


@in_memory
async def test_actions_within_a_recorded_one_are_parts_of_it(rig: JobsRig) -> None:
    async with trail_of(rig).noted("roll-out", "images", "v2"):
        await rig.client.set_route("images", {"to": {"images-v2": 1}})
        async with trail_of(rig).noted("drain", "images.w1"):
            pass
    await rig.client.delete_route("images", reason="done")
    assert await told(rig) == [("roll-out", "images", "v2", "done"), ("route rm", "images", "done", "done")]


@in_memory
async def test_a_reason_that_is_too_long_is_refused_before_anything_is_done(rig: JobsRig) -> None:
    with pytest.raises(InvalidRequest, match="at most 1000 characters, not 1001"):
        await rig.client.set_route("images", {"to": {"images-v2": 1}}, reason="x" * 1001)
    assert await rig.client.routes() == {} and await told(rig) == []


@in_memory
async def test_a_client_can_do_without_a_record(rig: JobsRig) -> None:
    client = Client(rig.bus, names=rig.names, audit=False)
    async with client:
        await client.set_route("images", {"to": {"images-v2": 1}})
    assert await told(rig) == []


OPERATOR_FUNCTIONS = {
    "drain", "resize", "end_gang", "set_route", "delete_route", "set_gangset", "scale_gangset", "delete_gangset",
    "replay", "drop", "pause_schedule", "resume_schedule", "delete_schedule",
}  # fmt: skip


@in_rows("kind", [Client, SyncClient])
def test_each_function_of_operators_takes_a_reason(kind: type) -> None:
    functions = [name for name in dir(kind) if not name.startswith("_") and isfunction(getattr(kind, name))]
    taking = {name for name in functions if "reason" in signature(getattr(kind, name)).parameters}
    assert taking == OPERATOR_FUNCTIONS
