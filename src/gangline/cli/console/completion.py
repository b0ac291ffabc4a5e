"""Live names for shell completion: they are asked for at the server that the command line names.

A shell waits for each completion, so a server that does not answer soon, or refuses, completes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .options import Completer, ConnectionOptions

if TYPE_CHECKING:
    from ...dispatcher.client.client import Client

PATIENCE_S: Final = 1.0
"""How long a completion waits for the server."""
_MOST: Final = 500
Names = Callable[["Client"], Awaitable[Iterable[str]]]


def _connection(ctx: click.Context) -> ConnectionOptions:
    given = {field.name: ctx.params.get(field.name) for field in fields(ConnectionOptions)}
    return ConnectionOptions(**{name: value for name, value in given.items() if value})


def _live(names: Names) -> Completer:
    """Completes with names that a client finds."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        import asyncio

        from .session import open_client, run

        async def ask() -> list[str]:
            async with asyncio.timeout(PATIENCE_S), open_client(connection, "gangline completion") as client:
                return sorted(set(await names(client)))

        logging.disable()
        try:
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
                connection = replace(_connection(ctx), debug=False)
                return [name for name in run(ask()) if name.startswith(incomplete)][:_MOST]
        except Exception:
            return []
        finally:
            logging.disable(logging.NOTSET)

    return complete


async def _workers(client: Client) -> Iterable[str]:
    return [worker.name for worker in await client.workers()]


async def _pools(client: Client) -> Iterable[str]:
    return [worker.registration.pool for worker in await client.workers()]


async def _targets(client: Client) -> Iterable[str]:
    return [
        f"{worker.registration.pool}.{method}"
        for worker in await client.workers()
        for method in worker.registration.methods
    ]


async def _endpoints(client: Client) -> Iterable[str]:
    await client.router.routes.ready()
    queues = [queue.endpoint for queue in await client.queues()]
    return [*(await _pools(client)), *client.router.routes.known, *queues]


async def _jobs(client: Client) -> Iterable[str]:
    page = await client.jobs(limit=100)
    return [info.job for info in page.jobs]


async def _letters(client: Client) -> Iterable[str]:
    return [letter.job for letter in await client.dead_letters(limit=_MOST, bodies=False)]


async def _schedules(client: Client) -> Iterable[str]:
    return [schedule.name or schedule.id for schedule in await client.schedules()]


async def _gangs(client: Client) -> Iterable[str]:
    from ...schemas.messages.gangs import GangListReply, GangListRequest
    from ...schemas.names import GangOperation

    coordinator = client.router.gangs.coordinator_client
    reply = await coordinator.ask_for(GangListReply, GangOperation.LIST, GangListRequest(), PATIENCE_S)
    return [gang.id for gang in reply.gangs]


async def _waiting(client: Client) -> Iterable[str]:
    found: list[str] = []
    for ask in (_gangs, _jobs):
        with contextlib.suppress(Exception):
            found += await ask(client)
    return found


async def _sets(client: Client) -> Iterable[str]:
    from ...schemas.names import Names as Subjects

    entries = await (await client.router.ledger()).entries(Subjects.gangset_key())
    return [entry.key.partition(".")[2] for entry in entries]


workers, pools, targets, endpoints = _live(_workers), _live(_pools), _live(_targets), _live(_endpoints)
jobs, letters, schedules = _live(_jobs), _live(_letters), _live(_schedules)
gangs, gangsets, waiting = _live(_gangs), _live(_sets), _live(_waiting)
