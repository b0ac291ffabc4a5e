"""A virtual loop that runs an action at a given step, so that a test can try every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gangline.testing.loop import VirtualLoop

NEVER = 1_000_000_000


class SteppedLoop(VirtualLoop):
    """Schedules `action` when this many callbacks have been scheduled since `arm`."""

    def __init__(self) -> None:
        super().__init__(limit_s=86_400.0)
        self.scheduled = 0
        self._at = NEVER
        self._action: Callable[[], object] = lambda: None

    def arm(self, after: int, action: Callable[[], object]) -> None:
        """Run the action at the step with this number, counted from now; the next step is 1."""
        self._at, self._action = self.scheduled + after, action

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self.scheduled += 1
        if self.scheduled == self._at:
            super().call_soon(self._action)
        return super().call_soon(callback, *args, context=context)
