"""Commands that stay with gangs: events as they come, and a gang that is kept until interrupted."""

from __future__ import annotations

import asyncio
import sys
import time

import click
from pydantic import ValidationError

from ...bus.port.bus import Bus, ConnectionEvent, Message
from ...schemas.errors.base import Disconnected, GanglineError, LeaseError
from ...schemas.errors.gangs import GangEnded
from ...schemas.messages.gangs import GangEvent, GangReply
from ...schemas.names import GangOperation, Names
from ..console.options import Connection
from ..console.session import open_bus
from ..stores.gang_requests import ask


async def follow_events(connection: Connection, gang: str | None, as_json: bool) -> None:
    """Print events until interrupted; those of one gang until it has ended.

    Raises:
        Disconnected: the connection was closed for good.
        BrokenPipeError: nobody reads what is printed any more.
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
            return  # not one of ours
        try:
            click.echo(message.data.decode() if as_json else event_line(event))
            sys.stdout.flush()
        except BrokenPipeError as error:  # nobody reads it any more
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
        click.echo(f"listens to {names.gang_events if gang is None else gang}; ctrl-c ends", err=True)
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


async def keep(bus: Bus, names: Names, gang: GangReply, stop: asyncio.Event) -> None:
    """Renew until `stop` is set, then release.

    Raises:
        GangEnded: it ended by itself.
    """
    owned = {"id": gang.id, "owner_token": gang.owner_token}
    generation = gang.generation
    while not stop.is_set():
        try:
            async with asyncio.timeout(gang.ttl_s / 3):
                await stop.wait()
        except TimeoutError:
            pass
        else:
            break
        try:
            now = await ask(bus, names, GangOperation.RENEW, owned, GangReply, gang.ttl_s / 3)
        except LeaseError:
            raise
        except GanglineError as error:
            click.echo(f"not renewed: {error}", err=True)
            continue
        if now.generation != generation:
            generation = now.generation
            click.echo(f"gang {gang.id} is in generation {generation}: {now.reason or now.step}", err=True)
    try:
        await ask(bus, names, GangOperation.RELEASE, owned, GangReply, 60.0)
    except GangEnded:
        pass
