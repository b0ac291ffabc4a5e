"""Leases, by frames and by requests."""

from __future__ import annotations

import pytest

from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerOp, RequestOp, ReserveFlag

from ..waiting import until
from .conftest import Refusal, Router, Subject, reserve, task

pytestmark = [pytest.mark.server, pytest.mark.processes]


async def test_a_lease_is_granted_seen_in_the_ledger_used_and_released(subject: Subject):
    granted = await subject.request("reserve", {"slots": 2, "ttl_s": 30, "owner": "me, by hand"})
    assert granted["accepted"] and granted["load"]["reserved"] == 2
    token = granted["token"]
    await until(lambda: _seen(subject, token))
    assert await subject.request("dispatch", {"token": token, "method": "count", "arguments": {"text": "a b"}}) == 2
    assert await subject.request("dispatch", {"token": token, "method": "count", "arguments": ["a b c"]}) == 3
    assert (await subject.request("renew", {"token": token, "ttl_s": 60}))["ttl_s"] == pytest.approx(60, abs=1)
    assert (await subject.request("release", {"token": token}))["released"] is True
    assert (await subject.request("release", {"token": token}))["released"] is False
    await until(subject.none_seen)
    assert (await subject.load())["ongoing"] == 0


async def test_msgpack_is_answered_with_msgpack(subject: Subject):
    granted = await subject.request("reserve", {"slots": 1}, fmt=Format.MSGPACK)
    body = {"token": granted["token"], "method": "count", "arguments": {"text": "a b"}}
    assert await subject.request("dispatch", body, fmt=Format.MSGPACK) == 2


async def test_an_object_without_fields_reserves_one_slot(subject: Subject):
    granted = await subject.request("reserve", {})
    assert granted["accepted"] and granted["ttl_s"] == 15 and granted["load"]["reserved"] == 1


async def test_what_is_reserved_is_kept_from_everybody_else(subject: Subject):
    await subject.request("reserve", {"slots": 2})
    router = await subject.router()
    assert (await router.ask(task(1, "count", "a")))[2] == "full"
    assert (await router.ask(reserve(2)))[2] == "full"
    assert (await subject.request("reserve", {}))["accepted"] is False


async def test_the_same_reserve_again_gets_the_same_lease(subject: Subject, router: Router):
    first = await router.ask(reserve(1))
    assert await router.ask(reserve(1)) == first
    by_hand = await subject.request("reserve", {"rid": "r1"})
    assert (await subject.request("reserve", {"rid": "r1"}))["token"] == by_hand["token"]
    assert (await subject.load())["reserved"] == 2


async def test_a_release_that_overtakes_its_reserve_refuses_it(subject: Subject, router: Router):
    router.send((RequestOp.RELEASE, 1, None))
    assert (await router.ask(reserve(1)))[2] == "expired"
    await subject.request("release", {"rid": "r1"})
    assert (await subject.request("reserve", {"rid": "r1"}))["reason"] == "expired"
    assert (await subject.load())["reserved"] == 0


async def test_a_single_use_token_admits_one_task(subject: Subject, router: Router):
    token = (await router.ask(reserve(1, flags=ReserveFlag.SINGLE_USE)))[2]
    assert (await router.ask(task(2, "count", "a", token=token)))[2] == 1
    again = await router.ask(task(3, "count", "a", token=token))
    assert again[0] == AnswerOp.ERROR and again[2] == "unknown_token"
    await until(subject.none_seen)


async def test_a_lease_admits_as_many_tasks_at_once_as_it_has_slots(router: Router):
    token = (await router.ask(reserve(1)))[2]
    router.send(task(2, "pause", 60.0, token=token))
    assert (await router.ask(task(3, "count", "a", token=token)))[2] == "lease_busy"


async def test_a_grant_that_nobody_claims_frees_itself(subject: Subject, router: Router):
    token = (await router.ask(reserve(1, claim_ms=300)))[2]
    await until(subject.idle)
    assert (await router.ask(task(2, "count", "a", token=token)))[2] == "lease_expired"


async def test_a_lease_that_is_not_renewed_ends_and_its_slots_come_back(subject: Subject):
    granted = await subject.request("reserve", {"ttl_s": 300})
    await subject.request("renew", {"token": granted["token"], "ttl_s": 1})
    await until(subject.idle, pause_s=0.1)
    with pytest.raises(Refusal) as caught:
        await subject.request("renew", {"token": granted["token"]})
    assert (caught.value.code, caught.value.status) == ("lease_expired", 410)


async def test_renewing_keeps_a_lease(subject: Subject, router: Router):
    token = (await router.ask(reserve(1, ttl_ms=60_000, claim_ms=400)))[2]
    assert (await router.ask((RequestOp.RENEW, 2, token, 60_000)))[0] == AnswerOp.RENEWED
    assert (await subject.request("stats"))["leases"][0]["expires_in_s"] > 50


async def test_a_lease_with_the_ledger_first_has_its_revision_as_fence(subject: Subject):
    granted = await subject.request("reserve", {"ledger": "sync"})
    entry = await subject.ledger.get(subject.names.lease_key(subject.id, granted["token"]))
    assert entry is not None and granted["fence"] == entry.revision


async def test_a_bad_request_gets_an_error_and_holds_nothing(subject: Subject):
    for operation, body, code in (
        ("reserve", b"{nonsense", "malformed_message"),
        ("reserve", {"slots": -1}, "invalid_request"),
        ("reserve", {"slotz": 1}, "invalid_request"),
        ("reserve", {"slots": 99}, "invalid_request"),
        ("reserve", b"[1]", "invalid_request"),
        ("dispatch", {"token": "nope", "method": "count"}, "unknown_token"),
        ("dispatch", {}, "invalid_request"),
        ("renew", {"token": "nope"}, "unknown_token"),
        ("release", {}, "invalid_request"),
        ("renew", {"token": "nope", "epoch": 5}, "stale_epoch"),
        ("launder", {}, "unknown_method"),
    ):
        with pytest.raises(Refusal) as caught:
            await subject.request(operation, body)
        assert caught.value.code == code, (operation, body)
        assert (await subject.load())["ongoing"] == 0, (operation, body)


async def test_an_unknown_method_on_a_lease_gets_an_error(subject: Subject):
    token = (await subject.request("reserve", {}))["token"]
    with pytest.raises(Refusal) as caught:
        await subject.request("dispatch", {"token": token, "method": "cuont"})
    assert (caught.value.code, caught.value.status) == ("unknown_method", 404)


async def _seen(subject: Subject, token: str) -> bool:
    return subject.names.lease_key(subject.id, token) in await subject.lease_keys()
