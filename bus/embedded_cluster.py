"""Several embedded servers as one JetStream cluster; for tests of what happens when one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Final, Self

from ..schemas.errors import InvalidSettings
from .embedded import EmbeddedServer

_LEADER_TIMEOUT_S: Final = 30.0
_CLUSTER: Final = "gangline-embedded"


class EmbeddedCluster:
    """`size` servers on 127.0.0.1, with names `n1`, `n2` and so on.

    Args:
        size: 3 or 5; an even number survives no more losses than one less.
        config: further configuration of each server.
    """

    def __init__(self, size: int = 3, *, config: str = "") -> None:
        if not 2 <= size <= 9:
            raise InvalidSettings(f"a cluster of {size}: give 3 or 5")
        ports = free_ports(size)
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        self.servers = [
            EmbeddedServer(
                name=f"n{number}",
                config=f"cluster {{ name: {_CLUSTER}, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n{config}",
            )
            for number, port in enumerate(ports, 1)
        ]

    def __repr__(self) -> str:
        return f"<EmbeddedCluster {self.servers}>"

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all of them; known once started."""
        return tuple(server.url for server in self.servers)

    def server(self, name: str) -> EmbeddedServer:
        """The one with that name, as in JetStream's `cluster.leader`."""
        return self.servers[int(name.removeprefix("n")) - 1]

    def start(self) -> Self:
        """Start all and wait for a leader of JetStream's metadata.

        Raises:
            ServerUnreachable, ServerUnsupported: as EmbeddedServer.start.
        """
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.await_ready()
        for server in self.servers:
            server.await_log("JetStream cluster (new )?metadata leader", _LEADER_TIMEOUT_S)
        return self

    def stop(self) -> None:
        """End all of them. Idempotent."""
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            return await asyncio.to_thread(self.start)
        except BaseException:
            self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.to_thread(self.stop))


def free_ports(count: int) -> list[int]:
    """Ports for the routes, which each server must know of the others beforehand."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
