"""Time and chance for events: the loop's clock, the wall clock, and a draw."""

from __future__ import annotations

import asyncio
import random
from typing import TypedDict

from .clock import Environment


class EventTime(TypedDict):
    """The fields that every event of both cores has."""

    now: float
    wall: float
    draw: float


class EventClock:
    """Stamps events. Must be used on the loop that it was made on."""

    def __init__(self, ambient: Environment) -> None:
        self._loop = asyncio.get_running_loop()
        self._ambient = ambient
        # Every event has a draw, and few are looked at: no system call for each. They are for jitter, not for secrets.
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
