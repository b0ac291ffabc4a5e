"""Bytes inside JSON arguments: base64 text becomes bytes wherever the annotation asks for bytes.

Pydantic does this only while it parses JSON text itself, and only for models configured for it. Our arguments are
parsed before the task is known, so each annotation is compiled once, at declaration, into a decoder; None for the many
annotations without bytes.
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Union

from pydantic import BaseModel

Decoder = Callable[[Any], Any]

_LISTS = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Set,
          collections.abc.Collection, collections.abc.MutableSequence)  # fmt: skip
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_URL_SAFE = str.maketrans("-_", "+/")


def decode_text(value: Any) -> Any:
    """Decode base64, standard or URL-safe, padded or not. Anything but text passes through.

    Raises:
        ValueError: text that is not base64.
    """
    if not isinstance(value, str):
        return value
    text = value.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"bytes are base64 text in JSON: {error}") from error


def decoder_for(annotation: Any) -> Decoder | None:
    """The decoder of an annotation; None when it has no bytes."""
    return _Builder().build(annotation)


class _Builder:
    """Walks one annotation. Recursive models are found again while they are being built."""

    def __init__(self) -> None:
        self._models: dict[type, Base64Decoder] = {}

    def build(self, annotation: Any) -> Decoder | None:
        if annotation in (bytes, bytearray):
            return decode_text
        origin = typing.get_origin(annotation)
        arguments = typing.get_args(annotation)
        if origin is Annotated:
            # Base64Bytes and the like decode themselves.
            return (
                None if any(hasattr(mark, "encoder") for mark in annotation.__metadata__) else self.build(arguments[0])
            )
        if origin in (typing.Required, typing.NotRequired):
            return self.build(arguments[0])
        if origin is Union or origin is types.UnionType:
            return self._union(arguments)
        if origin is tuple:
            return self._tuple(arguments)
        if origin in _LISTS and arguments:
            return _each(self.build(arguments[0]))
        if origin in _MAPS and len(arguments) == 2:
            return _values(self.build(arguments[1]))
        alias = getattr(annotation, "__value__", None)  # of a `type` statement
        if alias is not None:
            return self.build(alias)
        return self._model(annotation) if isinstance(annotation, type) else None

    def _union(self, members: tuple[Any, ...]) -> Decoder | None:
        decoders = [found for found in map(self.build, members) if found is not None]
        if not decoders or str in members:
            # Text for `str | bytes` stays text.
            decoders = [found for found in decoders if found is not decode_text]
        if not decoders:
            return None
        return decoders[0] if len(decoders) == 1 else _first(decoders)

    def _tuple(self, members: tuple[Any, ...]) -> Decoder | None:
        if len(members) == 2 and members[1] is Ellipsis:
            return _each(self.build(members[0]))
        decoders = [self.build(member) for member in members]
        if not any(decoders):
            return None

        def decode(value: Any) -> Any:
            if not isinstance(value, (list, tuple)):
                return value
            items: collections.abc.Sequence[Any] = value
            known = [item if one is None else one(item) for item, one in zip(items, decoders, strict=False)]
            return known + list(items[len(decoders) :])

        return decode

    def _model(self, kind: type) -> Decoder | None:
        known = self._models.get(kind)
        if known is not None:
            return known
        fields = _fields_of(kind)
        if not fields:
            return None
        decoder = self._models[kind] = Base64Decoder([names[0] for names, _ in fields])
        for names, annotation in fields:
            found = self.build(annotation)
            if found is not None:
                decoder.fields.update(dict.fromkeys(names, found))
        return decoder if decoder.reaches_bytes() else None


def _fields_of(kind: type) -> list[tuple[list[str], Any]]:
    """Names (with aliases) and annotation of each field of a model, dataclass, typed dict or named tuple."""
    if issubclass(kind, BaseModel):
        kind.model_rebuild(raise_errors=False)  # no-op if it is complete
        return [
            ([name, *(alias for alias in (field.alias, field.validation_alias) if isinstance(alias, str))],
             _with_metadata(field.annotation, field.metadata))
            for name, field in kind.model_fields.items()
        ]  # fmt: skip
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or hasattr(kind, "__total__"):
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except NameError:
            return []
        return [([name], annotation) for name, annotation in hints.items()]
    return []


def _with_metadata(annotation: Any, metadata: list[Any]) -> Any:
    return Annotated[(annotation, *metadata)] if metadata else annotation


class Base64Decoder:
    """Decodes the fields of a map, or of a list of them in order (named tuples)."""

    __slots__ = ("_order", "fields")

    def __init__(self, order: list[str]) -> None:
        self._order = order
        self.fields: dict[str, Decoder] = {}

    def __call__(self, value: Any) -> Any:
        fields = self.fields
        if isinstance(value, dict):
            given: dict[Any, Any] = value
            return {name: fields[name](item) if name in fields else item for name, item in given.items()}
        if isinstance(value, list):
            items: list[Any] = value
            if len(items) <= len(self._order):
                named = zip(self._order, items, strict=False)
                return [fields[name](item) if name in fields else item for name, item in named]
        return value

    def reaches_bytes(self) -> bool:
        return bool(self.fields)


def _each(decode: Decoder | None) -> Decoder | None:
    if decode is None:
        return None

    def decode_each(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items: list[Any] = value
        return [decode(item) for item in items]

    return decode_each


def _values(decode: Decoder | None) -> Decoder | None:
    if decode is None:
        return None

    def decode_values(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given: dict[Any, Any] = value
        return {key: decode(item) for key, item in given.items()}

    return decode_values


def _first(decoders: list[Decoder]) -> Decoder:
    """The first union member that decodes the value."""

    def decode(value: Any) -> Any:
        for one in decoders:
            try:
                decoded = one(value)
            except ValueError:
                continue
            if decoded is not value and decoded != value:
                return decoded
        return value

    return decode
