"""Questions to one worker on its own subjects, as `nats req` would put them."""

from __future__ import annotations

from typing import TypeVar

import click

from ..bus.port import Bus, Message, NoResponders
from ..schemas import codec, headers
from ..schemas.errors import GanglineError, NoWorkers, error_from_wire
from ..schemas.messages import Reply, Request
from ..schemas.names import Names, Operation, WorkerId, check_name

R = TypeVar("R", bound=Reply)

DEFAULT_TIMEOUT_S = 5.0


def parse_worker(text: str) -> WorkerId:
    """`POOL.WORKER`, as `gangline workers` prints it.

    Raises:
        UsageError: not of that form.
    """
    pool, dot, worker = text.partition(".")
    if not dot:
        raise click.UsageError(f"{text!r} is not POOL.WORKER; 'gangline workers' shows them")
    return WorkerId(check_name(pool, "pool"), check_name(worker, "worker"))


async def ask(
    bus: Bus, names: Names, worker: WorkerId, operation: Operation, request: Request | None, reply: type[R]
) -> R:
    """One request, one checked answer.

    Raises:
        NoWorkers: no such worker.
        GanglineError: whatever the worker answered instead.
    """
    body = codec.to_json(request.model_dump(exclude_none=True)) if request is not None else b""
    try:
        answer = await bus.request(names.worker(worker, operation), body, timeout_s=DEFAULT_TIMEOUT_S)
    except NoResponders:
        raise NoWorkers(f"there is no worker {worker}") from None
    return reply.model_validate(answer_value(answer))


def answer_value(answer: Message) -> object:
    """What an answer on a call or worker subject says.

    Raises:
        GanglineError: the error it carries.
    """
    value = codec.decode(answer.data, codec.Format.of(answer.headers))
    if answer.headers and headers.ERROR in answer.headers:
        raise wire_error(value, answer.headers[headers.ERROR])
    return value


def wire_error(value: object, text: str) -> GanglineError:
    """The error that an answer with the `Nats-Service-Error` header carries."""
    body = value if isinstance(value, dict) else {}
    details = body.get("details")
    return error_from_wire(
        str(body.get("code", "internal")),
        str(body.get("message", text)),
        details if isinstance(details, dict) else None,
        bool(body.get("may_have_started", False)),
    )
