"""Calls from other languages: what is understood."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gangline.dispatcher.gateway.gateway import PlainRequest
from gangline.schemas.catalogue.catalogue import CALL_HEADERS
from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.codec import Format

from ...support.rows import in_rows


def parse(body: bytes, given_headers: dict[str, str] | None = None, fmt: Format = Format.JSON) -> PlainRequest:
    return PlainRequest.parse(codec.decode(body, fmt), given_headers, 30.0)


@in_rows(
    "body, args, kwargs",
    [
        (b"", [], {}),
        (b"null", [], {}),
        (b"{}", [], {}),
        (b"[]", [], {}),
        (b'{"path": "a.png", "width": 3}', [], {"path": "a.png", "width": 3}),
        (b'["a.png", 3]', ["a.png", 3], {}),
    ],
)
def test_objects_are_named_arguments_and_arrays_positional_ones(body: bytes, args: Any, kwargs: Any) -> None:
    call = parse(body)
    assert (call.args, call.kwargs, call.options.timeout_s) == (args, kwargs, 30.0)


@in_rows("body", [b"3", b'"text"', b'"\\"x\\\\"', b"true", b"1.5"])
def test_a_bare_value_is_an_error_that_says_what_to_send(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="object of named arguments, or an array") as caught:
        parse(body)
    example = caught.value.message.partition("for example ")[2]
    assert parse(example.encode()).args == [codec.from_json(body)], "can be sent as it stands"


@given(st.text() | st.integers() | st.binary() | st.floats() | st.booleans())
def test_the_example_for_a_bare_value_is_json(body: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(codec.pack(body) if not isinstance(body, int) or abs(body) < 1 << 63 else b"3", None, Format.MSGPACK)
    assert len(parse(caught.value.message.partition("for example ")[2].encode()).args) == 1


def test_a_bound_is_written_in_full() -> None:
    with pytest.raises(InvalidRequest, match="at most 2592000, for example"):
        parse(b"", {headers.TIMEOUT: "1e99"})


def test_headers_are_options_in_any_case() -> None:
    call = parse(
        b"",
        {"gangline-timeout": "2.5", "Gangline-Key": "u7", "GANGLINE-MODEL": "m", "Gangline-Idempotent": "True"}
        | {"traceparent": "00-1-2-01"},
    )
    options = call.options
    assert (options.timeout_s, options.key, options.model, options.idempotent) == (2.5, "u7", "m", True)
    assert call.parent == "00-1-2-01"


def understood(given: dict[str, str]) -> PlainRequest | str:
    try:
        return PlainRequest.parse([], given, 30.0)._replace(unknown_headers=())
    except InvalidRequest as error:
        return error.message


@in_rows("name", [text for text in vars(headers).values() if str(text).startswith("Gangline-")])
def test_exactly_the_headers_that_are_read_are_documented_and_any_other_is_unknown(name: str) -> None:
    has_a_meaning = understood({name: "true"}) != understood({})
    assert has_a_meaning == (name in CALL_HEADERS)
    if not has_a_meaning:
        assert PlainRequest.parse([], {name.upper(): "true"}, 30.0).unknown_headers == (name.upper(),)


def test_headers_of_others_are_not_ours_to_judge() -> None:
    given = {"X-Gangline-Key": "1", "tracestate": "a=b", "Content-Type": "application/json", "Nats-Request-Info": "{}"}
    assert PlainRequest.parse([], given, 30.0).unknown_headers == ()


@in_rows("bad", ["", "0", "-1", "soon", "nan", "inf", "1e99"])
def test_a_timeout_that_is_none_is_an_error(bad: str) -> None:
    with pytest.raises(InvalidRequest, match=headers.TIMEOUT):
        parse(b"", {headers.TIMEOUT: bad})


def test_an_unclear_flag_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=headers.IDEMPOTENT):
        parse(b"", {headers.IDEMPOTENT: "perhaps"})
    assert parse(b"", {headers.IDEMPOTENT: "false"}).options.idempotent is False


def test_msgpack_maps_need_text_for_names() -> None:
    with pytest.raises(InvalidRequest, match="argument name 1"):
        parse(codec.pack({1: 2}), None, Format.MSGPACK)


@given(st.binary(max_size=40), st.sampled_from(list(Format)))
def test_whatever_comes_is_parsed_or_refused(body: bytes, fmt: Format) -> None:
    try:
        call = parse(body, None, fmt)
    except InvalidRequest:
        return
    assert not (call.args and call.kwargs)
