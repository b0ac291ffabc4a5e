"""`gangline console`: serves the pages until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import click

from ..console.options import ConnectionOptions
from ..console.output import echo
from ..console.signals import until_signal

if TYPE_CHECKING:
    import uvicorn

DEFAULT_PORT: Final = 4280
EXTRA: Final = "the console needs starlette and uvicorn: pip install 'gangline[console]'"


async def serve(
    connection: ConnectionOptions, operator: ConnectionOptions | None, *, listen: str, actions: str, **given: Any
) -> None:
    """Serve until a signal; prints the link to sign in.

    Args:
        operator: connection for actions; None: nothing can be done.
        listen: `host:port`.
        actions: `all`, or names with commas; empty: none.
        given: further settings; see ConsoleSettings.
    """
    with until_signal() as stop:
        async with serving(connection, operator, listen=listen, actions=actions, **given) as ended:
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()


@contextlib.asynccontextmanager
async def serving(
    connection: ConnectionOptions,
    operator: ConnectionOptions | None = None,
    *,
    listen: str = "127.0.0.1:4280",
    actions: str = "",
    any_port: bool = False,
    **given: Any,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve during the block; see `serve`. Yields a task that ends if the server does.

    Args:
        any_port: use a free port if that of `listen` is in use.

    Raises:
        UsageError: the extra is not installed, or the address is in use.
    """
    if not installed():
        raise click.ClickException(EXTRA)
    from ...console.app import Console
    from ...console.guard import Sessions
    from ...console.settings import ACTIONS, Auth, ConsoleSettings, is_any

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError(f"--listen {listen!r} is not HOST:PORT, for example 127.0.0.1:4280")
    settings = ConsoleSettings(
        host=host.strip("[]"),
        port=int(port),
        actions=ACTIONS if actions == "all" else tuple(filter(None, actions.split(","))),
        **given,
    )
    try:
        listening = _bind(settings.host, settings.port)
    except click.ClickException:
        if not any_port:
            raise
        listening = _bind(settings.host, 0)
    bound: int = listening.getsockname()[1]
    shown = "127.0.0.1" if is_any(settings.host) else host
    address = f"http://{shown}:{bound}{settings.root_path}/"
    links = 0

    def tell(token: str) -> None:
        nonlocal links
        links += 1
        if links == 1:
            echo(f"console   {address}?token={token}", fg="cyan")
        else:
            echo(f"console   a browser has signed in; for the next one: {address}?token={token}", fg="cyan")

    sessions = Sessions(tell)
    console = Console(
        connection.settings(),
        None if operator is None else operator.settings(),
        names=connection.names,
        settings=settings,
        sessions=sessions,
    )
    console.port = bound
    with contextlib.closing(listening):
        async with console:
            server = _server(console.asgi, settings.root_path)
            running = asyncio.create_task(server.serve(sockets=[listening]), name="console server")
            if settings.auth is Auth.PROXY:
                echo(f"console   {address}  (for the proxy)", fg="cyan")
            else:
                sessions.new_link()
            try:
                yield running
            finally:
                console.end_streams()
                server.should_exit = True
                await running


def installed() -> bool:
    """Whether the extra is."""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))


@contextlib.asynccontextmanager
async def beside(connection: ConnectionOptions) -> AsyncIterator[None]:
    """A console with all actions during the block, for a system on this machine: on its usual port if that is free."""
    async with serving(connection, connection, listen=f"127.0.0.1:{DEFAULT_PORT}", actions="all", any_port=True):
        yield


def _server(asgi: Any, root_path: str) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to us: one process may serve other things, too."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    # No access log: it would have the tokens of sign-in links.
    config = uvicorn.Config(
        asgi,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        root_path=root_path,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return Server(config)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening.setblocking(False)
    return listening
