from __future__ import annotations

import math

import pytest

from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TTL_S
from gangline.schemas.messages import operations as messages
from gangline.schemas.messages.operations import (
    DispatchRequest,
    DrainRequest,
    LoadReply,
    ReleaseRequest,
    RenewRequest,
    ReserveRequest,
    ResizeRequest,
    parse_request,
)
from gangline.schemas.wire.frames import Load

from ...support.rows import case

REQUESTS = [cls for cls in vars(messages).values() if isinstance(cls, type) and issubclass(cls, messages.Request)]
REPLIES = [cls for cls in vars(messages).values() if isinstance(cls, type) and issubclass(cls, messages.Reply)]


def test_an_empty_reserve_is_one_slot_for_fifteen_seconds():
    request = parse_request(ReserveRequest, None)
    assert request == ReserveRequest(slots=1, ttl_s=15.0, claim_s=None, single_use=False, ledger="behind", owner="")
    assert parse_request(ReserveRequest, {}) == request


def test_a_wrong_reserve_names_the_field_and_why():
    cases = [
        ({"slots": -1}, "slots: Input should be greater than or equal to 1, given -1"),
        ({"slots": 0}, "slots: "),
        ({"slots": MAX_SLOTS + 1}, "slots: "),
        ({"slots": "many"}, "slots: Input should be a valid integer"),
        ({"slots": 1.5}, "slots: "),
        ({"slots": None}, "slots: "),
        ({"ttl_s": 0.5}, "ttl_s: "),
        ({"ttl_s": MAX_TTL_S + 1}, "ttl_s: "),
        ({"ttl_s": math.nan}, "ttl_s: "),
        ({"ttl_s": math.inf}, "ttl_s: "),
        ({"claim_s": 0}, "claim_s: "),
        ({"claim_s": -1}, "claim_s: "),
        ({"ledger": "maybe"}, "ledger: "),
        ({"rid": ""}, "rid: "),
        ({"rid": "a.b"}, "rid: "),
        ({"rid": "a\n"}, "rid: "),
        ({"rid": "x" * 65}, "rid: "),
        ({"owner": "x" * 257}, "owner: "),
        ({"slot": 2}, "no field 'slot'; fields: rid, slots, ttl_s, claim_s, single_use, ledger, owner"),
        ([], "the body is of type list: send an object; fields: rid, slots, "),
        ("x", "the body is of type str: send an object"),
        (7, "the body is of type int: send an object"),
    ]
    for body, says in cases:
        with case(body, says):
            with pytest.raises(InvalidRequest) as caught:
                parse_request(ReserveRequest, body)
            assert says in str(caught.value)
            assert "errors.pydantic.dev" not in str(caught.value)


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(InvalidRequest) as caught:
        parse_request(ReserveRequest, {"slots": -1, "ttl_s": 0, "colour": "red"})
    assert all(field in str(caught.value) for field in ("slots: ", "ttl_s: ", "no field 'colour'"))


def test_each_request_checks_its_fields():
    cases = [
        (DispatchRequest, None, "token"),
        (DispatchRequest, {"token": "t"}, "method"),
        (DispatchRequest, {"token": "t t", "method": "m"}, "token"),
        (DispatchRequest, {"token": "x" * 65, "method": "m"}, "token"),
        (DispatchRequest, {"token": "t", "method": "m", "epoch": -1}, "epoch"),
        (DispatchRequest, {"token": "t", "method": "m", "arguments": "x"}, "arguments"),
        (DispatchRequest, {"token": "t", "method": "m", "timeout_s": 0}, "timeout_s"),
        (DispatchRequest, {"token": "t", "method": "m", "timeout_s": MAX_DEADLINE_S + 1}, "timeout_s"),
        (RenewRequest, {}, "token"),
        (RenewRequest, {"token": "t", "ttl_s": 0.1}, "ttl_s"),
        (RenewRequest, {"token": "t", "epoch": "new"}, "epoch"),
        (ReleaseRequest, {"token": ""}, "token"),
        (ReleaseRequest, {"rid": "x" * 65}, "rid"),
        (DrainRequest, {"grace_s": -1}, "grace_s"),
        (ResizeRequest, {}, "slots"),
        (ResizeRequest, {"slots": -1}, "slots"),
        (ResizeRequest, {"slots": MAX_SLOTS + 1}, "slots"),
    ]
    for model, body, field in cases:
        with case(model, body, field), pytest.raises(InvalidRequest, match=field):
            parse_request(model, body)


def test_a_pool_may_be_paused_and_a_drain_may_be_immediate():
    assert parse_request(ResizeRequest, {"slots": 0}).slots == 0
    assert parse_request(DrainRequest, {"grace_s": 0}).grace_s == 0
    assert parse_request(DrainRequest, None).grace_s is None


def test_a_misspelt_field_of_any_request_is_refused():
    for model in [cls for cls in REQUESTS if cls is not messages.Request]:
        with case(model), pytest.raises(InvalidRequest, match="no field 'misspelt'; fields: "):
            parse_request(model, {"misspelt": 1})


def test_replies_may_grow_fields_that_an_older_reader_does_not_know():
    for model in REPLIES:
        with case(model):
            assert model.model_config["extra"] == "ignore"


def test_a_load_reply_shows_the_sums_too():
    sums = {"running": 1, "reserved": 2, "total": 4, "ongoing": 3, "free": 1, "draining": False}
    assert LoadReply.of(Load(1, 2, 4)).model_dump() == sums
