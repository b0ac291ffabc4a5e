"""The audit trail: what is written before and after an action, and what is read."""

from __future__ import annotations

import logging

import pytest

from gangline.bus.port.bus import NotPermitted, StorageUnavailable
from gangline.dispatcher.client.audit import NOBODY, AuditTrail
from gangline.schemas.errors.base import NoWorkers

from ...support.dispatcher.jobs_rig import JobsRig, on_both_buses


def trail_of(rig: JobsRig) -> AuditTrail:
    return AuditTrail(rig.bus, rig.names, rig.streams)


@on_both_buses
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


@on_both_buses
async def test_an_unreadable_record_hides_no_other(rig: JobsRig) -> None:
    trail = trail_of(rig)
    async with trail.noted("drain", "images.w1"):
        stream = await rig.streams.audit()
        await stream.publish(rig.names.audit("alice"), b"by hand")
    assert [entry.record.stage.value for entry in await trail.entries()] == ["begun", "done"]


@on_both_buses
async def test_an_action_goes_on_if_it_cannot_be_recorded(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trail, done = trail_of(rig), []

    async def fail() -> None:
        raise StorageUnavailable("no leader")

    monkeypatch.setattr(trail._streams, "audit", fail)
    with caplog.at_level(logging.WARNING):
        async with trail.noted("drain", "images.w1"):
            done.append(True)
    assert done
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["audit.not_recorded"]


@on_both_buses
async def test_an_unrecorded_action_that_fails_is_warned_of_unless_it_was_forbidden_itself(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
