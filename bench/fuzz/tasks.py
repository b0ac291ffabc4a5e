"""The tasks of the workers under test: `gangline worker bench.fuzz.tasks:fuzz`. Each but one ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gangline import Pool

fuzz = Pool("fuzz", slots=1000)
good = Pool("good", slots=100)


@fuzz.task(idempotent=True)
async def echo(*args: Any, **kwargs: Any) -> Any:
    return len(args), sorted(kwargs)[:5]


@fuzz.task
async def typed(number: int, text: str, raw: bytes = b"", more: dict[str, list[float]] | None = None) -> int:
    return number + len(text) + len(raw) + len(more or {})


@fuzz.task
@good.task
async def count(to: int) -> AsyncIterator[int]:
    for number in range(min(to, 1000)):
        yield number


@good.task(idempotent=True)
async def double(x: int) -> int:
    return 2 * x


@good.task
async def wait(**_: Any) -> None:
    """Until it is cancelled."""
    await asyncio.Event().wait()
