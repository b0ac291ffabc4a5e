from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import tracemalloc
import uuid

import msgpack
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gangline.schemas.errors.base import InvalidRequest, InvalidSettings, MalformedMessage, PayloadTooLarge
from gangline.schemas.limits import MAX_CONTAINERS, MAX_DEPTH
from gangline.schemas.wire import codec
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.plain_values import pack_plain

from ...scale import repetitions
from ...support.rows import case

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
quickly = settings(max_examples=repetitions(10, whole=50))
both = pytest.mark.parametrize("fmt", list(Format))


class Colour(enum.Enum):
    RED = "red"


class Size(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    width: int = pydantic.Field(alias="w")
    secret: str = pydantic.Field(default="s", exclude=True)
    raw: bytes = b"\xff\x00"
    at: datetime.date = datetime.date(2024, 2, 29)


@dataclasses.dataclass
class Box:
    size: Size
    colour: Colour


# -- what both formats carry ------------------------------------------------------------------------------------------


@both
@given(value=plain)
@quickly
def test_a_plain_value_comes_back_as_it_was(fmt, value):
    assert codec.decode(codec.encode(value, fmt), fmt) == value


@quickly
@given(st.binary())
def test_bytes_come_back_from_msgpack_and_are_base64_text_in_json(value):
    assert codec.unpack(codec.pack({"b": value})) == {"b": value}
    assert base64.urlsafe_b64decode(json.loads(codec.to_json(value))) == value


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab")])
def test_other_kinds_of_buffers_are_bytes(value):
    assert codec.unpack(codec.pack(value)) == b"ab"
    assert codec.from_json(codec.to_json(value)) == "YWI="


@both
def test_models_dataclasses_and_enums_take_one_form_in_both_formats(fmt):
    box = Box(size=Size(w=3, more=[1]), colour=Colour.RED)  # type: ignore[call-arg]
    got = codec.decode(codec.encode(box, fmt), fmt)
    raw = got["size"].pop("raw")
    assert raw == (b"\xff\x00" if fmt is Format.MSGPACK else "_wA=")
    assert got == {"size": {"w": 3, "at": "2024-02-29", "more": [1]}, "colour": "red"}


@both
def test_dates_ids_decimals_paths_and_sets_become_what_pydantic_reads_back(fmt):
    value = {
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "took": datetime.timedelta(seconds=90),
        "id": uuid.UUID(int=5),
        "price": decimal.Decimal("1.50"),
        "path": pathlib.PurePosixPath("/a/b"),
        "seen": {7},
        "pair": (1, 2),
    }
    got = codec.decode(codec.encode(value, fmt), fmt)
    assert pydantic.TypeAdapter(datetime.datetime).validate_python(got["when"]) == value["when"]
    assert pydantic.TypeAdapter(datetime.timedelta).validate_python(got["took"]) == value["took"]
    assert pydantic.TypeAdapter(uuid.UUID).validate_python(got["id"]) == value["id"]
    assert pydantic.TypeAdapter(decimal.Decimal).validate_python(got["price"]) == value["price"]
    assert (got["path"], got["seen"], got["pair"]) == ("/a/b", [7], [1, 2])


def test_what_json_has_no_number_for_is_null():
    assert json.loads(codec.to_json([math.nan, math.inf, -math.inf, 1.5])) == [None, None, None, 1.5]


def test_a_timestamp_of_msgpack_is_an_aware_datetime():
    when = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    assert codec.unpack(msgpack.packb(msgpack.Timestamp.from_datetime(when))) == when


@both
def test_nothing_is_an_empty_body_and_none_is_written_out(fmt):
    assert codec.decode(b"", fmt) is None
    assert codec.encode(None, fmt) != b""
    assert codec.decode(codec.encode(None, fmt), fmt) is None


# -- what cannot be written -------------------------------------------------------------------------------------------


class Explodes(pydantic.BaseModel):
    @pydantic.model_serializer
    def boom(self) -> dict[str, int]:
        raise RuntimeError("boom")


def _ring() -> list[object]:
    ring: list[object] = []
    ring.append(ring)
    return ring


@both
@pytest.mark.parametrize(
    "value",
    [object(), lambda: None, "\ud800", Explodes(), _ring()],
    ids=["an object", "a function", "half a surrogate pair", "one that explodes", "a ring"],
)
def test_what_has_no_form_on_the_wire_is_an_error_that_says_so(fmt, value):
    with pytest.raises(InvalidRequest, match="cannot be written as"):
        codec.encode({"x": [value]}, fmt)


@given(plain)
@quickly
def test_a_failed_write_leaves_nothing_behind_in_the_next_one(value):
    with pytest.raises(InvalidRequest):
        codec.pack([1, "half", object()])
    assert codec.unpack(codec.pack(value)) == value


# -- what comes from outside ------------------------------------------------------------------------------------------


@both
@given(data=st.binary(min_size=1, max_size=200))
@example(data=b"\xc1")
@example(data=b"\xdd\xff\xff\xff\xff")
@example(data=b"\xc6\xff\xff\xff\xff")
@example(data=b"\x81\x90\x01")
@example(data=b"\xd4\x04x")
@example(data=b"\x91" * 5000)
@example(data=b"[" * 5000)
@example(data=b'{"a":1}{"a":2}')
@example(data=b"\xd6\xff\x00\x00\x00\x00")
@example(data=b"\xc7\x0c\xff" + b"\xff" * 12)
def test_any_bytes_are_a_value_or_a_malformed_message_and_nothing_else(fmt, data):
    try:
        value = codec.decode(data, fmt)
    except MalformedMessage as error:
        assert error.message
    else:
        codec.check_depth(value)


def test_two_values_in_one_body_are_refused():
    with pytest.raises(MalformedMessage, match="extra data"):
        codec.unpack(codec.pack(1) + codec.pack(2))
    with pytest.raises(MalformedMessage, match="trailing"):
        codec.from_json(b"1 2")


def test_unknown_extension_types_are_refused():
    with pytest.raises(MalformedMessage, match="extension type 4"):
        codec.unpack(msgpack.packb(msgpack.ExtType(4, b"x")))


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"k": inner}], ids=["lists", "maps"])
def test_nesting_is_bounded(make):
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = make(value)
    codec.check_depth(value)
    assert codec.decode(codec.pack(value), Format.MSGPACK) == value
    assert codec.decode(codec.to_json(value), Format.JSON) == value
    with pytest.raises(MalformedMessage, match=f"deeper than {MAX_DEPTH}"):
        codec.decode(codec.to_json(make(value)), Format.JSON)
    with pytest.raises(MalformedMessage, match=f"deeper than {MAX_DEPTH}"):
        codec.check_depth(make(value))


