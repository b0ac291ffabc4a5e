"""Arguments of a task as the body of one message: an object of named ones, or an array. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from ...schemas.errors.base import InvalidArguments
from ...schemas.wire import codec
from ...schemas.wire.codec import Format

_BINARY: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = frozenset((str, int, bool, type(None)))


def write_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bytes, Format]:
    """The body, and how it is written: JSON, so that people can read what waits in the stream; msgpack where JSON would
    lose something (bytes, infinities, keys that are no text).

    Raises:
        InvalidArguments: positional and named ones together; a body has no form for both.
        InvalidRequest: an argument cannot be serialized.
    """
    if args and kwargs:
        raise InvalidArguments(
            "a submitted task takes named or positional arguments, not both: its body is an object or an array. "
            "Name them all"
        )
    value: Any = dict(kwargs) if kwargs else list(args)
    if not value:
        return b"", Format.JSON
    fmt = Format.MSGPACK if loses_in_json(value) else Format.JSON
    return codec.encode(value, fmt), fmt


def loses_in_json(value: Any) -> bool:
    """Whether JSON has no form for something in it that msgpack has."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is float:
        return not math.isfinite(value)
    if isinstance(value, _BINARY):
        return True
    if isinstance(value, Mapping):
        return any(type(key) is not str or loses_in_json(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(loses_in_json(item) for item in value)
    if isinstance(value, BaseModel):
        return loses_in_json(value.model_dump(by_alias=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(loses_in_json(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False
