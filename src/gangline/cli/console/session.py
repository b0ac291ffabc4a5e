"""Runs a command's coroutine, with a bus connected to the server given by its options."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from ...runtime.loop_thread import loop_factory
from ...schemas.errors.base import GangImpossible, GanglineError, NoWorkers
from ...schemas.text import nearest_name
from .exits import NEAR, refusals
from .options import ConnectionOptions
from .output import echo

if TYPE_CHECKING:
    from ...bus.port.bus import Bus, KeyValue
    from ...dispatcher.client.audit import AuditTrail
    from ...dispatcher.client.client import Client

T = TypeVar("T")
_NEAR_S: Final = 1.0
"""How long to look for what was perhaps meant."""


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run the coroutine on a new loop (uvloop if available). Ctrl-C cancels it and raises KeyboardInterrupt."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(coroutine)
    finally:
        coroutine.close()  # an early Ctrl-C comes before it has begun, and Python would warn of that


@asynccontextmanager
async def open_bus(connection: ConnectionOptions, name: str) -> AsyncIterator[Bus]:
    """A connection, closed at the end.

    Raises:
        ServerUnreachable: no server at that address.
    """
    from ...bus.nats_bus import connect

    _log_for_people(connection.debug)
    bus = await connect(connection.settings(), name=name)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def open_client(connection: ConnectionOptions, name: str, *, gateway: bool = False) -> AsyncIterator[Client]:
    """A client, closed at the end. `gateway`: see `connect`.

    Raises:
        ServerUnreachable: no server at that address.
        ServerUnsupported: it is too old. Commands that only read would find nothing there.
    """
    from ...bus.jetstream.api import check_version
    from ...bus.port.bus import BucketSettings
    from ...dispatcher.client.client import connect

    _log_for_people(connection.debug)
    how, bucket = connection.settings(wait_for_server=False), BucketSettings.from_environment()
    async with connect(how, namespace=connection.namespace, name=name, bucket=bucket, gateway=gateway) as client:
        if not gateway:
            check_version(client.router.bus.server_version)
        try:
            yield client
        except (NoWorkers, GangImpossible) as error:
            if not gateway:
                await _add_near(client, error)
            raise


async def _add_near(client: Client, error: GanglineError) -> None:
    """Note in an error about a pool or a worker that does not exist which one was perhaps meant, if this user can see
    the workers."""
    with contextlib.suppress(GanglineError, TimeoutError):
        async with asyncio.timeout(_NEAR_S):
            workers = {each.name for each in await client.workers()}
        pools = {name.partition(".")[0] for name in workers}
        named = [error.details.get("pool"), *error.details.get("pools", ())]
        for name, known in (*((pool, pools) for pool in named), (error.details.get("worker"), workers)):
            near = nearest_name(name, sorted(known)) if isinstance(name, str) and name not in known else None
            if near is not None:
                error.details[NEAR] = near


def with_client(connection: ConnectionOptions, name: str, work: Callable[[Client], Coroutine[object, object, T]]) -> T:
    """Run `work` with a client that is closed afterwards, and return its result. Raises as `open_client`."""

    async def working() -> T:
        async with open_client(connection, name) as client:
            return await work(client)

    return run(working())


def audit_of(client: Client) -> AuditTrail:
    """The audit trail, on the connection of a client."""
    from ...dispatcher.client.audit import AuditTrail

    return AuditTrail(client.router.bus, client.router.names)


def as_operator(
    connection: ConnectionOptions,
    action: str,
    target: str,
    reason: str,
    work: Callable[[Client], Coroutine[object, object, T]],
) -> T:
    """`with_client` for an action of an operator, which is recorded in the audit trail."""

    async def recorded(client: Client) -> T:
        async with audit_of(client).noted(action, target, reason):
            return await work(client)

    return with_client(connection, f"gangline {action}", recorded)


class _Echo(logging.Handler):
    """Writes to the current stderr, so that log lines appear above a live table. What the server forbids is not
    written, but kept in `refusals`: the error of the command says it, or the command can do without. If a request was
    waiting for an answer, its caller has the error, and nothing is kept."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "bus.not_permitted":
            if not getattr(record, "told", False):
                refusals.append(self.format(record))
        else:
            echo(self.format(record), err=True)


def _log_for_people(debug: bool) -> None:
    """A command that ends by itself logs only that it is waiting for a connection, or is missing from the audit trail,
    and everything if `debug`; its last line reports the outcome. Commands that keep running have configured their logs
    before."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _Echo()
    handler.setFormatter(logging.Formatter("gangline: %(message)s"))
    root.addHandler(handler)
    if debug:
        logging.getLogger("gangline.ledger").setLevel(logging.DEBUG)
    else:
        logging.getLogger("gangline").setLevel(logging.ERROR)
        for part in ("bus", "audit"):
            logging.getLogger(f"gangline.{part}").setLevel(logging.WARNING)


async def open_ledger(
    bus: Bus, connection: ConnectionOptions, environment: Mapping[str, str] | None = None
) -> KeyValue:
    """The ledger of the namespace; created, as configured in the environment, if it does not exist yet."""
    from ...bus.port.bus import BucketSettings

    return await bus.bucket(connection.names.ledger_bucket, BucketSettings.from_environment(environment))


@asynccontextmanager
async def telemetry(service: str, *, scraped: bool = False) -> AsyncIterator[None]:
    """Set exporters as configured in the environment, and flush them at the end.

    Args:
        scraped: metrics are read at the health port, too.
    """
    from ...telemetry.setup import configure

    end = configure(service, scraped=scraped)
    try:
        yield
    finally:
        # Exporters block while they send the rest; nothing else is left to do.
        await asyncio.to_thread(end)
