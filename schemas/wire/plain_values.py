"""Converts values that a task returns, yields or reports into plain wire values."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
from enum import Enum
from typing import Any, Final

import pydantic_core
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from ..errors.base import InvalidRequest, InvalidResult
from ..limits import MAX_DEPTH
from .codec import packing

SCALARS = frozenset({type(None), bool, float, bytes})
"""Types whose values are already wire values. (But integers may be too large, and text may not be valid Unicode.)"""
ATOMS = SCALARS | {str, int}
"""Types of everything but lists and maps."""
_PLAIN_BASES: tuple[Any, ...] = (str, int, float, bytes, dict)
_SMALLEST, _GREATEST = -(1 << 63), (1 << 64) - 1


def is_plain(value: Any) -> bool:
    """Whether `value` can be packed as it is. Numbers and texts are not checked: whoever packs them does that."""
    return _is_plain(value, 0)


_all_atoms = ATOMS.issuperset
_all_texts = frozenset({str}).issuperset


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is dict:
        if not _all_texts(map(type, value)):
            return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in ATOMS
    if _all_atoms(map(type, value)):
        return True
    if depth >= MAX_DEPTH:
        return False
    for item in value:  # noqa: SIM110 - a generator costs more than most values
        if type(item) not in ATOMS and not _is_plain(item, depth + 1):
            return False
    return True


_CONTAINERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and maps in msgpack."""
_NEITHER: Final = bytes(set(range(256)) - {*_CONTAINERS, *range(0xC7, 0xCA), *range(0xD4, 0xD9)})
"""All other bytes, except those with which an extension type begins."""


def pack_plain(value: Any) -> bytes | None:
    """Write msgpack of `to_wire(value)`, in one step. None: that takes more steps, or raises an error."""
    try:
        data = _write(value)
    except InvalidRequest:
        return None
    # The packer would also write an extension type, and nests deeper than we do. A text may contain the same bytes.
    found = data.translate(None, _NEITHER)
    if (len(found) > MAX_DEPTH or found.strip(_CONTAINERS)) and not is_plain(value):
        return None
    return data


def _atom(value: Any) -> Any:
    """msgpack's hook for types that it does not know: only for those that become a single value. What becomes a list
    cannot be a key, which nobody knows here."""
    plain = _plain(value, "", "")
    if type(plain) not in ATOMS:
        raise _Unusual
    return plain


_write: Final = packing(default=_atom, strict_types=True)


def to_wire(value: Any, where: str, place: str = "result") -> Any:
    """The plain wire values of `value`: models and dataclasses as maps, tuples and sets as lists, dates, UUIDs and
    decimals as text. Always a copy, since the task may change the value after it returned or yielded it.

    Raises:
        InvalidResult: names the type and position of the value that cannot be serialized.
    """
    try:
        return _copy(value, 0)
    except _Unusual:
        return _wire(value, place, 0, where)


class _Unusual(Exception):
    """Raised for a value that needs the slow path, which converts and keeps track of positions."""


def _copy(value: Any, depth: int) -> Any:
    """The fast path, sufficient for most results."""
    kind = type(value)
    if kind is str:
        if value.isascii():
            return value
    elif kind in SCALARS:
        return value
    elif kind is int:
        if _SMALLEST <= value <= _GREATEST:
            return value
    elif depth <= MAX_DEPTH:
        depth += 1
        if kind is list or kind is tuple:
            return [item if type(item) in SCALARS else _copy(item, depth) for item in value]
        if kind is dict:
            for key in value:
                if type(key) is not str or not key.isascii():
                    raise _Unusual
            return {key: item if type(item) in SCALARS else _copy(item, depth) for key, item in value.items()}
    raise _Unusual


def _wire(value: Any, place: str, depth: int, where: str) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value, place, where)
    if kind in SCALARS:
        return value
    if kind is int:
        if _SMALLEST <= value <= _GREATEST:
            return value
        raise _refuse(f"{place} is a whole number beyond 64 bits: return it as text", value, where)
    if depth > MAX_DEPTH:
        raise _refuse(f"{place} is nested deeper than {MAX_DEPTH} levels, or contains itself", value, where)
    if kind is list or kind is tuple:
        return [_wire(item, f"{place}[{i}]", depth + 1, where) if type(item) not in SCALARS else item
                for i, item in enumerate(value)]  # fmt: skip
    if kind is dict:
        return {
            key if type(key) is str and key.isascii() else _key(key, place, where): _wire(
                item, f"{place}.{key}", depth + 1, where
            )
            for key, item in value.items()
        }
    return _wire(_plain(value, place, where), place, depth + 1, where)


def _plain(value: Any, place: str, where: str) -> Any:
    """One step of conversion, for a value that is not yet a wire value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        try:
            return value.model_dump(warnings=False)
        except PydanticSerializationError as error:
            raise _refuse(f"{place} cannot be serialized: {error}", value, where) from error
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for base in _PLAIN_BASES:
        if isinstance(value, base):
            return base(value)  # subclasses: their plain form
    if isinstance(value, (set, frozenset, tuple, list, collections.abc.ValuesView, collections.abc.KeysView)):
        return list(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if inspect.isawaitable(value):
        close_awaitable(value)
        raise _refuse(f"{place} is an awaitable, never awaited: declare the task with 'async def'", value, where)
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise _refuse(f"{place} is a generator: yield from the task itself to stream", value, where)
    try:
        plain = pydantic_core.to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise _refuse(
            f"{place} has the type {type(value).__qualname__}, which cannot be serialized", value, where
        ) from error  # noqa: E501
    if type(plain) not in SCALARS and type(plain) not in (str, int, list, dict):
        raise _refuse(f"{place} has the type {type(value).__qualname__}, which cannot be serialized", value, where)
    return plain


def _key(key: Any, place: str, where: str) -> Any:
    plain = (
        key if isinstance(key, (str, int, float, bool, type(None), bytes)) else _plain(key, f"a key of {place}", where)
    )
    if isinstance(plain, (list, dict)):
        raise _refuse(f"{place} has a key of the type {type(key).__qualname__}, which cannot be serialized", key, where)
    return _wire(plain, f"a key of {place}", 0, where)


def _text(value: str, place: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refuse(f"{place} is text with half a surrogate pair, which is not Unicode", value, where) from None
    return value


def close_awaitable(value: Any) -> None:
    """Suppress the warning that a coroutine was never awaited: the error already says so."""
    close = getattr(value, "close", None)
    if close is not None:
        close()


def _refuse(text: str, value: Any, where: str) -> InvalidResult:
    return InvalidResult(f"{where}: {text}", details={"type": type(value).__qualname__})