def test_brackets_in_text_and_side_by_side_are_not_depth():
    for value in ("[{" * 5000, [[] for _ in range(5000)]):
        assert codec.decode(codec.to_json(value), Format.JSON) == value


@both
def test_a_message_of_ours_is_written_as_what_it_dumps_to(fmt):
    class Inner(pydantic.BaseModel):
        when: datetime.timedelta
        words: tuple[str, ...]

    class Outer(pydantic.BaseModel):
        inner: Inner
        share: float
        missing: str | None = None
        more: dict[str, object]

    outer = Outer(
        inner=Inner(when=datetime.timedelta(seconds=1.5), words=("ä", "b")),
        share=math.inf,
        more={"at": datetime.date(2026, 1, 2), "list": [1, None, {"x": b"y"}]},
    )
    written = codec.decode(codec.encode_model(outer, fmt), fmt)
    assert written == codec.decode(codec.encode(outer.model_dump(mode="json"), fmt), fmt)


# -- budgets ----------------------------------------------------------------------------------------------------------


def msgpack_list(count: int, item: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


MANY = codec.most_containers
OVER = {
    "lists": (msgpack_list(MANY + 1, b"\x90"), Format.MSGPACK),
    "maps": (msgpack_list(MANY, b"\x81\xa1a\x80"), Format.MSGPACK),
    "lists of lists": (msgpack_list(1000, b"\xdc\x03\xe8" + b"\x90" * 1000), Format.MSGPACK),
    "json lists": (b"[" + b"[]," * MANY + b"[]]", Format.JSON),
    "json objects": (b"[" + b'{"a":"["},' * MANY + b"{}]", Format.JSON),
    "json lists after a text": (b'["\\\\","\\"",' + b"[]," * MANY + b"[]]", Format.JSON),
}


@pytest.mark.parametrize(("data", "fmt"), OVER.values(), ids=OVER)
def test_too_many_lists_and_maps_are_refused_and_not_built(data, fmt, monkeypatch):
    built = []
    monkeypatch.setattr(codec, "from_json", built.append)
    monkeypatch.setattr(codec, "check_depth", built.append)
    with pytest.raises(PayloadTooLarge, match=f"more than {MANY} lists and maps"):
        codec.decode_arguments(data, fmt)
    assert not built


@both
def test_large_arguments_within_the_budget_are_read(fmt):
    cases = [
        [[]] * (MANY - 1),
        "[{" * MANY,
        ['"[{\\'] * MANY,
        b"\x90" * 4 * MANY,
        list(range(4 * MANY)),
        "\u3010" * MANY,
        {"a": [{"b": "[]"}] * (MANY // 2)},
    ]
    for value in cases:
        with case(value):
            data = codec.encode(value, fmt)
            assert codec.decode_arguments(data, fmt) == (codec.from_json(data) if fmt is Format.JSON else value)


ATOMS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def containers(value):
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, (list, tuple)) else 0


@quickly
@given(st.lists(ATOMS | st.lists(VALUES).map(tuple) | st.dictionaries(st.text(), VALUES), min_size=1).map(tuple))
def test_no_frame_has_more_lists_and_maps_than_are_counted(frame):
    data = codec.pack(frame)
    counted = codec.count_containers(frame, data)
    assert containers(frame) <= counted <= len(data)
    assert containers(frame) <= codec.count_containers((), data) <= len(data), "without its values"


def test_bytes_beside_other_arguments_count_as_none():
    frame = (1, 7, "resize", (b"\x90" * MANY, 3), {"exact": True}, 1000, None, None, 0, {"key": "k"})
    assert codec.count_containers(frame, codec.pack(frame)) == 4


def test_a_request_without_arguments_is_small():
    assert codec.decode_request(b"[" + b"1," * 8000 + b"1]", Format.JSON)
    for data in (b"[" + b"1," * 8192 + b"1]", b"[[" + b"1," * 5000 + b"1],[" + b"1," * 5000 + b"1]]"):
        with pytest.raises(PayloadTooLarge, match="more than 8192 values"):
            codec.decode_request(data, Format.JSON)
    with pytest.raises(PayloadTooLarge, match="65537 bytes; at most 65536"):
        codec.decode_request(b" " * 65_537, Format.JSON)


@pytest.mark.parametrize("text", ["", "1024", "99999"])
def test_the_budget_of_containers_is_a_setting(text):
    assert codec._most_containers(text) == int(text or MAX_CONTAINERS)


@pytest.mark.parametrize("text", ["1023", "many", "-1", "1e6", "9" * 40])
def test_a_wrong_budget_names_the_variable(text):
    with pytest.raises(InvalidSettings, match="GANGLINE_MAX_CONTAINERS is"):
        codec._most_containers(text)


# -- the content type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "fmt"),
    [
        (None, Format.JSON),
        ({}, Format.JSON),
        ({"Other": "x"}, Format.JSON),
        ({"Content-Type": "application/json"}, Format.JSON),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, Format.JSON),
        ({"Content-Type": "application/msgpack"}, Format.MSGPACK),
        ({"Content-Type": "application/x-msgpack"}, Format.MSGPACK),
        ({"Content-Type": "application/vnd.msgpack"}, Format.MSGPACK),
    ],
)
def test_the_content_type_chooses_the_format_and_json_is_the_default(headers, fmt):
    assert Format.of(headers) is fmt


