"""The body of a task: its arguments. Pure."""

from __future__ import annotations

from typing import Any

from ...schemas import codec
from ...schemas.codec import Format
from ...schemas.errors import MalformedMessage

Arguments = tuple[list[Any] | None, dict[str, Any] | None]
"""Positional and named ones."""


def arguments_of(body: bytes, fmt: Format) -> Arguments:
    """Positional and named arguments: an array is the former, an object the latter, nothing is none.

    Raises:
        MalformedMessage: it is not in that format, or a bare value.
    """
    value = codec.decode(body, fmt)
    if value is None:
        return None, None
    if isinstance(value, list):
        return value or None, None
    if isinstance(value, dict):
        bad = next((name for name in value if not isinstance(name, str)), None)
        if bad is not None:
            raise MalformedMessage(f"argument name {bad!r} is not a text")
        return None, value or None
    raise MalformedMessage(
        f"the body is a bare {type(value).__name__}: publish an object of named arguments, or an array of them"
    )
