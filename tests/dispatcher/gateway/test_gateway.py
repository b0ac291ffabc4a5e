"""The gateway on the in-memory bus, with scripted workers behind it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from gangline.bus.port.bus import Message, NoResponders
from gangline.dispatcher.gateway.gateway import Gateway, GatewaySettings
from gangline.schemas.errors.base import ClosedError
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskFlag

from ...support.dispatcher.fakes import Rig, obedient, silent, turns
from ...support.rows import in_rows
from ...waiting import loop_time


@asynccontextmanager
async def gateway(rig: Rig, **settings: Any) -> AsyncIterator[Gateway]:
    made = Gateway(rig.hub.connect("gateway"), names=rig.names, settings=GatewaySettings(**settings))
    async with made:
        yield made


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the gateway logs."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("gangline.gateway")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


async def ask(rig: Rig, subject: str, body: bytes = b"", fields: dict[str, str] | None = None) -> Message:
    return await rig.bus.request(f"test.call.{subject}", body, timeout_s=60, headers=fields)


def error(answer: Message) -> Any:
    assert answer.headers is not None and headers.ERROR in answer.headers
    body = json.loads(answer.data)
    assert answer.headers[headers.ERROR] and body["message"]
    return body["code"]


async def test_a_call_in_json_is_answered_with_the_bare_result(rig: Rig) -> None:
    worker = await rig.worker()
    async with gateway(rig):
        answer = await ask(rig, "images.echo", b'{"x": 1}')
    assert json.loads(answer.data) == ["w1", "echo"]
    assert dict(answer.headers or {}) == {headers.WORKER: "images.w1"}
    [task] = worker.heard_of(RequestOp.TASK)
    assert task[4] == {"x": 1} and task[8] == TaskFlag.JSON and 29_000 < task[5] <= 30_000


async def test_a_call_in_msgpack_is_answered_in_msgpack(rig: Rig) -> None:
    worker = await rig.worker()
    async with gateway(rig):
        answer = await ask(rig, "images.echo", codec.pack([b"\x00\xff"]), {"Content-Type": "application/msgpack"})
    assert codec.unpack(answer.data) == ["w1", "echo"]
    assert (answer.headers or {})["Content-Type"] == "application/msgpack"
    [task] = worker.heard_of(RequestOp.TASK)
    assert task[3] == [b"\x00\xff"] and task[8] == 0


async def test_a_header_that_is_perhaps_misspelt_is_warned_of_once(rig: Rig) -> None:
    await rig.worker()
    with logged() as records:
        async with gateway(rig):
            for _ in range(3):
                answer = await ask(rig, "images.echo", b"[1]", {"Gangline-Timout": "9", "Gangline-Delay": "5m"})
                assert json.loads(answer.data) == ["w1", "echo"]
    told = sorted(each.getMessage() for each in records if "means nothing" in each.getMessage())
    assert len(told) == 2 and "'Gangline-Delay'" in told[0] and told[0].endswith("is ignored")
    assert told[1] == (
        "a call of images.echo has a header 'Gangline-Timout', which means nothing on a call and is ignored: "
        "did you mean 'Gangline-Timeout'?"
    )


async def test_a_result_that_cannot_be_sent_on_is_an_error_of_its_call_alone(rig: Rig) -> None:
    worker = await rig.worker()
    async with gateway(rig) as made:
        await ask(rig, "images.echo")  # finds the pool
        worker.behave = silent
        calls = [asyncio.ensure_future(ask(rig, "images.echo")) for _ in range(2)]
        [_, *tasks] = await worker.hears(RequestOp.TASK, 3)
        too_large = "x" * (rig.bus.max_payload - 500)  # fits into a worker's answer, not beside the headers of ours
        for task, result in zip(tasks, (too_large, "done"), strict=True):
            worker.answer((AnswerOp.OK, task[1], result))
        refused, done = [await call for call in calls]
        assert error(refused) == "invalid_result" and json.loads(done.data) == "done"
        assert made.statistics()["pending"] == 0


async def test_headers_travel(rig: Rig) -> None:
    worker = await rig.worker(max_models=1)
    async with gateway(rig):
        await ask(rig, "images.echo", b"", {headers.TIMEOUT: "3", headers.KEY: "k", headers.MODEL: "m"})
    [task] = worker.heard_of(RequestOp.TASK)
    assert 2900 < task[5] <= 3000
    assert (task[9]["key"], task[9]["model"]) == ("k", "m")


@pytest.mark.parametrize(
    ("subject", "body", "fields", "code"),
    [
        ("images", b"", None, "invalid_name"),
        ("images.echo.more", b"", None, "invalid_name"),
        ("images.echo", b"{", None, "malformed_message"),
        ("images.echo", b"\xc1", {"Content-Type": "application/msgpack"}, "malformed_message"),
        ("images.echo", b"<a/>", {"Content-Type": "text/xml"}, "malformed_message"),
        ("images.echo", b"5", None, "invalid_request"),
        pytest.param("images.echo", b"[" + b"[]," * 50_000 + b"[]]", None, "payload_too_large", id="too large"),
        ("images.echo", b"", {headers.TIMEOUT: "soon"}, "invalid_request"),
        ("images.nope", b"", None, "unknown_method"),
        ("nobody.echo", b"", None, "no_workers"),
    ],
)
async def test_bad_calls_are_answered_with_their_error(
    rig: Rig, subject: str, body: bytes, fields: dict[str, str] | None, code: str
) -> None:
    await rig.worker()
    async with gateway(rig) as served:
        answer = await ask(rig, subject, body, fields)
        if (fields or {}).get("Content-Type") == "application/msgpack":
            assert codec.unpack(answer.data)["code"] == code
        else:
            assert error(answer) == code
        assert served.statistics()["errors"] == 1


async def test_a_call_without_a_reply_subject_runs_and_its_failure_is_logged(rig: Rig) -> None:
    worker = await rig.worker()
    with logged() as records:
        async with gateway(rig):
            rig.bus.publish("test.call.images.echo", b"[1]")
            await worker.hears(RequestOp.TASK)
            rig.bus.publish("test.call.images.nope", b"")
            await turns(50)
    assert any(getattr(record, "action", "") == "gateway.unheard_error" for record in records)


async def test_more_calls_than_may_be_under_way_are_refused_at_once(rig: Rig) -> None:
    await rig.worker(slots=10, behave=silent)
    async with gateway(rig, max_pending=2) as served:
        waiting = [asyncio.ensure_future(ask(rig, "images.echo")) for _ in range(2)]
        await turns(50)
        assert error(await ask(rig, "images.echo")) == "queue_full"
        assert served.statistics()["pending"] == 2
    for answer in await asyncio.gather(*waiting):
        assert error(answer) == "closed"


async def test_calls_of_more_bytes_than_may_be_under_way_are_refused_at_once(rig: Rig) -> None:
    await rig.worker(slots=10, behave=silent)
    body = b'["' + b"x" * 400_000 + b'"]'
    async with gateway(rig, max_pending_bytes=1 << 20) as served:
        waiting = [asyncio.ensure_future(ask(rig, "images.echo", body)) for _ in range(2)]
        await turns(50)
        assert error(await ask(rig, "images.echo", body)) == "queue_full"
        assert served.statistics()["pending_bytes"] == 2 * len(body)
        small = asyncio.ensure_future(ask(rig, "images.echo", b"[1]"))
        await turns(50)
        assert served.statistics()["pending"] == 3
    for answer in await asyncio.gather(small, *waiting):
        assert error(answer) == "closed"
    assert served.statistics()["pending_bytes"] == 0


async def test_the_default_timeout_ends_a_call(rig: Rig) -> None:
    await rig.worker(behave=silent)
    async with gateway(rig, default_timeout_s=2):
        began = loop_time()
        assert error(await ask(rig, "images.echo")) == "deadline_exceeded"
        assert loop_time() - began == pytest.approx(2, abs=0.1)


async def test_draining_finishes_what_is_under_way_and_takes_nothing_new(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    async with gateway(rig) as served:
        call = asyncio.ensure_future(ask(rig, "images.echo"))
        [task] = await worker.hears(RequestOp.TASK)
        draining = asyncio.ensure_future(served.drain())
        await turns()
        with pytest.raises(NoResponders):
            await ask(rig, "images.echo")
        worker.answer((AnswerOp.OK, task[1], "done"))
        assert json.loads((await call).data) == "done"
        await draining
        await served.wait_closed()


async def test_calls_that_were_on_their_way_to_a_gateway_that_drains_are_answered(rig: Rig) -> None:
    await rig.worker(slots=100)
    async with gateway(rig) as one, gateway(rig):
        draining, calls = asyncio.ensure_future(one.drain()), []
        for _ in range(20):
            calls += [asyncio.ensure_future(ask(rig, "images.echo")) for _ in range(4)]
            await asyncio.sleep(0)
        await draining
        answers = await asyncio.gather(*calls)
        assert one.statistics()["requests"]
    assert not any(answer.headers and headers.ERROR in answer.headers for answer in answers)


async def test_a_drain_that_takes_too_long_ends_the_rest(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    async with gateway(rig) as served:
        call = asyncio.ensure_future(ask(rig, "images.echo"))
        await worker.hears(RequestOp.TASK)
        await served.drain(grace_s=1)
        assert error(await call) == "closed"
        await worker.hears(RequestOp.CANCEL)


async def test_gateways_are_found_as_services(rig: Rig) -> None:
    await rig.worker()
    async with gateway(rig):
        await ask(rig, "images.echo")
        info = json.loads((await rig.bus.request("$SRV.INFO.gangline-gateway", timeout_s=1)).data)
        stats = json.loads((await rig.bus.request("$SRV.STATS.gangline-gateway", timeout_s=1)).data)
    assert info["endpoints"][0]["subject"] == "test.call.>"
    assert stats["endpoints"][0]["num_requests"] == 1


async def test_to_stop_it_ends_its_start_and_nothing_listens_any_more(rig: Rig) -> None:
    made = Gateway(rig.hub.connect("gateway"), names=rig.names)
    started, start = asyncio.Event(), made.router.start

    async def late() -> None:
        await started.wait()
        await start()

    made.router.start = late  # type: ignore[method-assign]
    starting = asyncio.ensure_future(made.start())
    await asyncio.sleep(1)
    await made.stop()
    started.set()
    with pytest.raises(ClosedError, match="stopped while it started"):
        await starting
    with pytest.raises(NoResponders):
        await ask(rig, "images.echo")
    assert made.statistics()["state"] == "closed"


# -- tenants ------------------------------------------------------------------------------------------------------


def of(tenant: str) -> dict[str, str]:
    """As the server marks requests from that account."""
    return {headers.REQUEST_INFO: json.dumps({"acc": tenant, "rtt": 1})}


async def test_a_tenant_waits_for_no_more_than_its_share_of_anothers_calls(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=1)
    async with gateway(rig):
        answers: list[str] = []

        async def call(tenant: str) -> None:
            await ask(rig, "images.echo", b"", of(tenant))
            answers.append(tenant)

        greedy = [asyncio.ensure_future(call("greedy")) for _ in range(40)]
        [first] = await worker.hears(RequestOp.TASK)
        modest = [asyncio.ensure_future(call("modest")) for _ in range(3)]
        await turns()
        worker.behave = obedient
        worker.answer((AnswerOp.OK, first[1], "done"))
        await asyncio.gather(*modest)
        assert answers.count("greedy") <= 1 + len(modest) + 1, answers
        await asyncio.gather(*greedy)


async def test_a_tenant_that_calls_without_end_leaves_room_for_others(rig: Rig) -> None:
    await rig.worker(behave=silent, slots=1)
    async with gateway(rig, max_pending=9, tenant_share=0.5) as served:
        waiting = [asyncio.ensure_future(ask(rig, "images.echo", b"", of("greedy"))) for _ in range(20)]
        await turns()
        assert served.statistics()["pending"] == 5
        refused = [json.loads(call.result().data) for call in waiting if call.done()]
        assert len(refused) == 15 and {each["code"] for each in refused} == {"queue_full"}
        assert refused[0]["details"] == {"tenant": "greedy", "pending": 5}
        waiting += [asyncio.ensure_future(ask(rig, "images.echo", b"", of("modest"))) for _ in range(20)]
        await turns()
        assert served.statistics()["pending"] == 7, "half of what is left"
        own = asyncio.ensure_future(ask(rig, "images.echo"))  # of Gangline's own account
        await turns()
        assert served.statistics()["pending"] == 8 and not own.done()
    await asyncio.gather(own, *waiting, return_exceptions=True)


def test_the_account_of_a_request_is_read_from_short_and_long_request_infos() -> None:
    for more in ("", "x" * 10_000):
        for account in ("shop", "lab", "shop"):
            info = json.dumps({"acc": account, "rtt": 1, "more": more})
            assert headers.account_of({headers.REQUEST_INFO: info}) == account


@in_rows("text", ["", "{", "[]", "null", "{}", '{"acc": 1}', "[" * 100_000])
def test_what_a_client_of_our_own_account_writes_as_request_info_names_no_tenant(text: str) -> None:
    assert headers.account_of({headers.REQUEST_INFO: text}) == ""
