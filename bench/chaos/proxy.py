"""A TCP proxy whose links can be slow, silent, silent in one direction, or cut; all of them in one event loop.

A link stands for the cable between a process and a server, or between two servers. As with a real cable, data sent
while the link is silent is not lost: TCP delivers it later, if both ends are still connected. Connecting over a silent
link hangs; connecting over a cut link is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, cast

_MOST_KEPT_BYTES: Final = 4_000_000
"""Buffered bytes in one direction of one connection; beyond that its sender has to wait, as with a full TCP window."""


class Link:
    """A link between `a`, which connects, and `b`. Its state applies to all its connections, including new ones.

    `backwards`: the same cable for connections that `b` makes, through a listener of their own.
    """

    def __init__(self, a: str, b: str) -> None:
        self.a = a
        self.b = b
        self.cut = False
        self.silent = {a: False, b: False}
        """By sender: whether its data is held back."""
        self.delay_s = 0.0
        self.connections: set[_Connection] = set()

    def __repr__(self) -> str:
        return f"<Link {self.a}-{self.b} cut={self.cut} silent={self.silent} delay={self.delay_s}>"

    def silence(self, *speakers: str) -> None:
        """Hold back all data of these senders; of both if none are given."""
        for speaker in speakers or (self.a, self.b):
            self.silent[speaker] = True

    def slow(self, delay_s: float) -> None:
        """Delay all data by this time, in both directions."""
        self.delay_s = delay_s

    def sever(self) -> None:
        """Reset all connections, and refuse new ones."""
        self.cut = True
        for connection in list(self.connections):
            connection.abort()

    def heal(self) -> None:
        """Restore the link; data held back is delivered now."""
        self.cut = False
        self.delay_s = 0.0
        self.silent = dict.fromkeys(self.silent, False)
        for connection in list(self.connections):
            connection.wake()


class _End(asyncio.Protocol):
    """One end of one connection."""

    def __init__(self, connection: _Connection, speaker: str) -> None:
        self.connection = connection
        self.speaker = speaker
        self.transport: asyncio.Transport | None = None
        self.other: _End
        self.kept: deque[tuple[float, bytes]] = deque()
        """Data read here and not delivered yet, with the time when it is due."""
        self.kept_bytes = 0
        self.ended = False
        self.paused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.connection.made(self)
        self.other.deliver()

    def data_received(self, data: bytes) -> None:
        link, out = self.connection.link, self.other.transport
        if not self.kept and out is not None and not link.delay_s and not link.silent[self.speaker]:
            if not self.other.ended:
                out.write(data)
            return
        self.kept.append((asyncio.get_running_loop().time() + link.delay_s, data))
        self.kept_bytes += len(data)
        if self.kept_bytes > _MOST_KEPT_BYTES and not self.paused and self.transport is not None:
            self.paused = True
            self.transport.pause_reading()
        self.deliver()

    def deliver(self) -> None:
        """Deliver all data that is due."""
        link, out = self.connection.link, self.other.transport
        if out is None or link.silent[self.speaker]:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.kept and (self.kept[0][0] <= now or not link.delay_s):
            _, data = self.kept.popleft()
            self.kept_bytes -= len(data)
            if not self.other.ended:
                out.write(data)
        if self.paused and self.kept_bytes < _MOST_KEPT_BYTES and self.transport is not None and not self.ended:
            self.paused = False
            self.transport.resume_reading()
        if self.kept:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self.kept[0][0], self.deliver)
        elif self.ended:
            out.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self.deliver()
        self.connection.lost()


class _Connection:
    def __init__(self, link: Link, dialler: str, port: Callable[[], int], tasks: set[asyncio.Task[None]]) -> None:
        self.link = link
        self._port = port
        self._tasks = tasks
        listener = link.b if dialler == link.a else link.a
        self.near, self.far = _End(self, dialler), _End(self, listener)
        self.near.other, self.far.other = self.far, self.near
        link.connections.add(self)
        self._dialling = False

    def made(self, end: _End) -> None:
        if end is not self.near:
            return
        if self.link.cut:
            self.abort()
        else:
            self.wake()

    def wake(self) -> None:
        """The state of the link may have changed."""
        if self.far.transport is None and not self._dialling and not self.near.ended:
            if not any(self.link.silent.values()):
                self._dialling = True
                self._spawn(self._dial())
            return
        self.near.deliver()
        self.far.deliver()

    async def _dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, "127.0.0.1", self._port())
        except OSError:
            self.abort()
        else:
            if self.near.ended:
                self.abort()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lost(self) -> None:
        if self.near.ended and (self.far.ended or self.far.transport is None):
            self.link.connections.discard(self)

    def abort(self) -> None:
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.abort()
        self.link.connections.discard(self)


class Proxy:
    """All links, and the ports to connect to."""

    def __init__(self) -> None:
        self.links: dict[frozenset[str], Link] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, dialler: str, listener: str, port: Callable[[], int]) -> int:
        """Open a port at which `dialler` reaches `listener`.

        Args:
            port: returns the real port of `listener`; called for each connection.
        """
        link = self.links.setdefault(frozenset((dialler, listener)), Link(dialler, listener))

        def accept() -> _End:
            return _Connection(link, dialler, port, self._tasks).near

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def closed_port(self) -> int:
        """A port at which every connection is closed at once."""

        class Refusing(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                cast("asyncio.Transport", transport).abort()

        server = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def between(self, a: str, b: str) -> Link:
        return self.links[frozenset((a, b))]

    def of(self, party: str) -> list[Link]:
        """All links with that party at one end."""
        return [link for ends, link in self.links.items() if party in ends]

    def heal(self, links: Iterable[Link] | None = None) -> None:
        for link in self.links.values() if links is None else links:
            link.heal()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for link in self.links.values():
            for connection in list(link.connections):
                connection.abort()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
