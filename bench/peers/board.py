"""Records of the tasks that workers run: a memory-mapped file that all processes of a run share.

Uses only the standard library, because it also runs in the peers' environments.

Layout: number of tasks that ran (int64), time of the last one (float64), then for each the seconds from its submission
to its start (float64). Only one process, the worker, writes it; any may read. Times are `time.monotonic`, which all
processes of a machine share.
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
"""Environment variable with the path of the file."""
_HEAD: Final = struct.Struct("<qd")
_START: Final = struct.Struct("<d")
CAPACITY: Final = 200_000
"""Number of starts that are kept; later ones are only counted."""


class Board:
    """One board; created by the parent, opened by all others."""

    def __init__(self, path: str | Path, *, make: bool = False) -> None:
        size = _HEAD.size + CAPACITY * _START.size
        with Path(path).open("w+b" if make else "r+b") as file:
            if make:
                file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
        self._lock = threading.Lock()

    @classmethod
    def given(cls) -> Board:
        """The board named in the environment."""
        return cls(os.environ[VARIABLE])

    def ran(self, sent_at: float) -> None:
        """Record that a task submitted at that time runs. May be called from any thread of one process."""
        now = time.monotonic()
        with self._lock:
            count, _ = _HEAD.unpack_from(self._memory, 0)
            if count < CAPACITY:
                _START.pack_into(self._memory, _HEAD.size + count * _START.size, now - sent_at)
            _HEAD.pack_into(self._memory, 0, count + 1, now)

    def reset(self) -> None:
        """Reset; only while nothing runs."""
        _HEAD.pack_into(self._memory, 0, 0, 0.0)

    @property
    def count(self) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[0])

    @property
    def last_at(self) -> float:
        """Time of the last task."""
        return float(_HEAD.unpack_from(self._memory, 0)[1])

    def starts_s(self) -> list[float]:
        """Seconds from submission to start, sorted."""
        kept = min(self.count, CAPACITY)
        return sorted(value for (value,) in _START.iter_unpack(self._memory[_HEAD.size : _HEAD.size + kept * 8]))

    def close(self) -> None:
        self._memory.close()
