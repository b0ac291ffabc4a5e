"""Waits for conditions that nothing signals: checks them repeatedly, within a bound that only ends a hang."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gangline.bus.port.bus import NoResponders, RequestTimeout

Read = TypeVar("Read")
PATIENCE_S: Final = 60.0
"""How long tests wait before a wait counts as a hang. Not a measure of speed: a busy machine may take most of it."""


def loop_time() -> float:
    """What the clock of the running loop shows."""
    return asyncio.get_running_loop().time()


async def until(
    holds: Callable[[], object | Awaitable[object]],
    what: str | Callable[[], str] = "",
    *,
    within_s: float = PATIENCE_S,
    pause_s: float = 0.01,
) -> None:
    """Wait until `holds()` is true; it may be a coroutine function.

    Args:
        what: description of the condition for the error; a function is called only on failure.

    Raises:
        TimeoutError: it did not become true within `within_s`.
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


async def until_read(read: Callable[[], Awaitable[Read]], holds: Callable[[Read], object]) -> Read:
    """Wait until `holds` is true of what is read, and return that."""
    found: list[Read] = []

    async def is_so() -> bool:
        found[:] = [await read()]
        return bool(holds(found[0]))

    await until(is_so, lambda: f"{inspect.getsource(holds).strip()} of {found}")
    return found[0]


async def until_somebody_responds(ask: Callable[[], Awaitable[object]]) -> None:
    """Send requests until one is answered. The servers of a cluster learn of a subscription one after the other, and
    nothing tells when the last one knows it."""

    async def answered() -> bool:
        try:
            await ask()
        except (NoResponders, RequestTimeout):
            return False
        return True

    await until(answered, "somebody listens")


async def until_nobody_responds(ask: Callable[[], Awaitable[object]]) -> None:
    """Send requests with a short timeout until the server reports no responders. It notices the exit of a process,
    or the end of a subscription, a moment later than we do, and until then forwards requests that nobody answers."""

    async def refused() -> bool:
        try:
            await ask()
        except NoResponders:
            return True
        except RequestTimeout:
            pass
        return False

    await until(refused, "nobody listens any more")
