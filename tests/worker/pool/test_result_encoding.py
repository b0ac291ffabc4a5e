"""What tasks return becomes plain wire values, or an error that names type and place."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, field_serializer

from gangline.schemas.errors.base import InvalidRequest, InvalidResult, InvalidSettings
from gangline.schemas.limits import MAX_DEPTH
from gangline.schemas.wire import codec
from gangline.schemas.wire.plain_values import to_wire
from gangline.worker.pool.pool import Pool

from ...scale import repetitions
from ...support.rows import in_rows


class Level(enum.IntEnum):
    LOW = 1


class Size(BaseModel):
    width: int
    blob: bytes = b""
    at: dt.datetime | None = None


class Secret(BaseModel):
    value: str

    @field_serializer("value")
    def hide(self, value: str) -> str:
        return "*" * len(value)


@dataclasses.dataclass
class Point:
    x: float
    size: Size


class Pair(NamedTuple):
    a: int
    b: str


def writer(annotation: Any = None, *, streams: bool = False):
    """The result writer of a task with that return annotation (None: without one)."""
    return encoder(annotation, streams=streams).write


def encoder(annotation: Any = None, *, streams: bool = False):
    if streams:

        def work():
            yield None
    else:

        def work():
            return None

    if annotation is not None:
        work.__annotations__["return"] = annotation
    pool = Pool("p")
    pool.task(work)
    return pool.tasks["work"].result


@in_rows(
    "value, plain",
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        ("é", "é"),
        (b"\x00", b"\x00"),
        ((1, (2,)), [1, [2]]),
        ({1}, [1]),
        (deque([1]), [1]),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        ({"a": {1: None}}, {"a": {1: None}}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (UserDict(a=1), {"a": 1}),
        ({"a": 1}.values(), [1]),
        (Level.LOW, 1),
        (Size(width=1, blob=b"\xff"), {"width": 1, "blob": b"\xff", "at": None}),
        (Secret(value="abc"), {"value": "***"}),
        (Point(1.0, Size(width=2)), {"x": 1.0, "size": {"width": 2, "blob": b"", "at": None}}),
        (Pair(1, "b"), [1, "b"]),
        ([dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], ["2026-01-02T00:00:00Z"]),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.10"), "1.10"),
        ({dt.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        ({Level.LOW: 1}, {1: 1}),
    ],
)
def test_a_result_becomes_plain_wire_values(value, plain):
    for written in (to_wire(value, "p.work"), writer()(value)):
        assert written == plain
        assert type(written) is type(plain)
        codec.pack(written)
    assert encoder().pack((1, 2), value) == codec.pack((1, 2, plain))


def test_a_model_is_checked_again_only_where_its_configuration_says_so():
    class Checked(Size):
        model_config = ConfigDict(revalidate_instances="always")

    wrong = Size.model_construct(width="wide", blob=b"", at=None)
    assert writer(Size)(wrong) == {"width": "wide", "blob": b"", "at": None}
    with pytest.raises(InvalidResult, match=r"result.width does not fit the annotation"):
        writer(Checked)(Checked.model_construct(width="wide", blob=b"", at=None))


class Opaque:
    pass


def _loop_of_lists() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@in_rows(
    "value, text",
    [
        (Opaque(), "p.work: result has the type Opaque, which cannot be serialized"),
        ({"a": [1, Opaque()]}, r"p\.work: result\.a\[1\] has the type Opaque"),
        (Point(1.0, Opaque()), r"result\.size has the type Opaque"),  # type: ignore[arg-type]
        ({(1, 2): 3}, "result has a key of the type tuple"),
        (1 << 64, "result is a whole number beyond 64 bits: return it as text"),
        ([-(1 << 63) - 1], r"result\[0\] is a whole number beyond 64 bits"),
        ("\ud800", "half a surrogate pair"),
        (
            dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=30))),
            "result is a time whose offset from UTC has seconds",
        ),
        ({"\ud800": 1}, "half a surrogate pair"),
        (_loop_of_lists(), "nested deeper than 64 levels, or contains itself"),
        ((x for x in "ab"), "result is a generator: yield from the task itself to stream"),
        (len, "result has the type builtin_function_or_method"),
        (Opaque, "result has the type type"),
    ],
)
def test_what_has_no_form_on_the_wire_is_named_with_its_place(value, text):
    for write in (lambda value: to_wire(value, "p.work"), writer()):
        with pytest.raises(InvalidResult, match=text) as caught:
            write(value)
        assert caught.value.may_have_started


def test_a_forgotten_await_is_named_and_leaves_no_warning():
    with pytest.raises(InvalidResult, match="awaitable, never awaited: declare the task with 'async def'"):
        writer()(asyncio.sleep(0))
    with pytest.raises(InvalidResult, match="awaitable, never awaited: declare it with 'async def'"):
        writer(int)(asyncio.sleep(0))


@in_rows(
    "annotation, value, plain",
    [
        (int, 1, 1),
        (int, "12", 12),
        (float, 1, 1.0),
        (str, "a", "a"),
        (type(None), None, None),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Size], {"a": {"width": "3"}}, {"a": {"width": 3, "blob": b"", "at": None}}),
        (Size, {"width": "3"}, {"width": 3, "blob": b"", "at": None}),
        (Size, Size(width=1), {"width": 1, "blob": b"", "at": None}),
        (list[Point], [Point(1.0, Size(width=1))], [{"x": 1.0, "size": {"width": 1, "blob": b"", "at": None}}]),
        (dt.date, dt.date(2026, 1, 2), "2026-01-02"),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (Any, {"a": (1,)}, {"a": [1]}),
        (object, 3, 3),
    ],
)
def test_a_result_is_converted_by_its_annotation(annotation, value, plain):
    assert writer(annotation)(value) == plain


@in_rows(
    "annotation, value, text",
    [
        (int, "x", r"p\.work: result does not fit the annotation: .*valid integer.*, returned 'x' \(str\)"),
        (type(None), 1, "result does not fit the annotation: Input should be None, returned 1"),
        (list[Size], [{"width": 1}, {"width": "w"}], r"result\.1\.width does not fit the annotation"),
        (Size, None, "result does not fit the annotation"),
    ],
)
def test_a_result_that_differs_from_its_annotation_is_refused(annotation, value, text):
    with pytest.raises(InvalidResult, match=text):
        writer(annotation)(value)


@in_rows("annotation", [Iterator[Size], Generator[Size, None, str], AsyncIterator[Size]])
def test_items_are_converted_by_the_item_type(annotation):
    assert writer(annotation, streams=True)({"width": "1"}) == {"width": 1, "blob": b"", "at": None}


def test_a_return_annotation_that_pydantic_does_not_know_is_refused_at_declaration():
    with pytest.raises(InvalidSettings, match=r"p\.work: the result has the annotation Opaque"):
        writer(Opaque)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.dates() | st.uuids() | st.decimals() | st.just(Opaque()),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers() | st.dates(), inner),
    max_leaves=10,
)  # fmt: skip


@given(value=_values)
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
def test_what_is_packed_at_once_has_the_same_bytes_as_its_copy(value):
    result = encoder()

    def packed():
        try:
            return result.pack((1, 2), value)
        except (InvalidResult, InvalidRequest):
            return None

    try:
        copy = codec.pack((1, 2, result.write(value)))
    except InvalidResult:
        copy = None
    for _ in range(2):  # in one step, and, if that cannot be done, in several
        assert packed() == copy


def _nested(levels: int) -> list[Any]:
    return [_nested(levels - 1)] if levels else []


@in_rows(
    "value",
    [
        *map(_nested, (MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2)),
        [[]] * 100,
        [{"at": dt.date(2026, 1, 2)}] * 100,
        [msgpack.ExtType(1, b"a")],
        [msgpack.Timestamp(1)],
        {(1, 2): 3},
        {frozenset({1}): 2},
        {"a": Point(1.0, Size(width=2))},
        {"\u00d4\u0587\u00c7": "\u0564\u05d0\u01c0"},
        [1e300, -7.25, 1 << 63, -(1 << 63), 1 << 64],
        [bytearray(b"\xc7"), memoryview(b"\xd4\x01")],
    ],
)
def test_what_is_packed_in_one_step_is_what_a_copy_would_be(value):
    def outcome(encode):
        try:
            return encode()
        except (InvalidResult, InvalidRequest) as error:
            return type(error)

    result = encoder()
    copy = outcome(lambda: codec.pack((1, 2, result.write(value))))
    packed = [outcome(lambda: result.pack((1, 2), value)) for _ in range(2)]
    assert packed == [copy, copy] or (copy is InvalidResult and set(packed) <= {InvalidResult, InvalidRequest})
