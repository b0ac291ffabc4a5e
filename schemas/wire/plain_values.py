"""Converts values into plain wire values: the arguments of a task, and what it returns, yields or reports.

What is sent is read back as it was, or refused before it is sent.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from pathlib import PurePath
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

import msgpack
import pydantic_core
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from ..errors.base import InvalidArguments, InvalidRequest, InvalidResult, MalformedMessage
from ..limits import MAX_DEPTH
from ..text import shown
from .codec import ATOMS, pack, packing, unpack

SCALARS = frozenset({type(None), bool, float, bytes})
"""Types whose values are already wire values. (But integers may be too large, and text may not be valid Unicode.)"""
_PLAIN_BASES: Final[tuple[tuple[Any, Any], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes),
    (dict, dict),
)
"""Types whose subclasses become values of them, with what makes one."""
_SECRETS: Final = (SecretStr, SecretBytes, Secret)
_REFUSED: Final = (msgpack.ExtType, msgpack.Timestamp)
_LISTS: Final = (
    *(set, frozenset, tuple, list, collections.deque),
    *(collections.abc.ValuesView, collections.abc.KeysView, collections.abc.ItemsView),
)
_CONTAINER_TYPES: Final = frozenset({list, tuple, dict})
_GENERATORS: Final = (GeneratorType, AsyncGeneratorType)
_MINUTE: Final = timedelta(minutes=1)
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
    if depth >= MAX_DEPTH:
        return False
    if _all_atoms(map(type, value)):
        return True
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
    return _pack_plain(value, _write_result)


def _pack_plain(value: Any, write: Callable[[Any], bytes]) -> bytes | None:
    try:
        data = write(value)
    except InvalidRequest:
        return None
    # The packer would also write an extension type, and nests deeper than we do. Texts and numbers may contain the same
    # bytes.
    found = data.translate(None, _NEITHER)
    if (len(found) > MAX_DEPTH or found.strip(_CONTAINERS)) and not is_plain(value) and not _reads_plain(data):
        return None
    return data


def _reads_plain(data: bytes) -> bool:
    try:
        return is_plain(unpack(data))
    except MalformedMessage:
        return False


class _Side:
    """Whose values are converted: error texts depend on it, and how models are written."""

    __slots__ = ("by_alias", "error", "instead", "iterator", "where")

    def __init__(self, where: str, *, arguments: bool) -> None:
        self.where = where
        """The task, for error texts."""
        self.by_alias = arguments
        self.error: type[InvalidArguments] | type[InvalidResult] = InvalidArguments if arguments else InvalidResult
        self.instead = "send" if arguments else "return"
        self.iterator = "send a list" if arguments else "yield from the task itself to stream"

    def refuse(self, text: str, value: Any) -> InvalidArguments | InvalidResult:
        return self.error(f"{self.where}: {text}", details={"type": type(value).__qualname__})


def to_wire(value: Any, where: str, place: str = "result") -> Any:
    """The plain wire values of `value`: models and dataclasses as maps, tuples and sets as lists, dates, UUIDs and
    decimals as text. Always a copy, since the task may change the value after it returned or yielded it.

    Raises:
        InvalidResult: names the type and position of the value that cannot be serialized.
    """
    try:
        return _copy(value, 1)
    except _Unusual:
        return _wire(value, place, 1, _Side(where, arguments=False))


def wire_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, where: str
) -> tuple[list[Any], dict[str, Any]]:
    """The plain wire values of a task's arguments, like `to_wire`, but models by alias.

    Args:
        where: the task, for error texts.

    Raises:
        InvalidArguments: names the argument, and the place in it, that cannot be sent.
    """
    try:
        return _copy(args, 1), _copy(kwargs or {}, 1)  # what has them is the first level
    except _Unusual:
        pass
    side = _Side(where, arguments=True)
    by_place = [_wire(value, f"argument {number}", 2, side) for number, value in enumerate(args, 1)]
    named: dict[str, Any] = {}
    for name, value in (kwargs or {}).items():
        if not isinstance(name, str):
            raise side.refuse(f"an argument is named {shown(name)}: names are texts", name)
        named[_text(name, "the name of an argument", side)] = _wire(value, f"argument {name!r}", 2, side)
    return by_place, named


def pack_task(frame: Sequence[Any]) -> bytes:
    """Encode a TASK frame so that its worker can read it.

    Raises:
        InvalidArguments: names the argument, and the place in it, that cannot be sent.
    """
    args, kwargs = frame[3], frame[4]
    lists = list(frame)  # where types are strict, msgpack writes no tuples
    if args:
        lists[3] = list(args)
    if (packed := _pack_plain(lists, _write_arguments)) is not None:
        return packed
    by_place, named = wire_arguments(args or (), kwargs, frame[2])
    return pack((*frame[:3], by_place or None, named or None, *frame[5:]))


def _writing(side: _Side) -> Callable[[Any], bytes]:
    """A function that writes msgpack of what takes one step of conversion at each place."""

    by_alias = side.by_alias

    def converted(value: Any) -> Any:
        """msgpack's hook for types that it does not know. It does not say whether the value is a key, which must not
        become a list or map: it is none if it has no hash."""
        kind = type(value)
        if (serializer := getattr(kind, "__pydantic_serializer__", None)) is not None and kind.__hash__ is None:
            return serializer.to_python(value, by_alias=by_alias, warnings=False)
        plain = _plain(value, "", side)
        if type(plain) not in ATOMS and kind.__hash__ is not None:
            raise _Unusual
        return plain

    return packing(default=converted, strict_types=True)


_write_result: Final = _writing(_Side("", arguments=False))
_write_arguments: Final = _writing(_Side("", arguments=True))


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


def _wire(value: Any, place: str, depth: int, side: _Side) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value, place, side)
    if kind in SCALARS:
        return value
    if kind is int:
        if _SMALLEST <= value <= _GREATEST:
            return value
        raise side.refuse(f"{place} is a whole number beyond 64 bits: {side.instead} it as text", value)
    if kind not in _CONTAINER_TYPES:
        return _wire(_converted(value, place, side), place, depth, side)
    if depth > MAX_DEPTH:
        raise side.refuse(f"{place:.200} is nested deeper than {MAX_DEPTH} levels, or contains itself", value)
    if kind is not dict:
        return [_wire(item, f"{place}[{i}]", depth + 1, side) if type(item) not in SCALARS else item
                for i, item in enumerate(value)]  # fmt: skip
    plain = {
        key if type(key) is str and key.isascii() else _key(key, place, side): _wire(
            item, f"{place}.{shown(key)}" if type(key) is not str else f"{place}.{key}", depth + 1, side
        )
        for key, item in value.items()
    }
    if len(plain) < len(value):
        raise side.refuse(f"{place} has different keys that become the same text: {side.instead} texts", value)
    return plain


def _converted(value: Any, place: str, side: _Side) -> Any:
    """A wire value, whose items need not be any."""
    try:
        for _ in range(MAX_DEPTH):
            value = _plain(value, place, side)
            if type(value) in ATOMS or type(value) in _CONTAINER_TYPES:
                return value
        raise side.refuse(f"{place} has no form that is a plain value", value)
    except (InvalidArguments, InvalidResult):
        raise
    except Exception as error:  # of a user's own __iter__, __eq__ and so on
        raise side.refuse(f"{place} cannot be read: {_reason(error)}", value) from error


def _plain(value: Any, place: str, side: _Side) -> Any:
    """One step of conversion, for a value that is not yet a wire value."""
    kind = type(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel) or hasattr(kind, "__is_pydantic_dataclass__"):
        try:
            return kind.__pydantic_serializer__.to_python(value, by_alias=side.by_alias, warnings=False)
        except Exception as error:  # also errors of a model's own serializer or property
            raise side.refuse(f"{place} cannot be serialized: {_reason(error)}", value) from error
    if isinstance(value, _SECRETS):
        raise side.refuse(
            f"{place} is a {kind.__name__}, which would arrive as asterisks: {side.instead} its get_secret_value() if "
            "others may see it, else where to find it",
            value,
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for base, plain_of in _PLAIN_BASES:
        if isinstance(value, base):
            return plain_of(value)  # subclasses: their plain form
    if isinstance(value, _REFUSED):
        raise side.refuse(f"{place} has the type {kind.__qualname__}, which cannot be serialized", value)
    if isinstance(value, _LISTS):
        return list(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if inspect.isawaitable(value):
        close_awaitable(value)
        advice = "declare the task with 'async def'" if side.error is InvalidResult else "await it first"
        raise side.refuse(f"{place} is an awaitable, never awaited: {advice}", value)
    if isinstance(value, (collections.abc.Iterator, collections.abc.AsyncIterator)):
        what = "a generator" if isinstance(value, _GENERATORS) else f"an iterator ({kind.__qualname__})"
        raise side.refuse(f"{place} is {what}: {side.iterator}", value)
    return _text_of(value, place, side)


def _text_of(value: Any, place: str, side: _Side) -> Any:
    """Dates, UUIDs, decimals, paths, URLs: the text that pydantic reads back."""
    if isinstance(value, (datetime, time)):
        offset = value.utcoffset()
        if offset is not None and offset % _MINUTE:  # such an offset cannot be written
            if isinstance(value, time):
                raise side.refuse(
                    f"{place} is a time whose offset from UTC has seconds, which cannot be serialized: {side.instead} "
                    "it in UTC, or as text",
                    value,
                )
            value = value.astimezone(UTC)
    elif isinstance(value, PurePath):
        return str(value)
    elif isinstance(value, re.Pattern) and (isinstance(value.pattern, bytes) or value.flags != re.UNICODE):
        raise side.refuse(f"{place} is a pattern with flags or of bytes: {side.instead} its text, with (?flags)", value)
    try:
        plain = pydantic_core.to_jsonable_python(value)
    except Exception as error:
        raise side.refuse(
            f"{place} has the type {type(value).__qualname__}, which cannot be serialized: use text, numbers, lists, "
            "dicts, bytes, dataclasses or Pydantic models",
            value,
        ) from error
    if type(plain) not in ATOMS:
        raise side.refuse(f"{place} has the type {type(value).__qualname__}, which cannot be serialized", value)
    return plain


def _key(key: Any, place: str, side: _Side) -> Any:
    within = f"a key of {place}"
    plain = key if type(key) in ATOMS else _converted(key, within, side)
    if isinstance(plain, (list, dict, tuple)):
        raise side.refuse(
            f"{place} has a key of the type {type(key).__qualname__}, which cannot be serialized: {shown(key)}", key
        )
    return _wire(plain, within, 0, side)


def _text(value: str, place: str, side: _Side) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise side.refuse(f"{place!a:.200} is text with half a surrogate pair, which is not Unicode", value) from None
    return value


def _reason(error: Exception) -> str:
    return f"{error}"[:200] or type(error).__name__


def close_awaitable(value: Any) -> None:
    """Suppress the warning that a coroutine was never awaited: the error already says so."""
    close = getattr(value, "close", None)
    if close is not None:
        close()
