"""Requests gangs, follows their events, and renews a gang until interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from ...bus.port.bus import Bus, ConnectionEvent, Message
from ...dispatcher.client.client import Client
from ...dispatcher.gangs.coordinator_client import CoordinatorClient
from ...runtime.clock import Environment
from ...schemas.errors.base import Disconnected, GangEnded, GanglineError, LeaseError, UnknownGang
from ...schemas.messages.gangs import (
    AcquireRequest,
    EndRequest,
    GangEvent,
    GangListReply,
    GangListRequest,
    GangQuery,
    GangReply,
    GangWhyReply,
    OwnedRequest,
)
from ...schemas.names import GangOperation, Names
from ...telemetry.tracing import tracer
from ..console.options import ConnectionOptions
from ..console.output import echo
from ..console.session import open_bus
from .gangs import why_lines

M = TypeVar("M", bound=BaseModel)
ANSWER_S: Final = 10.0
"""Timeout of requests that are answered at once."""
LONG_S: Final = 2.0
"""After waiting for this long, the reason is shown once."""
SHORTEST: Final = 3
"""Minimum length of an abbreviated id."""


async def list_gangs(client: Client, gangset: str | None = None) -> GangListReply:
    """All gangs that have not ended, or those of one standing set."""
    wanted = GangListRequest(gangset=gangset)
    return await client.router.gangs.coordinator_client.ask_for(GangListReply, GangOperation.LIST, wanted, ANSWER_S)


async def ask_of(
    client: Client,
    answer: type[M],
    operation: GangOperation,
    request: EndRequest | GangQuery | OwnedRequest,
    timeout_s: float = ANSWER_S,
) -> M:
    """Send a request about the gang with this id, or with the only id that begins with it.

    Raises:
        UnknownGang: there is none, or there are several; the text lists them.
        GanglineError: as CoordinatorClient.ask_for.
    """
    coordinator_client = client.router.gangs.coordinator_client
    try:
        return await coordinator_client.ask_for(answer, operation, request, timeout_s)
    except UnknownGang as error:
        begin, named = request.id, list[str]()
        with contextlib.suppress(GanglineError):
            named = [
                gang.id
                for gang in (await list_gangs(client)).gangs
                if gang.id.startswith(begin) and len(begin) >= SHORTEST
            ]
        if not named:
            raise
        if len(named) > 1:
            text = f"{begin} begins the ids of {len(named)} gangs: {', '.join(named[:5])}"
            raise UnknownGang(text) from error
    return await coordinator_client.ask_for(answer, operation, request.model_copy(update={"id": named[0]}), timeout_s)


async def acquire(client: Client, body: dict[str, Any], stop: asyncio.Event) -> GangReply:
    """Request a gang and wait for it. If that takes long, the reason is printed on stderr.

    Raises:
        KeyboardInterrupt: `stop` was set first; the request was withdrawn.
        GanglineError: see Client.gang.
    """
    token = Environment().token
    owned = OwnedRequest(id=f"g{token()}", owner_token=token())
    names = {"id": owned.id, "owner_token": owned.owner_token, "traceparent": tracer.traceparent()}
    request = AcquireRequest.parse({**names, **body})
    coordinator_client = client.router.gangs.coordinator_client
    deadline = None if request.deadline_s is None else asyncio.get_running_loop().time() + request.deadline_s
    asking = asyncio.ensure_future(coordinator_client.acquire(request, deadline, ANSWER_S))
    stopping = asyncio.ensure_future(stop.wait())
    telling = asyncio.ensure_future(_tell_why(client, owned.id))
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            reply, _ = asking.result()
            return reply.model_copy(update={"owner_token": owned.owner_token})
        raise KeyboardInterrupt
    except BaseException:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, GanglineError):
            await asking
        coordinator_client.release_unheard(owned)
        await client.router.bus.flush()
        raise
    finally:
        stopping.cancel()
        telling.cancel()
        await asyncio.wait((telling,))


async def _tell_why(client: Client, gang: str) -> None:
    """Say what a gang waits for, once."""
    await asyncio.sleep(LONG_S)
    echo(f"gang {gang} is not formed yet; Ctrl-C withdraws the request", err=True)
    with contextlib.suppress(GanglineError):
        why = await ask_of(client, GangWhyReply, GangOperation.WHY, GangQuery(id=gang))
        for line in why_lines(why):
            echo(line, err=True)


async def follow_events(connection: ConnectionOptions, gang: str | None, as_json: bool) -> None:
    """Print events until interrupted; events of one gang until it has ended.

    Raises:
        Disconnected: the connection was closed for good.
        BrokenPipeError: the reader of stdout is gone.
    """
    async with open_bus(connection, "gangline gang events") as bus:
        await print_events(bus, connection.names, gang, as_json)


async def print_events(bus: Bus, names: Names, gang: str | None, as_json: bool) -> None:
    """See follow_events."""
    over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def take(message: Message) -> None:
        try:
            event = GangEvent.model_validate_json(message.data)
        except ValidationError:
            return  # not an event of ours
        try:
            echo(message.data.decode() if as_json else event_line(event))
            sys.stdout.flush()
        except BrokenPipeError as error:  # the reader of stdout is gone
            if not over.done():
                over.set_exception(error)
        if gang is not None and event.kind == "ended" and not over.done():
            over.set_result(True)

    def closed(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CLOSED and not over.done():
            over.set_result(False)

    bus.on_connection(closed)
    await bus.subscribe(names.gang_events if gang is None else names.gang_event(gang), take)
    await bus.flush()
    if not as_json:
        echo(f"listening to {names.gang_events if gang is None else gang}; Ctrl-C stops", err=True)
    if not await over:
        raise Disconnected("the connection was closed")


def event_line(event: GangEvent) -> str:
    """`12:00:01  torn_down  g1  generation 1  rank 2  crashed: signal 9`"""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at or None))
    parts = [clock, f"{event.kind.value:<11}", event.gang, f"generation {event.generation}"]
    if event.gangset:
        parts.append(f"set {event.gangset}")
    if event.rank is not None:
        parts.append(f"rank {event.rank}")
    if event.reason:
        parts.append(event.reason)
    if event.unconfirmed:
        parts.append(f"not confirmed by {', '.join(event.unconfirmed)}")
    return "  ".join(parts)


async def keep(coordinator_client: CoordinatorClient, gang: GangReply, stop: asyncio.Event) -> None:
    """Renew until `stop` is set, then release.

    Raises:
        GangEnded: it ended without being released here.
    """
    assert gang.owner_token is not None, "it is ours"
    owned = OwnedRequest(id=gang.id, owner_token=gang.owner_token)
    generation = gang.generation
    loop, told = asyncio.get_running_loop(), ""
    renewed_at = loop.time()
    while not stop.is_set():
        try:
            async with asyncio.timeout(gang.ttl_s / 3):
                await stop.wait()
        except TimeoutError:
            pass
        else:
            break
        try:
            now = await coordinator_client.ask(GangOperation.RENEW, owned, gang.ttl_s / 3)
        except LeaseError:
            raise
        except GanglineError as error:
            late = loop.time() - renewed_at >= gang.ttl_s
            text = (
                f"not renewed for {gang.ttl_s:g} s: the gang ends, if a coordinator leads"
                if late
                else f"not renewed: {error}"
            )
            if text != told:
                echo(text, err=True)
            told = text
            continue
        renewed_at, told = loop.time(), ""
        if now.generation != generation:
            generation = now.generation
            echo(f"gang {gang.id} is in generation {generation}: {now.reason or now.step}", err=True)
    try:
        await coordinator_client.ask(GangOperation.RELEASE, owned, 60.0)
    except GangEnded:
        pass
