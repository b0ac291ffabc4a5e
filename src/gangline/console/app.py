"""The console as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from ..board.feed import BoardFeed
from ..bus.nats_bus import connect as connect_bus
from ..bus.port.bus import NotPermitted
from ..bus.settings.connection import ConnectionSettings
from ..dispatcher.client.client import Client
from ..schemas.errors.base import GanglineError, InvalidRequest
from ..schemas.names import Names
from ..schemas.wire import codec
from .actions import Actions
from .guard import Guard, Sessions
from .reads import Reads
from .settings import ConsoleSettings
from .stream import DeltaStream

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

STATIC: Final = Path(__file__).parent / "static"


class Console:
    """The console's connections and pages. Use it as an async context manager, then serve `asgi`.

    Args:
        observer: how to connect for reading; a user with the role `observer` can read all.
        operator: how to connect for actions; None: nothing can be done.
        names: the namespace.
        sessions: who has signed in.
        port: on which it is served; None: not known yet.
    """

    def __init__(
        self,
        observer: ConnectionSettings,
        operator: ConnectionSettings | None = None,
        *,
        names: Names | None = None,
        settings: ConsoleSettings | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.settings = settings or ConsoleSettings()
        self.sessions = sessions or Sessions()
        self.port: int | None = self.settings.port or None
        self._observer = observer
        self._operator = operator
        self._names = names or Names()
        self._stack = contextlib.AsyncExitStack()
        self._feed: BoardFeed | None = None
        self._reads: Reads | None = None
        self._stream: DeltaStream | None = None
        self._actions: Actions | None = None
        self.asgi: ASGIApp = Guard(self._starlette(), self.settings, self.sessions, lambda: self.port)

    async def __aenter__(self) -> Console:
        """
        Raises:
            ServerUnreachable: no server at that address.
            Disconnected, StorageUnavailable, NotPermitted: the ledger cannot be read.
        """
        try:
            client = await self._connect(self._observer, "gangline console")
            self._feed = feed = BoardFeed(client)
            self._reads = Reads(client, feed, payloads=self.settings.show_payloads)
            self._stack.push_async_callback(self._reads.close)
            feed.in_view = self._reads.in_view
            self._stack.push_async_callback(feed.close)
            await feed.start()
            self._stream = DeltaStream(feed)
            self._stack.callback(self._stream.close)
            if self.settings.actions and self._operator is not None:
                operator = await self._connect(self._operator, "gangline console actions")
                self._actions = Actions(operator, frozenset(self.settings.actions))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def end_streams(self) -> None:
        """End the streams to browsers, which would keep a server from stopping."""
        if self._stream is not None:
            self._stream.close()

    @property
    def feed(self) -> BoardFeed:
        assert self._feed is not None, "entered"
        return self._feed

    async def _connect(self, settings: ConnectionSettings, name: str) -> Client:
        bus = await connect_bus(settings, name=name)
        self._stack.push_async_callback(bus.close)
        return await self._stack.enter_async_context(Client(bus, names=self._names, name=name))

    # -- pages --------------------------------------------------------------------------------------------------------

    def _starlette(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/meta", self._meta),
                Route("/api/board", self._board),
                Route("/api/stream", self._events),
                Route("/api/act/{action}", self._act, methods=["POST"]),
                Route("/api/{name}", self._read),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )

    async def _page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        page = (STATIC / "index.html").read_text().replace("{root}", self.settings.root_path)
        return HTMLResponse(page)

    async def _meta(self, request: Request) -> Response:
        feed = self.feed
        return _json(
            {
                "namespace": self._names.namespace,
                "user": request.state.user,
                "signs_out": bool(request.state.session),
                "actions": sorted(self.settings.actions) if self._actions is not None else [],
                "payloads": self.settings.show_payloads,
                "connected": feed.connected,
                "version": _version(),
                "server": ", ".join(_address(url) for url in self._observer.urls),
            }
        )

    async def _board(self, request: Request) -> Response:
        return _json(self.feed.board.snapshot().to_json())

    async def _events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        assert self._stream is not None, "entered"
        last = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        events = _while(request.state.signed_in, self._stream.events(last))
        return StreamingResponse(events, media_type="text/event-stream", headers=_LIVE)

    async def _read(self, request: Request) -> Response:
        assert self._reads is not None, "entered"
        read = self._reads.by_name.get(request.path_params["name"])
        if read is None:
            return _json({"error": "not_found", "message": "there is nothing here"}, 404)
        try:
            return _json(await read(request.query_params))
        except (GanglineError, ValidationError) as error:
            return _failed(error)

    async def _act(self, request: Request) -> Response:
        try:
            if self._actions is None:
                raise NotPermitted("this console only shows: start it with --actions to act")
            body = codec.from_json(await request.body())
            return _json(await self._actions.act(request.path_params["action"], body, request.state.user))
        except (GanglineError, ValidationError) as error:
            return _failed(error)


_LIVE: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def _while(holds: Callable[[], bool], events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events until it does not hold any more; a ping comes at least every few seconds."""
    async with contextlib.aclosing(events):
        async for event in events:
            if not holds():
                return
            yield event


def _json(body: object, status: int = 200) -> Response:
    from pydantic_core import to_json
    from starlette.responses import Response

    return Response(to_json(body), status_code=status, media_type="application/json")


def _failed(error: GanglineError | ValidationError) -> Response:
    if not isinstance(error, GanglineError):
        told = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
        error = InvalidRequest("; ".join(told))
    return _json({"error": error.code, "message": error.message}, error.status)


def _version() -> str:
    from importlib.metadata import version

    return version("gangline")


def _address(url: str) -> str:
    """Without user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def app(
    observer: ConnectionSettings | None = None,
    operator: ConnectionSettings | None = None,
    *,
    namespace: str = "gangline",
    settings: ConsoleSettings | None = None,
    on_link: Callable[[str], None] = lambda token: None,
) -> ASGIApp:
    """The console as an ASGI application, for an ASGI server of your own or to mount in another application. Its
    lifespan connects; an application that does not pass lifespan events on enters a `Console` itself.

    Args:
        observer: how to connect for reading. Default: from the environment, as the command does.
        operator: how to connect for actions; None: nothing can be done.
        namespace: see `Names`.
        settings: of `hosts` it needs the names by which browsers reach it.
        on_link: told the token of each sign-in link: open `/?token=...`.
    """
    console = Console(
        observer or ConnectionSettings.from_environment(),
        operator,
        names=Names(namespace),
        settings=settings,
        sessions=Sessions(on_link),
    )

    async def served(scope: object, receive: object, send: object) -> None:
        if isinstance(scope, dict) and scope["type"] == "lifespan":
            await _live(console, receive, send)
        else:
            await console.asgi(scope, receive, send)  # type: ignore[arg-type]

    return served


async def _live(console: Console, receive: object, send: object) -> None:
    """The lifespan protocol."""
    assert callable(receive) and callable(send)
    await receive()
    try:
        await console.__aenter__()
    except Exception as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    console.sessions.new_link()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await console.__aexit__()
    await send({"type": "lifespan.shutdown.complete"})
