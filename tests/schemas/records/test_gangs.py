from __future__ import annotations

import pytest
from pydantic import ValidationError

from gangline.schemas.errors.base import InvalidName, InvalidRequest
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.messages.operations import parse_request
from gangline.schemas.records.gangs import GangRecord, GangSetRecord, GangSpec, GangState, MemberRecord, Seat
from gangline.schemas.wire import codec
from gangline.schemas.wire.codec import Format

from ...support.rows import case


def test_pool_and_size_are_short_for_one_bundle():
    short = GangSpec.model_validate({"pool": "train", "size": 4, "slots": 2})
    assert short == GangSpec.model_validate({"bundles": [{"pool": "train", "count": 4, "slots": 2}]})
    assert (short.size, len(short.ranks)) == (4, 4)


def test_ranks_go_through_the_bundles_in_order():
    spec = GangSpec.model_validate(
        {"bundles": [{"pool": "pre", "count": 2}, {"pool": "dec", "extras": [{"pool": "lic", "slots": 2}]}]}
    )
    assert [[part.pool for part in parts] for parts in spec.ranks] == [["pre"], ["pre"], ["dec", "lic"]]


def test_a_wrong_request_is_refused_in_one_way():
    cases = [
        {},
        {"pool": "a", "size": 0},
        {"pool": "a", "size": -1},
        {"pool": "a", "size": 1000},
        {"pool": "a", "size": 2, "slots": 0},
        {"pool": "a.b", "size": 2},
        {"pool": "a", "size": 2, "bundles": [{"pool": "b"}]},
        {"pool": "a", "size": 2, "strategi": "pack"},
        {"bundles": [{"pool": "a", "cout": 2}]},
        {"bundles": [{"pool": "a", "extras": [{"pool": "b", "slot": 2}]}]},
        {"pool": "a", "size": 2, "strategy": "tight"},
        {"pool": "a", "size": 2, "ttl_s": 0.1},
        {"pool": "a", "size": 2, "id": "no dots."},
        {"pool": "a", "size": 2, "deadline_s": 0},
        [],
        "x",
    ]
    for wrong in cases:
        with case(wrong), pytest.raises((InvalidRequest, InvalidName)):
            parse_request(AcquireRequest, wrong)


@pytest.mark.parametrize("fmt", list(Format))
def test_a_record_survives_the_wire(fmt):
    spec = AcquireRequest.model_validate({"pool": "p", "size": 1, "labels": {"gpu": "x"}}).relaxed()
    assert type(spec) is GangSpec
    record = GangRecord(
        id="g", state=GangState.FORMED, spec=spec, seats=(Seat(rank=0, pool="p", worker="w", token="t", epoch=3),)
    )
    assert GangRecord.model_validate(codec.decode(codec.encode(record, fmt), fmt)) == record
    assert (record.fence_at(7), record.model_copy(update={"fence": 5}).fence_at(7)) == (7, 5)


def test_a_newer_writer_does_not_break_an_older_reader_of_records():
    spec = {"pool": "p", "size": 1, "new_field": 1}
    found = GangRecord.model_validate({"id": "g", "state": "queued", "spec": spec, "more": 2})
    assert found.spec.size == 1


def test_a_set_restarts_without_a_bound_unless_one_is_written():
    def template(**gang: object) -> GangSpec:
        return GangSetRecord.model_validate({"gangs": 1, "gang": {"pool": "p", "size": 2, **gang}}).template

    assert template().max_restarts is None
    assert template(max_restarts=3).max_restarts == 3
    assert template() == template()


@pytest.mark.parametrize(
    "wrong", [{"gangs": -1}, {"gangs": 1, "gang": {"pool": "p", "size": 2, "sise": 1}}, {"surge": 2}]
)
def test_a_malformed_set_is_refused(wrong):
    with pytest.raises(ValueError, match="validation error"):
        GangSetRecord.model_validate({"gangs": 1, "gang": {"pool": "p", "size": 2}} | wrong)


def test_generations_in_the_ledger_begin_at_one() -> None:
    gang = {"id": "g", "state": "formed", "spec": {"bundles": [{"pool": "p", "count": 2}], "ttl_s": 15.0}}
    member = {"gang": "g", "epoch": 7, "seats": [{"rank": 0, "token": "t"}]}
    for model, document in ((GangRecord, gang), (MemberRecord, member)):
        model.model_validate({**document, "generation": 1})
        with pytest.raises(ValidationError, match="generation"):
            model.model_validate({**document, "generation": 0})
