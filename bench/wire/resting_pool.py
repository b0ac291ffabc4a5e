"""The pool of the idle worker."""

from __future__ import annotations

from ..worker.pool.pool import Pool

pool = Pool("resting", slots=4)


@pool.task
async def echo(data: bytes) -> bytes:
    """Give it back."""
    return data
