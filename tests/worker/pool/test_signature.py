"""Arguments from the wire become what annotations say, or an error that says what is wrong with which."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import ipaddress
import pathlib
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from gangline.schemas.errors.base import InvalidArguments, InvalidSettings
from gangline.schemas.wire import codec
from gangline.schemas.wire.codec import Format
from gangline.worker.pool.pool import Pool

from ...scale import repetitions
from ...support.rows import in_rows


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(BaseModel):
    width: int = Field(gt=0)
    height: int = 1
    mask: bytes = b""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: dt.datetime
    size: Size
    colour: Colour


class Tree(BaseModel):
    leaf: bytes | None = None
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    raw: bytes = b""


class Pair(NamedTuple):
    key: str
    blob: bytes


class Options(TypedDict, total=False):
    blob: NotRequired[bytes]
    depth: int


def declare(function, **options):
    """The function as a task of its own pool."""
    pool = Pool("p")
    pool.task(name="work", **options)(function)
    return pool.tasks["work"]


def bind(function, *args, json=False, **kwargs):
    """What the function would be called with."""
    call = declare(function).bind(list(args), kwargs, json=json)
    return function(*call.args, **call.kwargs)


def test_each_kind_of_parameter_gets_its_arguments():
    def work(a: int, /, b: int, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> Any:
        return a, b, c, rest, d, e, more

    assert bind(work, 1, 2, d=4) == (1, 2, 3, (), 4, 5, {})
    assert bind(work, "1", "2", "30", "40", "50", d="4", x="9") == (1, 2, 30, (40, 50), 4, 5, {"x": 9})


def test_no_arguments_are_no_arguments_however_they_are_written():
    def work() -> str:
        return "ran"

    task = declare(work)
    for args, kwargs in ((None, None), ([], {}), ([], None), (None, {})):
        call = task.bind(args, kwargs)
        assert work(*call.args, **call.kwargs) == "ran"


def test_no_arguments_are_too_few_for_a_task_that_needs_some():
    def plain(a):  # type: ignore[no-untyped-def]
        return a

    def anything(a: Any) -> Any:
        return a

    def named(*, a: int) -> Any:
        return a

    for work in (plain, anything, named):
        with pytest.raises(InvalidArguments, match="missing parameter 'a'"):
            bind(work)


def test_an_annotation_that_names_nothing_is_reported_without_arguments_too():
    def work(a: Nowhere) -> Any:  # type: ignore[name-defined] # noqa: F821
        return a

    with pytest.raises(InvalidSettings, match="Nowhere"):
        bind(work)


def test_positional_only_parameters_can_be_named_on_the_wire():
    def work(a: int, b: int = 2, c: int = 3, /, d: int = 4) -> Any:
        return a, b, c, d

    assert bind(work, a="1") == (1, 2, 3, 4)
    assert bind(work, a=1, c=30, d=40) == (1, 2, 30, 40)
    assert bind(work, 1, b=20) == (1, 20, 3, 4)


def test_defaults_are_left_to_the_function():
    sentinel = object()

    def work(a: int | None = sentinel, *, b: Any = sentinel) -> Any:  # type: ignore[assignment]
        return a is sentinel, b is sentinel

    assert bind(work) == (True, True)
    assert bind(work, None) == (False, True)


def test_what_is_not_annotated_is_passed_as_it_came():
    def work(a, b: Any = None):
        return a, b

    assert bind(work, {"x": [1, "2"]}, "3") == ({"x": [1, "2"]}, "3")


@in_rows(
    "annotation, given_value, expected",
    [
        (int, "12", 12),
        (float, 1, 1.0),
        (bool, "yes", True),
        (str, "é", "é"),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (int | None, "3", 3),
        (list[int], ["1", 2], [1, 2]),
        (set[int], [1, 1, 2], {1, 2}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Literal["a", "b"], "a", "a"),
        (Colour, "red", Colour.RED),
        (dt.datetime, "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
        (dt.timedelta, "PT3S", dt.timedelta(seconds=3)),
        (uuid.UUID, "12345678123456781234567812345678", uuid.UUID("12345678123456781234567812345678")),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (pathlib.Path, "/a/b", pathlib.Path("/a/b")),
        (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
        (Size, {"width": 2}, Size(width=2)),
        (Point, {"x": 1, "y": "2"}, Point(1.0, 2.0)),
        (list[Size], [{"width": 2}], [Size(width=2)]),
        (Annotated[int, Field(ge=0, le=9)], "9", 9),
    ],
)
def test_a_value_becomes_what_the_annotation_says(annotation, given_value, expected):
    def work(x):
        return x

    work.__annotations__["x"] = annotation
    result = bind(work, given_value)
    assert result == expected
    assert type(result) is type(expected)
    assert bind(work, x=given_value) == expected


def test_wrong_arguments_are_named_with_what_was_expected_and_given():
    def work(a: int, size: Size, *, colour: Colour = Colour.RED) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        bind(work, "x", size={"width": -1, "height": "tall"}, colour="green")
    error = caught.value
    assert str(error) == (
        "p.work: a: Input should be a valid integer, unable to parse string as an integer, given 'x' (str); "
        "size.width: Input should be greater than 0, given -1 (int); "
        "size.height: Input should be a valid integer, unable to parse string as an integer, given 'tall' (str); "
        "colour: Input should be 'red' or 'blue', given 'green' (str)"
    )
    assert [problem["parameter"] for problem in error.details["problems"]] == [
        "a", "size.width", "size.height", "colour",
    ]  # fmt: skip
    assert [problem["expected"] for problem in error.details["problems"]][1::2] == ["greater than 0", "'red' or 'blue'"]
    assert not error.may_have_started
    codec.to_json(error.to_wire())


@in_rows(
    "args, kwargs, text",
    [
        ([], {}, "missing parameters 'a', 'b'"),
        ([1], {}, "missing parameter 'b'"),
        ([1], {"b": 1, "c": 2}, "no parameter 'c'; it has: a, b"),
        ([1, 2, 3], {}, "takes 2 arguments by place, 3 were given"),
        ([1, 2], {"a": 1}, "'a' was given twice, by place and by name"),
        ([None, 2], {}, r"a: Input should be a valid integer, given None \(NoneType\)"),
    ],
)
def test_arguments_that_do_not_fit_the_parameters_are_refused(args, kwargs, text):
    def work(a: int, b: int) -> None: ...

    with pytest.raises(InvalidArguments, match=text):
        bind(work, *args, **kwargs)


@in_rows(
    "args, kwargs, expected",
    [
        ([], {}, {"text": "str", "size": "Size"}),
        (["a"], {"siez": {}}, {"siez": "one of the parameters text, size, times"}),
        (["a"], {"text": "a"}, {"text": "one value, by place or by name"}),
    ],
)
def test_details_say_what_should_have_been_given(args, kwargs, expected):
    def work(text: str, size: Size, times: int = 1) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        bind(work, *args, **kwargs)
    assert {problem["parameter"]: problem["expected"] for problem in caught.value.details["problems"]} == expected


def test_the_parameter_that_was_perhaps_meant_is_named():
    def work(text: str) -> None: ...

    with pytest.raises(InvalidArguments, match=r"no parameter 'txt'; did you mean 'text'\? It has: text$"):
        bind(work, txt="a")


def test_a_long_wrong_value_is_shown_short():
    def work(a: int) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        bind(work, "x" * 10_000)
    assert len(str(caught.value)) < 250


def test_a_task_without_parameters_says_so():
    with pytest.raises(InvalidArguments, match="takes no arguments by place, 1 were given"):
        bind(lambda: None, 1)
    with pytest.raises(InvalidArguments, match="no parameter 'x'; it has: none"):
        bind(lambda: None, x=1)


def test_an_annotation_without_conversion_is_refused_at_declaration():
    class Opaque:
        pass

    pool = Pool("p")
    with pytest.raises(InvalidSettings, match=r"p\.work: parameter 'a' has the annotation Opaque, which cannot come"):

        @pool.task
        def work(a: Opaque) -> None: ...


def test_annotations_can_name_classes_of_the_enclosing_function():
    class Local(BaseModel):
        n: int

    pool = Pool("p")

    @pool.task
    def work(a: Local) -> Any:
        return a

    assert pool.tasks["work"].bind([{"n": "1"}], None).args == [Local(n=1)]


def test_a_class_that_is_defined_later_is_found_when_the_worker_starts(monkeypatch):
    def work(x) -> Any:
        return x

    work.__annotations__["x"] = "_DefinedBelow"
    task = declare(work)
    with pytest.raises(InvalidSettings, match="_DefinedBelow.*define it at the top level"):
        task.prepare()

    class Later(BaseModel):
        n: int

    monkeypatch.setitem(globals(), "_DefinedBelow", Later)
    task.prepare()
    assert task.bind([{"n": "1"}], None).args == [Later(n=1)]


class Outer(BaseModel):
    inner: _Inner  # noqa: F821  # type: ignore[name-defined]


@dataclasses.dataclass
class OuterPoint:
    inner: _Inner  # noqa: F821  # type: ignore[name-defined]


def test_models_that_name_a_class_defined_later_are_completed_when_the_worker_starts(monkeypatch):
    pool = Pool("p")

    @pool.task
    def work(x: Outer, y: list[OuterPoint]) -> dict[str, Outer]: ...

    task = pool.tasks["work"]
    with pytest.raises(InvalidSettings, match=r"p\.work: an annotation cannot be resolved: .*_Inner.*define it"):
        task.prepare()

    class Later(BaseModel):
        blob: bytes

    monkeypatch.setitem(globals(), "_Inner", Later)
    task.prepare()
    inner = {"inner": {"blob": STANDARD}}
    call = task.bind([inner, [inner]], None, json=True)
    assert call.args == [Outer(inner=Later(blob=BLOB)), [OuterPoint(Later(blob=BLOB))]]
    assert task.result.write({"a": call.args[0]}) == {"a": {"inner": {"blob": BLOB}}}


def test_models_in_strict_mode_take_what_json_can_say():
    def work(x: Strict) -> Any:
        return x

    value = {"at": "2026-01-02T03:04:05Z", "size": {"width": 1}, "colour": "blue"}
    bound = bind(work, value)
    assert bound.at.year == 2026
    assert bound.colour is Colour.BLUE
    with pytest.raises(InvalidArguments, match="x.at"):
        bind(work, {**value, "at": "yesterday"})


# -- bytes in JSON ------------------------------------------------------------------------------------------------

BLOB = b"\xfb\xff\xfe\x00hello"
STANDARD = base64.b64encode(BLOB).decode()
URL_SAFE = base64.urlsafe_b64encode(BLOB).decode()


@in_rows("text", [STANDARD, URL_SAFE, STANDARD.rstrip("="), URL_SAFE.rstrip("=")])
def test_bytes_in_json_are_base64_in_either_alphabet_padded_or_not(text):
    assert "+" in STANDARD and "-" in URL_SAFE

    def work(x: bytes) -> Any:
        return x

    assert bind(work, text, json=True) == BLOB
    assert bind(work, x=text, json=True) == BLOB


def test_text_for_bytes_that_did_not_come_as_json_is_text():
    def work(x: bytes) -> Any:
        return x

    assert bind(work, "aGk=") == b"aGk="


@in_rows(
    "annotation, given_value, expected",
    [
        (bytes | None, None, None),
        (bytes | None, URL_SAFE, BLOB),
        (list[bytes], [STANDARD], [BLOB]),
        (dict[str, list[bytes]], {"a": [STANDARD]}, {"a": [BLOB]}),
        (tuple[int, bytes], [1, STANDARD], (1, BLOB)),
        (tuple[bytes, ...], [STANDARD], (BLOB,)),
        (str | bytes, STANDARD, STANDARD),
        (Annotated[bytes, Field(max_length=100)], STANDARD, BLOB),
        (Size, {"width": 1, "mask": STANDARD}, Size(width=1, mask=BLOB)),
        (Point, {"x": 1, "raw": URL_SAFE}, Point(1.0, 0.0, BLOB)),
        (Pair, ["k", STANDARD], Pair("k", BLOB)),
        (Pair, {"key": "k", "blob": STANDARD}, Pair("k", BLOB)),
        (Options, {"blob": STANDARD, "depth": "2"}, {"blob": BLOB, "depth": 2}),
        (Tree, {"children": [{"leaf": STANDARD}]}, Tree(children=[Tree(leaf=BLOB)])),
        (Size | Point, {"x": 1, "raw": STANDARD}, Point(1.0, 0.0, BLOB)),
        (Base64Bytes, "aGk=", b"hi"),
    ],
)
def test_bytes_are_found_wherever_the_annotation_has_them(annotation, given_value, expected):
    def work(x):
        return x

    work.__annotations__["x"] = annotation
    assert bind(work, given_value, json=True) == expected


def test_text_that_is_not_base64_is_an_invalid_argument():
    def work(x: bytes, y: list[bytes] = []) -> None: ...  # noqa: B006

    with pytest.raises(InvalidArguments, match=r"x: bytes are base64 text in JSON: .*, given '\*\*\*' \(str\)"):
        bind(work, "***", json=True)
    with pytest.raises(InvalidArguments, match="y: bytes are base64"):
        bind(work, "", ["é"], json=True)


# -- round trips --------------------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]))
_sizes = st.builds(Size, width=st.integers(1, 1 << 60), height=st.integers(-(1 << 60), 1 << 60), mask=st.binary())
_trees = st.recursive(
    st.builds(Tree, leaf=st.none() | st.binary()),
    lambda inner: st.builds(Tree, leaf=st.none() | st.binary(), children=st.lists(inner, max_size=3)),
    max_leaves=6,
)


def everything(
    number: int,
    real: float,
    text: str,
    blob: bytes,
    flag: bool,
    at: dt.datetime,
    day: dt.date,
    span: dt.timedelta,
    ident: uuid.UUID,
    price: decimal.Decimal,
    colour: Colour,
    size: Size,
    point: Point,
    tree: Tree,
    sizes: dict[str, list[Size]],
    unique: frozenset[int],
    maybe: bytes | None,
) -> Any:
    return locals()


_arguments = st.fixed_dictionaries(
    {
        "number": st.integers(-(1 << 63), (1 << 63) - 1),
        "real": st.floats(allow_nan=False, allow_infinity=False),
        "text": _text,
        "blob": st.binary(),
        "flag": st.booleans(),
        "at": st.datetimes(timezones=st.just(dt.UTC)),
        "day": st.dates(),
        "span": st.timedeltas(dt.timedelta(days=-999), dt.timedelta(days=999)),
        "ident": st.uuids(),
        "price": st.decimals(allow_nan=False, allow_infinity=False, places=4),
        "colour": st.sampled_from(Colour),
        "size": _sizes,
        "point": st.builds(Point, x=st.floats(-1e9, 1e9), y=st.floats(-1e9, 1e9), raw=st.binary()),
        "tree": _trees,
        "sizes": st.dictionaries(_text, st.lists(_sizes, max_size=2), max_size=2),
        "unique": st.frozensets(st.integers(0, 99)),
        "maybe": st.none() | st.binary(),
    }
)
_everything = declare(everything)


def _alone(name: str, annotation: Any) -> Any:
    def work(x):
        return x

    work.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)])  # type: ignore[attr-defined]
    work.__annotations__ = {name: annotation}
    return declare(work)


_each_alone = {
    name: _alone(name, annotation)
    for name, annotation in get_type_hints(everything, include_extras=True).items()
    if name != "return"
}


@given(arguments=_arguments, fmt=st.sampled_from(Format), by_name=st.booleans())
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
def test_what_a_caller_sends_arrives_equal_by_either_format(arguments, fmt, by_name):
    is_json = fmt is Format.JSON
    if by_name:
        call = _everything.bind(None, codec.decode(codec.encode(arguments, fmt), fmt), json=is_json)
    else:
        in_order = [arguments[name] for name in inspect.signature(everything).parameters]
        call = _everything.bind(codec.decode(codec.encode(in_order, fmt), fmt), None, json=is_json)
    assert everything(*call.args, **call.kwargs) == arguments


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | _text | st.binary(),
                          lambda inner: st.lists(inner) | st.dictionaries(_text, inner), max_leaves=8),
       is_json=st.booleans())  # fmt: skip
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
def test_no_value_of_the_wire_makes_binding_fail_in_an_unknown_way(value, is_json):
    for name, task in _each_alone.items():
        try:
            call = task.bind([value], None, json=is_json)
        except InvalidArguments as error:
            assert error.details["problems"][0]["parameter"].partition(".")[0] == name
            codec.to_json(error.to_wire())
        else:
            assert len(call.args) == 1
