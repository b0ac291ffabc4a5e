"""Asking the leading coordinator, as any other program would."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from ...bus.port.bus import Bus, NoResponders
from ...schemas.errors.base import GanglineError, error_from_wire
from ...schemas.errors.gangs import NoCoordinator, UnknownGang
from ...schemas.messages.gangs import GangListReply
from ...schemas.names import GangOperation, Names
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import Format
from ...telemetry.tracing import tracer

if TYPE_CHECKING:
    from ...schemas.messages.gangs import GangReply

M = TypeVar("M", bound=BaseModel)
ANSWER_S = 10.0
"""Patience with what is answered at once."""
SHORTEST = 3
"""So many characters at least begin an id that is not given in full."""


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
        subject = names.private(names.gang(operation))
        message = await bus.request(subject, codec.to_json(body), timeout_s=timeout_s, headers=fields)
    except NoResponders:
        raise NoCoordinator(
            "no coordinator leads right now: if leaders are changing, ask again; if none runs, start one with "
            "'gangline coordinator'"
        ) from None
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


async def ask_of(
    bus: Bus, names: Names, operation: GangOperation, body: dict[str, Any], answer: type[M], timeout_s: float = ANSWER_S
) -> M:
    """One request about the gang that `body["id"]` names: by its id, or by the beginning of it, if that is of one only.

    Raises:
        UnknownGang: there is none, or there are several; says which.
        GanglineError: as `ask`.
    """
    try:
        return await ask(bus, names, operation, body, answer, timeout_s)
    except UnknownGang as error:
        begin, named = str(body["id"]), list[str]()
        with contextlib.suppress(GanglineError):
            found = await ask(bus, names, GangOperation.LIST, {}, GangListReply)
            named = [gang.id for gang in found.gangs if gang.id.startswith(begin) and len(begin) >= SHORTEST]
        if not named:
            raise
        if len(named) > 1:
            text = f"{begin} begins the ids of {len(named)} gangs: {', '.join(named[:5])}"
            raise UnknownGang(text) from error
    return await ask(bus, names, operation, {**body, "id": named[0]}, answer, timeout_s)


async def acquire(bus: Bus, names: Names, body: dict[str, Any], stop: asyncio.Event) -> GangReply:
    """Ask for a gang and wait for it, as the client does: what waits is asked for again, so that it keeps its place.

    Raises:
        KeyboardInterrupt: `stop` came first; the request was withdrawn.
        GanglineError: see Client.gang.
    """
    from ...dispatcher.gangs.coordinator_client import GangDesk
    from ...runtime.clock import Ambient
    from ...schemas.messages.gangs import AcquireRequest, OwnedRequest

    token = Ambient().token
    own = {"id": f"g{token()}", "owner_token": token(), "traceparent": tracer.traceparent()}
    request = AcquireRequest.parse({**own, **body})
    assert request.id is not None and request.owner_token is not None
    owned = OwnedRequest(id=request.id, owner_token=request.owner_token)
    desk = GangDesk(bus, names)
    deadline = None if request.deadline_s is None else asyncio.get_running_loop().time() + request.deadline_s
    asking = asyncio.ensure_future(desk.acquire(request, deadline, ANSWER_S))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            reply, _ = asking.result()
            return reply.model_copy(update={"owner_token": request.owner_token})
        raise KeyboardInterrupt
    except BaseException:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, GanglineError):
            await asking
        desk.release_unheard(owned)
        await bus.flush()
        raise
    finally:
        stopping.cancel()
