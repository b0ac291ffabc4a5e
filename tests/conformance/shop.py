"""The pool that every worker of the conformance suite serves; in Python. examples/go/cmd/worker is the same in Go."""

import asyncio
from collections.abc import AsyncIterator

import gangline

pool = gangline.Pool("shop", slots=2)


@pool.task(idempotent=True)
async def count(text: str) -> int:
    """Words of a text."""
    return len(text.split())


@pool.task
async def pause(seconds: float) -> float:
    """Sleep, and say how long."""
    await asyncio.sleep(seconds)
    return seconds


@pool.task
async def fail(text: str) -> None:
    """Fail with a text."""
    raise ValueError(text)


@pool.task
async def upto(end: int) -> AsyncIterator[int]:
    """Numbers from 0 on."""
    for number in range(end):
        yield number
