"""The demo's tasks. Served by real worker processes: `gangline worker gangline.cli.demo.pool:pool`."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...worker.pool import Pool

SLOTS = 4
LEVEL = 9

pool = Pool("squeeze", slots=SLOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Squeezed:
    """What one task answers. All but the last two depend on the content alone."""

    size: int
    packed: int
    sha256: str
    """Of the compressed content, so that a wrong byte anywhere shows."""
    together: int
    """How many tasks, this one included, ran in this process when it started: counted by the tasks themselves."""
    pid: int


class Turnstile:
    """Counts who is inside. Independent of the worker's own limiter, which it serves to check."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    @contextmanager
    def enter(self) -> Iterator[int]:
        with self._lock:
            self._inside += 1
            together = self._inside
        try:
            yield together
        finally:
            with self._lock:
                self._inside -= 1


_turnstile = Turnstile()


def squeeze_bytes(data: bytes) -> tuple[int, int, str]:
    """Size, compressed size, and SHA-256 of the compressed bytes. Deterministic for one build of zlib."""
    packed = zlib.compress(data, LEVEL)
    return len(data), len(packed), hashlib.sha256(packed).hexdigest()


@pool.task(idempotent=True)
def file(path: str) -> Squeezed:
    """Compress and hash one file. Running it twice does no harm, so it may be retried after a crash."""
    with _turnstile.enter() as together:
        size, packed, sha256 = squeeze_bytes(Path(path).read_bytes())
        return Squeezed(size=size, packed=packed, sha256=sha256, together=together, pid=os.getpid())
