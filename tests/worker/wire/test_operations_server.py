"""Requests of operators and other languages, in JSON and in msgpack: each gets exactly one answer."""

from __future__ import annotations

import asyncio
from typing import Any

from gangline.schemas.names import public_id
from gangline.schemas.wire import codec
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import Load

from ...support.rows import in_rows
from ...support.worker.rig import Rig, on_rig, task

FORMATS = in_rows("fmt", list(Format))


async def accepted(rig: Rig, fmt: Format = Format.JSON, **terms: Any) -> dict[str, Any]:
    body, headers = await rig.hand.request("reserve", terms, fmt)
    assert "Nats-Service-Error" not in headers, body
    assert body["accepted"] is True
    return body


@FORMATS
@on_rig()
async def test_a_reserve_without_terms_holds_one_slot_for_fifteen_seconds(rig: Rig, fmt):
    body = await accepted(rig, fmt)
    assert body["ttl_s"] == 15.0
    assert body["epoch"] == rig.worker.core.epoch
    assert body["load"] == {"running": 0, "reserved": 1, "total": 2, "ongoing": 1, "free": 1, "draining": False}
    await asyncio.sleep(14.9)
    assert rig.worker.core.load.reserved == 1
    await asyncio.sleep(0.2)
    assert rig.worker.core.load.reserved == 0


@on_rig()
async def test_bytes_travel_as_base64_in_json_and_as_they_are_in_msgpack(rig: Rig):
    token = (await accepted(rig))["token"]
    request = {"token": token, "method": "big", "arguments": [3]}
    assert (await rig.hand.request("dispatch", request))[0] == "eHh4"
    assert (await rig.hand.request("dispatch", request, Format.MSGPACK))[0] == b"xxx"


@on_rig()
async def test_a_null_result_is_a_null_body(rig: Rig):
    token = (await accepted(rig))["token"]
    message = await rig.hand.bus.request(
        "rig.worker.images.w1.dispatch", codec.to_json({"token": token, "method": "echo"}), timeout_s=1
    )
    assert message.data == b"null"


@on_rig()
async def test_a_full_worker_says_so_with_its_load(rig: Rig):
    await accepted(rig, slots=2)
    body, headers = await rig.hand.request("reserve", {})
    assert (body["accepted"], body["reason"], body["load"]["free"]) == (False, "full", 0)
    assert headers == {}


@FORMATS
@on_rig()
async def test_stats_tell_what_is_held(rig: Rig, fmt):
    token = (await accepted(rig, owner="ann", ttl_s=20.0))["token"]
    rig.hand.send(task(1, "wait"))
    await rig.hand.quiet(0.1)
    body, _ = await rig.hand.request("stats", None, fmt)
    assert (body["pool"], body["worker"]) == ("images", "w1")
    assert body["leases"] == [
        {
            "token": public_id(token),
            "slots": 1,
            "running": 0,
            "single_use": False,
            "owner": "ann",
            "expires_in_s": 19.9,
            "gang": None,
            "seat": None,
        }
    ]
    assert body["tasks"]["started"] == 1
    assert body["ledger"]["written"] == 1


@on_rig()
async def test_a_dispatch_is_stopped_at_its_timeout(rig: Rig):
    token = (await accepted(rig))["token"]
    body, headers = await rig.hand.request("dispatch", {"token": token, "method": "wait", "timeout_s": 0.5})
    assert (body["code"], body["may_have_started"]) == ("deadline_exceeded", True)
    assert headers["Nats-Service-Error-Code"] == "504"


