"""Time and chance for events: the loop's clock, the wall clock, and a draw."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from ..bus.ambient import Ambient


class Moment(TypedDict):
    """The fields that every event of both cores has."""

    now: float
    wall: float
    draw: float


class Clock:
    """Stamps events. Must be used on the loop that it was made on."""

    def __init__(self, ambient: Ambient) -> None:
        self._loop = asyncio.get_running_loop()
        self._ambient = ambient

    def moment(self) -> Moment:
        ambient = self._ambient
        return {"now": self._loop.time(), "wall": ambient.wall(), "draw": ambient.random.random()}

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
