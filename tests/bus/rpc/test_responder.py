"""Answers, and what they say to who asked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from pydantic import BaseModel

from gangline.bus.port.bus import Bus, Message
from gangline.bus.rpc.requester import error_in, parse_answer, raise_if_error, read_answer
from gangline.bus.rpc.responder import CountingResponder, OperationTable, Responder
from gangline.schemas.errors.base import (
    Disconnected,
    GanglineError,
    InvalidResult,
    MalformedMessage,
    PayloadTooLarge,
    TaskFailed,
    UnknownMethod,
)
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.codec import Format
from gangline.telemetry.logs import logger_for

from ...support.logs import records_of

MSGPACK = {"Content-Type": "application/msgpack"}


class Number(BaseModel):
    number: int


class Text(BaseModel):
    text: str


class Sent:
    """As much of a bus as an answer needs."""

    def __init__(self, max_payload: int = 10_000) -> None:
        self.max_payload = max_payload
        self.answers: list[Message] = []
        self.is_up = True

    def publish(self, subject: str, data: bytes, *, headers: dict[str, str] | None = None) -> None:
        if not self.is_up:
            raise Disconnected("no connection")
        self.answers.append(Message(subject=subject, data=data, headers=headers))


@pytest.fixture
def bus() -> Sent:
    return Sent()


def asked(bus: Sent, data: bytes = b"", fields: dict[str, str] | None = None, reply: str = "inbox") -> Responder:
    message = Message(subject="a.b", data=data, headers=fields, reply=reply)
    return Responder(cast("Bus", bus), message, logger_for("test"))


@pytest.mark.parametrize("fields", [None, MSGPACK])
def test_an_answer_has_the_format_of_its_request_and_can_be_read_by_who_asked(fields, bus):
    fmt = Format.of(fields)
    responder = asked(bus, codec.encode({"a": 1}, fmt), fields)
    assert responder.body() == {"a": 1}
    responder.reply(Number(number=5))
    (answer,) = bus.answers
    assert answer.subject == "inbox" and (answer.headers or None) == fields
    assert read_answer(answer, Number, "it") == Number(number=5)
    with pytest.raises(MalformedMessage, match="unreadable answer from it"):
        parse_answer(answer, Text, "it")


def test_only_the_first_answer_counts(bus):
    responder = asked(bus)
    assert responder.is_heard and not responder.answered
    responder.reply(Number(number=1))
    responder.fail(GanglineError("late"))
    responder.reply(Number(number=2))
    assert responder.answered and [answer.data for answer in bus.answers] == [b'{"number":1}']


def test_without_a_reply_subject_nothing_is_sent(bus):
    responder = asked(bus, reply="")
    responder.reply(Number(number=1))
    assert responder.answered and not responder.is_heard and bus.answers == []


def test_an_answer_that_cannot_be_sent_is_logged_and_no_more(caplog, bus):
    bus.is_up = False
    with caplog.at_level("DEBUG", logger="gangline.test"):
        asked(bus).reply(Number(number=1))
    assert [record.action for record in records_of(caplog, "gangline.test")] == ["answer.lost"]


def test_what_does_not_fit_is_answered_shorter_or_with_an_error_that_has_both_sizes():
    bus = Sent(2000)
    asked(bus).reply(Text(text="x" * 3000), shorter=Text(text="x"))
    assert read_answer(bus.answers[0], Text, "it").text == "x"
    asked(bus).reply(Text(text="x" * 3000))
    with pytest.raises(PayloadTooLarge, match="3011 bytes and a message takes at most 976"):
        raise_if_error(bus.answers[1])


def test_results_are_bare_and_name_their_worker(bus):
    asked(bus).result({"a": 1}, "p.w")
    asked(bus, fields=MSGPACK).result({"a": 1}, "")
    assert (bus.answers[0].data, bus.answers[0].headers) == (b'{"a":1}', {"Gangline-Worker": "p.w"})
    assert codec.unpack(bus.answers[1].data) == {"a": 1} and bus.answers[1].headers == MSGPACK


def test_a_result_that_cannot_be_sent_is_an_error():
    responder = asked(Sent(2000))
    with pytest.raises(InvalidResult, match="the result of a.b is 3002 bytes and a message takes at most 976"):
        responder.result("x" * 3000, "p.w", what="the result of a.b")
    with pytest.raises(InvalidResult, match="the result cannot be written as JSON"):
        responder.result(object(), "p.w")
    assert not responder.answered


def test_errors_are_one_line_in_the_header_and_more_in_the_body(bus):
    asked(bus).fail(TaskFailed("b\u00f6se\r\nzeile", details={"type": "X"}))
    (answer,) = bus.answers
    assert answer.headers == {headers.ERROR: "b\\xf6se zeile", headers.ERROR_CODE: "500"}
    error = error_in(answer)
    assert type(error) is TaskFailed
    assert (error.message, error.details, error.may_have_started) == ("b\u00f6se\r\nzeile", {"type": "X"}, True)
    asked(bus).fail(GanglineError(" "))
    assert (bus.answers[1].headers or {})[headers.ERROR] == "error"


@pytest.mark.parametrize("fields", [None, MSGPACK])
def test_an_error_always_fits(fields: dict[str, str] | None):
    bus = Sent(4096)
    asked(bus, fields=fields).fail(GanglineError("m" * 50_000, details={"d": "x" * 50_000}))
    asked(bus, fields=fields).fail(GanglineError("odd", details={"d": object()}))
    huge, odd = bus.answers
    assert len(huge.data) + sum(map(len, (huge.headers or {}).values())) < 4096
    said = error_in(huge)
    assert said is not None and (said.message, said.details) == ("m" * 2000, {})
    assert str(error_in(odd)) == str(GanglineError("odd"))


def test_a_request_in_an_unknown_format_is_answered_in_json(bus):
    responder = asked(bus, b"<a/>", {"Content-Type": "text/xml"})
    with pytest.raises(MalformedMessage, match="text/xml") as caught:
        responder.body()
    responder.fail(caught.value)
    with pytest.raises(MalformedMessage, match="text/xml"):
        raise_if_error(bus.answers[0])


def test_an_error_without_a_body_is_its_header():
    error = error_in(Message(subject="x", data=b"no json", headers={headers.ERROR: "gone"}))
    assert type(error) is GanglineError and error.message == "gone"
    assert error_in(Message(subject="x", data=b"{}")) is None


async def test_each_request_is_counted_and_a_bug_is_told_without_its_details(caplog, bus):
    counting = CountingResponder(cast("Bus", bus), logger_for("test"))

    def handle(body: Any) -> Number:
        return Number(number=int(body["n"]))

    async def later(body: Any) -> Number:
        await asyncio.sleep(1)
        return handle(body)

    def message(data: bytes) -> Message:
        return Message(subject="a.b", data=data, reply="inbox")

    counting.serve(message(b'{"n": 1}'), handle)
    counting.serve(message(b"{"), handle)
    counting.serve(message(b'{"secret": 1}'), handle)
    counting.serve_later(message(b'{"n": 4}'), later)
    assert counting.requests == 3
    await asyncio.sleep(2)
    assert (counting.requests, counting.errors) == (4, 2)
    numbers = [None if error_in(each) else Number.model_validate_json(each.data).number for each in bus.answers]
    assert numbers == [1, None, None, 4]
    assert "secret" not in str(error_in(bus.answers[2])) and "KeyError" in counting.last_error
    assert [record.action for record in records_of(caplog, "gangline.test")] == ["request.failed"]


def test_each_operation_is_served_and_counted_by_its_name(caplog, bus):
    counts = {"add": [4, 1]}
    table = OperationTable("a shop", cast("Bus", bus), logger_for("test"), counts=counts)
    later: list[Responder] = []

    def add(responder: Responder, body: Any) -> None:
        responder.reply(Number(number=body["a"] + body["b"]))

    def refuse(responder: Responder, body: Any) -> None:
        raise TaskFailed("no")

    def keep(responder: Responder, body: Any) -> None:
        later.append(responder)

    table.add({"add": add, "refuse": refuse})
    table.add({"keep": keep})
    for operation, data in (("add", b'{"a": 1, "b": 2}'), ("add", b"{}"), ("refuse", b""), ("keep", b""), ("sub", b"")):
        table.take(operation, Message(subject=f"shop.{operation}", data=data, reply="inbox"))
    assert counts == {"add": [6, 2], "refuse": [1, 1], "keep": [1, 0]}
    assert [type(error_in(answer)) for answer in bus.answers] == [type(None), GanglineError, TaskFailed, UnknownMethod]
    assert "a shop has no operation 'sub'; it has: add, refuse, keep" in str(error_in(bus.answers[-1]))
    later[0].reply(Number(number=9))
    assert read_answer(bus.answers[-1], Number, "it").number == 9
    assert [record.getMessage() for record in records_of(caplog, "gangline.test")] == ["request shop.add failed"]
