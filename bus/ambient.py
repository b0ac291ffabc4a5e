"""Time and chance, the second outside thing beside NATS.

Monotonic time is always the running loop's `time()`, and waiting is `asyncio.sleep` or `call_later`, so that a virtual
loop moves them all. What a loop cannot give comes from here.
"""

from __future__ import annotations

import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def _system_token() -> str:
    return secrets.token_urlsafe(16)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@dataclass(frozen=True, slots=True)
class Ambient:
    """Wall clock, randomness and unguessable tokens; the simulator passes seeded ones."""

    wall: Callable[[], float] = time.time
    """Unix time in seconds; for people and for epochs, never for measuring."""
    random: random.Random = field(default_factory=random.SystemRandom)
    """Draws for jitter and choices. Not for secrets."""
    token: Callable[[], str] = _system_token
    """A new unguessable name of `[A-Za-z0-9_-]`, 22 characters."""
    port: Callable[[], int] = _free_port
    """A TCP port that nobody listens on just now. Somebody else may take it before it is used."""
