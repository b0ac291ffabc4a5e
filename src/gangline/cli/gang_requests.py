"""Asking the leading coordinator, as any other program would."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

from ..bus.port import Bus, NoResponders
from ..schemas import codec, headers
from ..schemas.codec import Format
from ..schemas.errors import error_from_wire
from ..schemas.gang_errors import NoCoordinator
from ..schemas.names import GangOperation, Names
from ..telemetry.tracing import tracer

M = TypeVar("M", bound=BaseModel)
ANSWER_S = 10.0
"""Patience with what is answered at once."""


async def ask(
    bus: Bus, names: Names, operation: GangOperation, body: dict[str, Any], answer: type[M], timeout_s: float = ANSWER_S
) -> M:
    """One request.

    Raises:
        NoCoordinator: nobody leads.
        GanglineError: what the coordinator answered.
    """
    traceparent = tracer.traceparent()
    fields = {headers.TRACEPARENT: traceparent} if traceparent else None
    try:
        message = await bus.request(names.gang(operation), codec.to_json(body), timeout_s=timeout_s, headers=fields)
    except NoResponders:
        raise NoCoordinator("no coordinator leads: start one with 'gangline coordinator'") from None
    fields = dict(message.headers or {})
    value = codec.decode(message.data, Format.of(fields))
    if headers.ERROR in fields:
        error = value if isinstance(value, dict) else {}
        raise error_from_wire(
            str(error.get("code", "internal")),
            str(error.get("message", fields[headers.ERROR])),
            error.get("details"),
            bool(error.get("may_have_started", False)),
        )
    return answer.model_validate(value)
