"""Whatever somebody writes into the ledger by hand, a leader begins its term."""

from __future__ import annotations

import json
import random

import pytest

from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.coordinator import leadership
from gangline.coordinator.core.gang_core import SchedulerCore
from gangline.coordinator.core.standing_sets import StandingSets
from gangline.coordinator.ledger.storage import _sorted
from gangline.coordinator.model import events as on
from gangline.schemas.names import Names
from gangline.telemetry.logs import logger_for

from ...scale import repetitions
from ...schemas.records.test_written_by_hand import GANG, SEAT, _spoilt

STATUS = {"state": "steady", "gangs": 1, "current": {"pool": "train", "size": 2}, "failures": 1, "at": 1.0}
LEDGER = {
    "gang.g1": {"id": "g1", "state": "formed", "spec": GANG, "seats": [SEAT], "owner_token": "t", "gangset": "s1"},
    "gang.g2": {"id": "g2", "state": "queued", "spec": GANG, "deadline_at": 5.0, "created_at": 1.0},
    "gang.g3": {"id": "g3", "state": "tearing_down", "spec": GANG, "seats": [SEAT], "reason": "crashed: x", "rank": 0},
    "gangset.s1": {"gangs": 2, "surge": 1, "gang": {"pool": "train", "size": 2}},
    "gangset_status.s1": {**STATUS, "previous": {"pool": "train", "size": 1}},
    "member.train.w1.g1": {"gang": "g1", "generation": 1, "epoch": 7, "seats": [{"rank": 0, "token": "t"}]},
}
SAMPLE = 40


def begin(documents: dict[str, object]) -> None:
    """What a new leader does with what it has read, and with the time that passes then."""
    entries = [
        KvEntry(key=key, value=json.dumps(document).encode(), revision=at, operation=KvOperation.PUT)
        for at, (key, document) in enumerate(documents.items(), 1)
    ]
    reading = _sorted(entries, Names(), logger_for("test"))
    core = SchedulerCore()
    gained = on.LeadershipGained(
        now=1.0,
        wall=2.0,
        term=1,
        fence=9,
        gangs=tuple(reading.gangs),
        members=tuple(reading.members),
        sets=tuple(reading.sets),
        statuses=tuple(reading.statuses),
    )
    core.handle(gained)
    for now in (1.5, 10.0, 100.0):
        core.handle(on.SchedulerTick(now=now, wall=now))
    for gang in core.gangs():
        gang.model_dump_json()


def test_a_leader_begins_with_any_record():
    spoilt = [(key, document) for key in LEDGER for document in _spoilt(LEDGER[key])]
    if repetitions(1, whole=0):
        seats = [(key, document) for key, document in spoilt if document.get("seats") not in ([SEAT], None)]
        spoilt = [*seats[:: max(1, len(seats) // SAMPLE)], *random.Random(7).sample(spoilt, SAMPLE)]
    begin(LEDGER)
    for key, document in spoilt:
        begin({**LEDGER, key: document})


@pytest.fixture
def odd_set(monkeypatch):
    """The core cannot carry out the declaration of set `odd`."""
    declare = StandingSets.declare

    def no(self, name, record):
        if name == "odd":
            raise ZeroDivisionError("odd")
        declare(self, name, record)

    monkeypatch.setattr(StandingSets, "declare", no)


async def declare(system, name):
    record = {"gangs": 1, "gang": {"pool": "train", "size": 1}}
    await system.ledger.put(f"gangset.{name}", json.dumps(record).encode())


async def test_a_record_that_cannot_be_carried_out_is_put_aside_and_the_rest_goes_on(system, odd_set, caplog):
    await system.worker()
    for name in ("even", "odd"):
        await declare(system, name)
    await system.lead()
    assert (await system.event("ready"))["gangset"] == "even"
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"
    told = [line.key for line in caplog.records if getattr(line, "action", "") == "record.unusable"]
    assert told == ["gangset.odd"]


async def test_a_declaration_that_cannot_be_carried_out_does_not_touch_a_leader(system, odd_set, leader):
    for name in ("odd", "even"):
        await declare(system, name)
    assert (await system.event("ready"))["gangset"] == "even"
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"


async def test_a_term_that_could_not_begin_is_given_up_and_tried_again(system, monkeypatch, caplog):
    read, terms = leadership.read_ledger, []

    async def fails_at_first(*args, **more):
        terms.append(len(terms))
        if len(terms) == 1:
            raise ZeroDivisionError("odd")
        return await read(*args, **more)

    monkeypatch.setattr(leadership, "read_ledger", fails_at_first)
    await system.worker()
    await system.lead()
    assert len(terms) == 2
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"
    assert [line.levelname for line in caplog.records if getattr(line, "action", "") == "coordinator.term_failed"]
