"""Values as Python programs send them, drawn by hypothesis, and whether what arrived is what was sent."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import importlib.util
import math
from collections import OrderedDict, defaultdict, deque
from decimal import Decimal
from pathlib import PurePath, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError


class Colour(enum.Enum):
    RED = "red"
    BOTH = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


class Count(int):
    pass


class Ratio(float):
    pass


class Options(dict[Any, Any]):
    pass


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


class Model(BaseModel):
    value: Any = None
    at: dt.datetime | None = None


def _ring(value: Any) -> list[Any]:
    ring = [value]
    ring.append(ring)
    return ring


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def nested(value: Any, depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(depth), value)


_ZONES = st.one_of(
    st.none(),
    st.timezones(),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
)
_TEXTS = st.text(st.characters(), max_size=8)  # also halves of surrogate pairs
_SCALARS = [
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40]),
    st.floats(),
    _TEXTS,
    st.binary(max_size=8),
    st.binary(max_size=8).map(bytearray),
    st.decimals(),
    st.uuids(),
    st.datetimes(timezones=_ZONES, allow_imaginary=False),
    st.dates(),
    st.times(timezones=_ZONES),
    st.timedeltas(),
    st.sampled_from([*Colour, *Level]),
    _TEXTS.map(Word),
    st.integers(0, 2**65).map(Count),
    st.floats().map(Ratio),
    _TEXTS.map(PurePosixPath),
    st.complex_numbers(allow_nan=False),
    st.builds(object),
    st.sampled_from([..., NotImplemented, Point, len, range(3)]),
]
if importlib.util.find_spec("numpy"):
    import numpy

    _SCALARS.append(st.sampled_from([numpy.int64(5), numpy.float64(0.5), numpy.bool_(True), numpy.zeros(2)]))  # noqa: FBT003
SCALARS = st.one_of(_SCALARS)
_KEYS = SCALARS.filter(_has_hash) | st.tuples(st.integers(), st.text(max_size=2))


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, maps = st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(deque),
        st.sets(_KEYS, max_size=3),
        st.frozensets(_KEYS, max_size=3),
        maps,
        maps.map(Options),
        maps.map(OrderedDict),
        maps.map(lambda items: defaultdict(list, items)),
        st.builds(Pair, inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Model, value=inner, at=st.none() | st.datetimes(timezones=st.just(dt.UTC))),
    )


VALUES = st.one_of(
    st.recursive(SCALARS, _containers, max_leaves=6),
    st.builds(_ring, SCALARS),
    st.builds(nested, SCALARS, st.integers(1, 80)),
)

_READ_BACK = (Decimal, UUID, dt.datetime, dt.date, dt.time, dt.timedelta, complex, PurePosixPath)
"""Types that are text on the wire, which an annotation reads back."""


def arrived_as(sent: Any, arrived: Any) -> bool:
    """Whether that is what was sent, by the documented rules: models and dataclasses are maps, tuples and sets lists,
    enums their values; and the annotation of what is text on the wire reads it back."""
    if isinstance(sent, enum.Enum):
        return arrived_as(sent.value, arrived)
    if isinstance(sent, (bytes, bytearray)):
        return type(arrived) is bytes and arrived == bytes(sent)
    if sent is None or isinstance(sent, bool):
        return sent is arrived
    if isinstance(sent, float):
        return type(arrived) is float and (arrived == sent or (math.isnan(sent) and math.isnan(arrived)))
    if isinstance(sent, (int, str)):
        return type(arrived) is (int if isinstance(sent, int) else str) and bool(arrived == sent)
    if isinstance(sent, _READ_BACK):
        return type(arrived) is str and _reads_back(sent, arrived)
    if isinstance(sent, BaseModel):
        return arrived_as(dict(sent), arrived)
    if dataclasses.is_dataclass(sent) and not isinstance(sent, type):
        return arrived_as({field.name: getattr(sent, field.name) for field in dataclasses.fields(sent)}, arrived)
    if isinstance(sent, dict):
        return type(arrived) is dict and _same_in_any_order(list(sent.items()), [[*each] for each in arrived.items()])
    if isinstance(sent, (set, frozenset)):
        return type(arrived) is list and _same_in_any_order(list(sent), arrived)
    if isinstance(sent, (list, tuple, deque)):
        return type(arrived) is list and len(arrived) == len(sent) and all(map(arrived_as, sent, arrived))
    return False


def _same_in_any_order(sent: list[Any], arrived: list[Any]) -> bool:
    left = list(arrived)
    for value in sent:
        found = next((place for place, each in enumerate(left) if arrived_as(value, each)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _reads_back(sent: Any, text: str) -> bool:
    if isinstance(sent, PurePath):
        return type(sent)(text) == sent
    if isinstance(sent, Decimal):
        read = Decimal(text)
        return str(read) == str(sent)
    kind = next(kind for kind in _READ_BACK if isinstance(sent, kind))
    try:
        read = TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    if isinstance(sent, (dt.datetime, dt.time)) and (read.utcoffset() is None) != (sent.utcoffset() is None):
        return False
    return bool(read == sent)
