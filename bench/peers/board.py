"""Where workers note what they run: a file that all processes of a run have in memory.

Nothing but the standard library, for it is used in the peers' environments too.

Its layout: how many ran (int64), when the last one did (float64), then for each the seconds from its submission to its
start (float64). One process writes it, the worker; any may read. Times are `time.monotonic`, which all processes of a
machine share.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "GANGLINE_BENCH_BOARD"
"""Environment variable: path of the file."""
_HEAD: Final = struct.Struct("<qd")
_START: Final = struct.Struct("<d")
CAPACITY: Final = 200_000
"""Starts that are kept; later ones are only counted."""


class Board:
    """One board; made by the parent, opened by all others."""

    def __init__(self, path: str | Path, *, make: bool = False) -> None:
        size = _HEAD.size + CAPACITY * _START.size
        with Path(path).open("w+b" if make else "r+b") as file:
            if make:
                file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
        self._lock = threading.Lock()

    @classmethod
    def given(cls) -> Board:
        """The one that the environment names."""
        return cls(os.environ[VARIABLE])

    def ran(self, sent_at: float) -> None:
        """Note that a task, submitted at that time, runs. From any thread of one process."""
        now = time.monotonic()
        with self._lock:
            count, _ = _HEAD.unpack_from(self._memory, 0)
            if count < CAPACITY:
                _START.pack_into(self._memory, _HEAD.size + count * _START.size, now - sent_at)
            _HEAD.pack_into(self._memory, 0, count + 1, now)

    def reset(self) -> None:
        """Begin anew; while nothing runs."""
        _HEAD.pack_into(self._memory, 0, 0, 0.0)

    @property
    def count(self) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[0])

    @property
    def last_at(self) -> float:
        """When the last one ran."""
        return float(_HEAD.unpack_from(self._memory, 0)[1])

    def starts_s(self) -> list[float]:
        """Seconds from submission to start, sorted."""
        kept = min(self.count, CAPACITY)
        return sorted(value for (value,) in _START.iter_unpack(self._memory[_HEAD.size : _HEAD.size + kept * 8]))

    def close(self) -> None:
        self._memory.close()
