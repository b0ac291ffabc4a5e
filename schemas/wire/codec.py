"""Bodies on the wire: JSON by default, msgpack by `Content-Type: application/msgpack`.

Values are those that both formats share (null, booleans, numbers, text, lists, maps) plus bytes, which are native in
msgpack and base64 in JSON. Pydantic models, dataclasses, enums, dates, UUIDs, decimals, paths and sets are
converted on the way out; the receiving side converts back from its own annotations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum, StrEnum
from pathlib import PurePath
from typing import Any

import msgpack
import pydantic_core
from pydantic import BaseModel

from ..errors.base import InvalidRequest, MalformedMessage
from ..limits import MAX_DEPTH

CONTENT_TYPE = "Content-Type"


class Format(StrEnum):
    """Format of a body. The answer to a request uses the request's format."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"

    @classmethod
    def of(cls, headers: Mapping[str, str] | None) -> Format:
        """The format that the headers name; JSON without a header.

        Raises:
            MalformedMessage: a content type that is neither.
        """
        if not headers:
            return cls.JSON
        named = headers.get(CONTENT_TYPE, "")
        media = named.partition(";")[0].strip().lower()
        if media in ("", cls.JSON.value, "text/json", "text/plain"):
            return cls.JSON
        if media in (cls.MSGPACK.value, "application/x-msgpack", "application/vnd.msgpack"):
            return cls.MSGPACK
        raise MalformedMessage(f"Content-Type {named!r} is not known: use {cls.JSON.value} or {cls.MSGPACK.value}")


def _plain(value: Any) -> Any:
    """msgpack's hook for types that it cannot write itself."""
    if isinstance(value, BaseModel):
        # By alias, without excluded fields, with its own serializers: as in JSON, but bytes stay bytes.
        return value.model_dump(by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Enum):
        return value.value
    # Dates, UUIDs, decimals, paths, URLs: the text that pydantic reads back.
    return pydantic_core.to_jsonable_python(value, fallback=_fallback)


def _fallback(value: Any) -> Any:
    """pydantic's hook for types that it cannot write itself."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(
        f"cannot serialize a value of type {type(value).__name__}: "
        "use str, number, list, dict, bytes, a dataclass or a Pydantic model"
    )


_pack = msgpack.Packer(default=_plain, use_bin_type=True, autoreset=True).pack


def pack(value: Any) -> bytes:
    """Write msgpack.

    Raises:
        InvalidRequest: the value (or something in it) cannot be serialized.
    """
    try:
        return _pack(value)  # type: ignore[no-any-return]
    except Exception as error:  # also errors of a model's own serializer or property
        # A Packer that raised keeps the bytes it had written; msgpack offers no reset, so create a new one.
        _renew_packer()
        raise InvalidRequest(f"cannot be written as msgpack: {error}") from error


def _renew_packer() -> None:
    global _pack
    _pack = msgpack.Packer(default=_plain, use_bin_type=True, autoreset=True).pack


def unpack(data: bytes) -> Any:
    """Read msgpack. Its timestamps become aware datetimes; other extension types are refused.

    Raises:
        MalformedMessage: not exactly one msgpack value.
    """
    try:
        return msgpack.unpackb(
            data, raw=False, strict_map_key=False, use_list=True, timestamp=3, ext_hook=_refuse_extension
        )
    except Exception as error:  # msgpack raises ValueError, its own classes, and others on hostile input
        raise MalformedMessage(f"not msgpack: {error or type(error).__name__}") from error


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not known")


def to_json(value: Any) -> bytes:
    """Write JSON; bytes become base64 text of the URL-safe alphabet, NaN and infinities become null.

    Raises:
        InvalidRequest: the value (or something in it) cannot be serialized.
    """
    try:
        return pydantic_core.to_json(_dumped(value), bytes_mode="base64", inf_nan_mode="null", fallback=_fallback)
    except Exception as error:  # also errors of a model's own serializer or property
        raise InvalidRequest(f"cannot be written as JSON: {error}") from error


_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_CONTAINERS = frozenset({list, dict, tuple})


def _dumped(value: Any) -> Any:
    """Models and dataclasses as maps: nested in one, pydantic would follow its settings for bytes, not ours."""
    if type(value) not in _CONTAINERS and (isinstance(value, (BaseModel, Enum)) or dataclasses.is_dataclass(value)):
        return _dumped(_plain(value))
    if isinstance(value, dict):
        return {key: item if type(item) in _SCALARS else _dumped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [item if type(item) in _SCALARS else _dumped(item) for item in value]
    return value


def from_json(data: bytes) -> Any:
    """Read JSON.

    Raises:
        MalformedMessage: not exactly one JSON value, in UTF-8.
    """
    try:
        return pydantic_core.from_json(data)
    except ValueError as error:
        raise MalformedMessage(f"not JSON: {error}") from error


def encode(value: Any, fmt: Format) -> bytes:
    """Write a body in the given format. None is written as an explicit null, never as an empty body."""
    return pack(value) if fmt is Format.MSGPACK else to_json(value)


def encode_model(model: BaseModel, fmt: Format) -> bytes:
    """Write one of our own messages: the same bytes as `encode` of its JSON dump, but in one step if the format is
    JSON."""
    if fmt is Format.JSON:
        return model.model_dump_json().encode()
    return pack(model.model_dump(mode="json"))


def decode(data: bytes, fmt: Format) -> Any:
    """Read a body in the given format. An empty body is None.

    Raises:
        MalformedMessage: unreadable, or nested deeper than the wire allows.
    """
    if not data:
        return None
    if fmt is Format.MSGPACK:
        value = unpack(data)
    else:
        value = from_json(data)
        if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
            return value  # too few brackets to be nested deeper: no need to walk through it
    check_depth(value)
    return value


def check_depth(value: Any, limit: int = MAX_DEPTH) -> None:
    """Refuse values nested so deeply that code walking through them would overflow the stack. `[[]]` is two levels
    deep.

    Raises:
        MalformedMessage: deeper than `limit`.
    """
    level = [value]
    for _ in range(limit):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, list):
                deeper.extend(x for x in item if isinstance(x, (list, dict)))
            elif isinstance(item, dict):
                deeper.extend(x for x in item.values() if isinstance(x, (list, dict)))
        if not deeper:
            return
        level = deeper
    raise MalformedMessage(f"nested deeper than {limit} levels")
