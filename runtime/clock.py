"""Time and randomness: all external inputs besides NATS.

Monotonic time is always the running loop's `time()`, and waiting is `asyncio.sleep` or `call_later`, so a virtual loop
controls both. This module provides the rest.
"""

from __future__ import annotations

import asyncio
import binascii
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypedDict

_TOKEN_CHARS: Final = 22
_STRIDE: Final = 24
"""Characters of Base64 for 18 bytes, of which a token takes the first 22: 132 random bits."""
_BATCH: Final = 256
_ALPHABET: Final = bytes.maketrans(b"+/", b"-_")


class TokenSource:
    """Tokens from the system's randomness, fetched in batches: saves a system call per lease."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        # A child process must not give out its parent's stored tokens.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> str:
        while True:
            at = self._at
            if at >= len(self._text):
                random_bytes = secrets.token_bytes(_BATCH * _STRIDE * 3 // 4)
                self._text = binascii.b2a_base64(random_bytes, newline=False).translate(_ALPHABET).decode()
                at = 0
            self._at = at + _STRIDE
            if self._text[at] not in "-_":  # a command would take `-` for the beginning of an option
                return self._text[at : at + _TOKEN_CHARS]

    def _forget(self) -> None:
        self._text, self._at = "", 0


_own: Final = threading.local()
"""Each thread has its own store: no token may be given out twice."""


def _token() -> str:
    tokens: TokenSource | None = getattr(_own, "tokens", None)
    if tokens is None:
        tokens = _own.tokens = TokenSource()
    return tokens()


def forget_tokens() -> None:
    """Drop this thread's stored tokens: the next token comes from randomness drawn after this call."""
    _own.__dict__.clear()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@dataclass(frozen=True, slots=True)
class Environment:
    """Wall clock, randomness and unguessable tokens; the simulator passes seeded ones."""

    wall: Callable[[], float] = time.time
    """Unix time in seconds; for people and for epochs, never for measuring."""
    random: random.Random = field(default_factory=random.SystemRandom)
    """Draws for jitter and choices. Not for secrets."""
    token: Callable[[], str] = _token
    """A new unguessable name of `[A-Za-z0-9_-]`, 22 characters, of which the first is a letter or a digit."""
    port: Callable[[], int] = _free_port
    """A TCP port that is free now. Another process may take it before it is used."""


class EventTime(TypedDict):
    """The fields common to all events of both cores."""

    now: float
    wall: float
    draw: float


class EventClock:
    """Gives events their time and draw. Must be used on the loop on which it was created."""

    def __init__(self, ambient: Environment) -> None:
        self._loop = asyncio.get_running_loop()
        self._ambient = ambient
        # Every event has a draw but few are used, so avoid a system call for each. They are for jitter, not for
        # secrets.
        self._draw = random.Random(ambient.random.random()).random

    def moment(self) -> EventTime:
        return {"now": self._loop.time(), "wall": self._ambient.wall(), "draw": self._draw()}

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self._loop.time()

    def token(self) -> str:
        """A new unguessable name."""
        return self._ambient.token()

    @property
    def wall(self) -> float:
        """Unix time."""
        return self._ambient.wall()
