"""Several embedded servers as one JetStream cluster, for tests of failing servers."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final, Self

from ...schemas.errors.base import InvalidSettings, ServerUnreachable
from .server import EmbeddedServer, Startable

_LEADER_TIMEOUT_S: Final = 30.0
_CLUSTER: Final = "gangline-embedded"
_PORTS: Final = (10_240, 32_768)
_TRIES: Final = 1000


class EmbeddedCluster(Startable):
    """`size` servers on 127.0.0.1, with names `n1`, `n2` and so on.

    Args:
        size: 3 or 5; an even number tolerates no more losses than one server fewer.
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
        """The addresses of all servers; known once started."""
        return tuple(server.url for server in self.servers)

    def server(self, name: str) -> EmbeddedServer:
        """The server with this name, as in JetStream's `cluster.leader`."""
        return self.servers[int(name.removeprefix("n")) - 1]

    def start(self) -> Self:
        """Start all servers and wait for a JetStream metadata leader.

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
        """Stop all servers. Idempotent."""
        for server in self.servers:
            server.stop()


def free_ports(count: int) -> list[int]:
    """Ports for the routes, which each server must know in advance.

    They are below the ephemeral ports (from 32768 on Linux, from 49152 elsewhere), of which any process's connection
    could take one before its server does.
    """
    chance = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES):
        port = chance.randrange(*_PORTS)
        with socket.socket() as probe:
            # As the server binds: a port that only lingers in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        found = list(dict.fromkeys(found))
        if len(found) == count:
            return found
    raise ServerUnreachable(f"no {count} free ports were found between {_PORTS[0]} and {_PORTS[1]} on 127.0.0.1")