def test_an_unknown_content_type_is_refused_with_what_is_known():
    with pytest.raises(MalformedMessage, match="application/msgpack"):
        Format.of({"Content-Type": "application/xml"})


@pytest.mark.parametrize("write", [codec.pack, pack_plain])
def test_the_memory_of_a_large_value_is_not_kept(write):
    large = "x" * (8 << 20)
    write("warm up")
    tracemalloc.start()
    try:
        write(large)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most > 8 << 20, "it was measured"
    assert kept < 2 << 20


def test_a_value_may_be_packed_while_another_one_is_half_written():
    """By another thread, while a model's own serializer runs, or by that serializer."""

    class Nested(pydantic.BaseModel):
        inner: dict[str, int]

        @pydantic.field_serializer("inner")
        def packed(self, inner: dict[str, int]) -> bytes:
            return codec.pack(inner)

    class Wrong(pydantic.BaseModel):
        inner: int

        @pydantic.field_serializer("inner")
        def refuse(self, inner: int) -> int:
            raise ValueError("not today")

    value = ["before", Nested(inner={"a": 1}), "after"]
    with pytest.raises(InvalidRequest):
        codec.pack(["before", Wrong(inner=1)])
    assert codec.unpack(codec.pack(value)) == ["before", {"inner": codec.pack({"a": 1})}, "after"]