TOKEN = "x" * 22
WRONG: list[tuple[str, Any, str, str]] = [
    ("reserve", {"slots": -1}, "invalid_request", "slots: Input should be greater than or equal to 1"),
    ("reserve", {"slots": 0}, "invalid_request", "slots: Input should be greater than or equal to 1"),
    ("reserve", {"slots": 3}, "invalid_request", "3 slots were asked for and worker images.w1 has 2: ask for fewer"),
    ("reserve", {"slotz": 1}, "invalid_request", "no field 'slotz'; fields: rid, slots, "),
    ("reserve", {"ttl_s": 0.1}, "invalid_request", "ttl_s: Input should be greater than or equal to 1"),
    ("reserve", {"ttl_s": 7200}, "invalid_request", "ttl of 7200 s: this worker leases for 3600 s at most"),
    ("reserve", {"rid": "a b"}, "invalid_request", "rid: String should match pattern"),
    ("reserve", b"", "invalid_request", "the body is empty: send an object, at least {}; fields: rid, "),
    ("reserve", b"null", "invalid_request", "the body is empty"),
    ("drain", b"", "invalid_request", "the body is empty: send an object, at least {}; fields: grace_s"),
    ("reserve", {"rid": "x" * 70_000}, "payload_too_large", "the body has 70010 bytes; at most 65536 are allowed"),
    ("renew", {"token": [1] * 9000}, "payload_too_large", "the body has more than 8192 values"),
    ("stats", {str(n): 1 for n in range(99)}, "invalid_request", "; and 91 more"),
    ("dispatch", {"token": "t", "arguments": [[]] * 40_000}, "payload_too_large", "more than 32768 lists and maps"),
    ("reserve", [1], "invalid_request", "the body is of type list: send an object; fields: "),
    ("reserve", b"{", "malformed_message", "not JSON"),
    ("reserve", b"\xff\xfe", "malformed_message", "not JSON"),
    ("dispatch", None, "invalid_request", "token: missing; method: missing"),
    ("dispatch", {"token": TOKEN, "method": "double"}, "unknown_token", "knows no lease ~7EpPzZFadnIIWTa7R3zFBQ"),
    ("dispatch", {"token": TOKEN, "method": "nope"}, "unknown_method", "no task 'nope'; it has: echo"),
    ("dispatch", {"token": TOKEN, "method": "echo", "epoch": 1}, "stale_epoch", "epoch 1 is not that of"),
    ("renew", {"token": TOKEN}, "unknown_token", "reserve one first"),
    ("renew", {"token": TOKEN, "epoch": 1}, "stale_epoch", "reserve again"),
    ("release", {}, "invalid_request", "token or rid: name the lease to release"),
    ("drain", {"grace_s": -1}, "invalid_request", "grace_s: Input should be greater than or equal to 0"),
    ("resize", None, "invalid_request", "slots: missing"),
    ("resize", {"slots": "many"}, "invalid_request", "slots: Input should be a valid integer"),
    ("resize", {"slots": 1_000_001}, "invalid_request", "less than or equal to 1000000"),
    ("stats", {"all": True}, "invalid_request", "no field 'all'; fields: none"),
    ("jobs", {"after": "r" + "9" * 5000}, "invalid_request", "after: String should have at most 64 characters"),
    ("explode", None, "unknown_method", "it has: reserve, renew, release, stats, drain, resize, schemas, dispatch"),
    ("frames", b"zz", "malformed_message", "not msgpack"),
]  # fmt: skip


@on_rig()
async def test_each_wrong_request_is_told_what_is_wrong(rig: Rig):
    for operation, body, code, text in WRONG:
        answer, headers = await rig.hand.request(operation, body)
        what = f"{operation} {str(body)[:60]}: {str(answer)[:300]}"
        assert answer["code"] == code, what
        assert text in answer["message"], what
        assert answer["may_have_started"] is False, what
        assert headers["Nats-Service-Error"][:40] == answer["message"][:40], what
        assert 400 <= int(headers["Nats-Service-Error-Code"]) < 500, what
        assert rig.at_rest(), what


@on_rig()
async def test_an_error_of_a_msgpack_request_is_msgpack(rig: Rig):
    answer, headers = await rig.hand.request("reserve", {"slots": -1}, Format.MSGPACK)
    assert headers["Content-Type"] == "application/msgpack"
    assert answer["code"] == "invalid_request"


@on_rig()
async def test_an_unknown_content_type_is_refused_in_json(rig: Rig):
    message = await rig.hand.bus.request(
        "rig.worker.images.w1.reserve", b"<x/>", timeout_s=1, headers={"Content-Type": "text/xml"}
    )
    assert "is not known" in codec.from_json(message.data)["message"]
    assert rig.at_rest()


@on_rig()
async def test_wrong_arguments_and_failures_of_the_task_are_told_apart(rig: Rig):
    token = (await accepted(rig, slots=2))["token"]

    async def dispatch(method: str, arguments: Any) -> tuple[dict[str, Any], str]:
        body, headers = await rig.hand.request("dispatch", {"token": token, "method": method, "arguments": arguments})
        return body, headers["Nats-Service-Error-Code"]

    body, status = await dispatch("double", ["four"])
    assert (body["code"], body["may_have_started"], status) == ("invalid_arguments", False, "422")
    body, status = await dispatch("fail", {"text": "no\nluck \u2603"})
    assert (body["code"], body["may_have_started"], status) == ("task_failed", True, "500")
    rig.hub.max_payload = 10_000
    body, status = await dispatch("big", [20_000])
    assert body["code"] == "invalid_result"
    assert "a message takes at most 8976" in body["message"]
    assert rig.worker.core.load == Load(0, 2, 2)


@on_rig()
async def test_a_request_without_a_reply_subject_is_carried_out(rig: Rig):
    rig.hand.bus.publish("rig.worker.images.w1.resize", b'{"slots": 3}')
    rig.hand.bus.publish("rig.worker.images.w1.resize", b"nonsense")
    await rig.hand.quiet()
    assert rig.worker.core.load.total == 3


@on_rig()
async def test_a_bug_in_an_operation_is_an_answer_too(rig: Rig, monkeypatch):
    monkeypatch.setattr(type(rig.worker.core), "renew", lambda *args, **rest: 1 / 0)
    answer, headers = await rig.hand.request("renew", {"token": TOKEN})
    assert answer["code"] == "internal"
    assert headers["Nats-Service-Error-Code"] == "500"


@on_rig()
async def test_a_worker_that_leaves_answers_the_dispatch_that_runs(rig: Rig):
    token = (await accepted(rig))["token"]
    asking = asyncio.create_task(rig.hand.request("dispatch", {"token": token, "method": "wait"}))
    await rig.hand.quiet()
    await rig.worker.stop()
    answer, _ = await asking
    assert answer["code"] == "task_cancelled"
