from __future__ import annotations

import pytest
from pydantic import ValidationError

from gangline.schemas.limits import WIRE_VERSION
from gangline.schemas.records.workers import Heartbeat, LeaseRecord, MethodInfo, Registration
from gangline.schemas.wire import codec

METHODS = {"thumbnail": MethodInfo(slots=2, idempotent=True, description="Make it small.")}
RECORDS = [
    Registration(
        pool="images", worker="w1", epoch=3, instance="abc", slots=4, methods=METHODS, models=("m1",),
        labels={"gpu": "a100"},
    ),
    Heartbeat(epoch=3, instance="abc", running=1, reserved=2, total=4, draining=True, models=("m1", "m2")),
    LeaseRecord(
        pool="images", worker="w1", epoch=3, token="t", slots=1, fence=9, single_use=True, granted_at=1.5,
        expires_at=16.5,
    ),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_the_ledger(record):
    assert type(record).model_validate_json(codec.to_json(record)) == record
    assert type(record).model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_of_a_newer_writer_is_read_as_far_as_it_is_known(record):
    newer = record.model_dump(mode="json") | {"v": WIRE_VERSION + 1, "colour": "red"}
    got = type(record).model_validate(newer)
    assert got == record.model_copy(update={"v": WIRE_VERSION + 1})


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_that_lacks_its_epoch_is_refused(record):
    without = record.model_dump(mode="json")
    del without["epoch"]
    with pytest.raises(ValidationError, match="epoch"):
        type(record).model_validate(without)


@pytest.mark.parametrize("channel", ["", ">", "*", "a.b", "a b", "x" * 129])
def test_a_channel_that_cannot_be_part_of_a_subject_is_none(channel):
    body = {"pool": "p", "worker": "w", "epoch": 1, "instance": "i", "slots": 1}
    assert Registration.model_validate({**body, "channel": channel}).channel == ""
    assert Registration.model_validate(body).channel == ""
    assert Registration.model_validate({**body, "channel": "Ab3_-xYz"}).channel == "Ab3_-xYz"
