"""Results on their way out: from what a task returns to plain wire values."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from ...schemas.errors.base import InvalidResult, InvalidSettings
from ...schemas.wire.plain_values import SCALARS, close_awaitable, to_wire
from .signature import Signature, adapter_for, shown

_EXACT = frozenset({bool, int, float, str, bytes, dict, list})

_ITERATORS = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable,
              collections.abc.Iterator, collections.abc.Generator, collections.abc.Iterable)  # fmt: skip


class ResultEncoder:
    """Turns what one task returns (or each item it yields) into wire values."""

    __slots__ = ("_adapter", "_exact", "_resolved", "_signature", "_streams", "_where")

    def __init__(self, signature: Signature, where: str, *, streams: bool) -> None:
        self._signature = signature
        self._where = where
        self._streams = streams
        self._exact: type | None = None
        """A result of exactly this type is as annotated."""
        self._adapter: TypeAdapter[Any] | None = None
        self._resolved = False
        try:
            self._resolve()
        except NameError:
            pass  # as for parameters

    def resolve(self) -> None:
        """Raises InvalidSettings when the annotation names something that does not exist."""
        try:
            self._resolve()
        except NameError as error:
            raise InvalidSettings(
                f"{self._where}: the result's annotation cannot be resolved: {error}; define it at the top level of "
                "the module"
            ) from error

    def _resolve(self) -> None:
        """Look at the return annotation. Without one any wire value goes."""
        if self._resolved or not self._signature.resolved:
            return
        annotation = self._signature.returns
        if self._streams:
            annotation = _item_of(annotation)
        if annotation not in (inspect.Parameter.empty, Any, object):
            self._exact = annotation if isinstance(annotation, type) and annotation in _EXACT else None
            self._exact = type(None) if annotation in (None, type(None)) else self._exact
            self._adapter = adapter_for(annotation, f"{self._where}: the result")
        self._resolved = True

    def write(self, value: Any) -> Any:
        """Convert.

        Raises:
            InvalidResult: names the type and the place of what cannot be written, or how it differs from the
                annotation.
        """
        if self._adapter is not None and type(value) is not self._exact:
            value = self._as_annotated(value)
        kind = type(value)
        if kind in SCALARS or (kind is str and value.isascii()):
            return value
        return to_wire(value, self._where)

    def _as_annotated(self, value: Any) -> Any:
        assert self._adapter is not None
        if inspect.isawaitable(value):
            close_awaitable(value)
            raise InvalidResult(f"{self._where} returned an awaitable that nobody awaited: declare it with 'async def'")
        try:
            return self._adapter.dump_python(self._adapter.validate_python(value), warnings=False)
        except ValidationError as error:
            item = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(["result", *(str(part) for part in item["loc"])])
            text = f"{place} does not fit the annotation: {item['msg']}, returned {shown(item['input'])}"
        except PydanticSerializationError as error:
            text = f"the result cannot be written: {error}"
        raise InvalidResult(f"{self._where}: {text}", details={"type": type(value).__name__})


def _item_of(annotation: Any) -> Any:
    """`T` of `AsyncIterator[T]`, `Generator[T, ...]` and so on."""
    if typing.get_origin(annotation) in _ITERATORS and typing.get_args(annotation):
        return typing.get_args(annotation)[0]
    return inspect.Parameter.empty
