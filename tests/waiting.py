"""Waiting for what gives no signal: asked again until it holds, within a bound that only ends a hang."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

from gangline.bus.port.bus import NoResponders, RequestTimeout

PATIENCE_S: Final = 60.0
"""How long tests wait before they call it a hang. Not a measure of speed: a busy machine may take most of it."""


async def until(
    holds: Callable[[], object | Awaitable[object]],
    what: str | Callable[[], str] = "",
    *,
    within_s: float = PATIENCE_S,
    pause_s: float = 0.01,
) -> None:
    """Wait until `holds()` is true; it may be a coroutine function.

    Args:
        what: what is awaited, for the error; a function is called when it fails.

    Raises:
        TimeoutError: it never was within `within_s`.
    """
    try:
        async with asyncio.timeout(within_s):
            while True:
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(pause_s)
    except TimeoutError:
        said = what() if callable(what) else what
        raise TimeoutError(f"not within {within_s:g} s: {said or inspect.getsource(holds).strip()}") from None


async def until_nobody_responds(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask, each time for a short while, until the server says that nobody listens: it learns that a process has ended,
    or a subscription, only a moment after we do, and until then passes on what nobody will answer."""

    async def refused() -> bool:
        try:
            await ask()
        except NoResponders:
            return True
        except RequestTimeout:
            pass
        return False

    await until(refused, "nobody listens any more")
