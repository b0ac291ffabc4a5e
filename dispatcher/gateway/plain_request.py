"""A call as the stock `nats` CLI or another language makes it. Pure.

========================  =========================================================================================
body                      an object is keyword arguments, an array positional ones, nothing or null is none
`Content-Type`            `application/json` (default) or `application/msgpack`; the answer has the same
`Gangline-Timeout`        seconds that the caller waits; becomes the deadline
`Gangline-Key`            session or shard key
`Gangline-Model`          model id
`Gangline-Idempotent`     `true`: may be sent again when the outcome of a try is unknown
`traceparent`             the caller's trace
========================  =========================================================================================

The answer's body is the bare result; an error has the header `Nats-Service-Error` and a body that says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.errors.base import InvalidRequest
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.text import parse_yes_no, plain
from ...schemas.wire import codec, headers
from ..calls.call import CallOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """What is asked for, beside the subject."""

    args: list[Any]
    kwargs: dict[str, Any]
    options: CallOptions
    parent: str | None
    """`traceparent` of the caller."""

    @classmethod
    def parse(cls, body: Any, given: Mapping[str, str] | None, default_timeout_s: float) -> PlainRequest:
        """Read a request: its decoded body, and its headers.

        Raises:
            InvalidRequest: it is no arguments, or a header has no meaning.
        """
        fields = {name.lower(): value for name, value in (given or {}).items()}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if isinstance(body, dict):
            bad = next((name for name in body if not isinstance(name, str)), None)
            if bad is not None:
                raise InvalidRequest(f"argument name {bad!r} is not a text")
            kwargs = body
        elif isinstance(body, list):
            args = body
        elif body is not None:
            raise InvalidRequest(
                f"the body is a bare {type(body).__name__}: send an object of named arguments, or an array of them, "
                f"for example {_example(body)}"
            )
        options = CallOptions(
            timeout_s=_timeout_s(fields.get(headers.TIMEOUT.lower()), default_timeout_s),
            key=fields.get(headers.KEY.lower()),
            model=fields.get(headers.MODEL.lower()),
            idempotent=_flag(fields.get(headers.IDEMPOTENT.lower())),
        )
        return cls(args=args, kwargs=kwargs, options=options, parent=fields.get(headers.TRACEPARENT))


def _example(value: Any) -> str:
    """A bare value as an array of one argument, in JSON; shortened, and in words where it has no such form."""
    try:
        return codec.to_json([value[:40] if isinstance(value, str) else value]).decode()
    except InvalidRequest:
        return '["a.png"]'


def _timeout_s(text: str | None, default_s: float) -> float:
    if text is None:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_DEADLINE_S:
        raise InvalidRequest(
            f"{headers.TIMEOUT} is {text[:40]!r}: give seconds above 0 and at most {plain(MAX_DEADLINE_S)}, "
            "for example 2.5"
        )
    return seconds


def _flag(text: str | None) -> bool | None:
    if text is None:
        return None
    try:
        return parse_yes_no(text)
    except ValueError:
        raise InvalidRequest(f"{headers.IDEMPOTENT} is {text[:40]!r}: give 'true' or 'false'") from None
