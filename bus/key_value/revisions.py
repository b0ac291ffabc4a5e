"""Where the revisions of a new bucket begin, so that they never come again.

A bucket in memory is lost with its server and made anew, and a stream counts from 1 unless it is told otherwise. But a
revision serves as a fence: it is handed to resources, which refuse whoever shows a lower one, and conditions are put on
it. So a bucket begins at the time, in microseconds since 2020: less than one write in a microsecond was made in the
bucket before, so its revisions were lower. Should the clock of whoever makes it be behind, what it remembers of the one
before counts as well.
"""

from __future__ import annotations

from typing import Final

_BEGIN: Final = 1_577_836_800
"""2020-01-01 in Unix time. Microseconds since then stay below 2**53, and so exact in JSON, until 2305."""
_MICROSECONDS: Final = 1_000_000
_SLACK: Final = 60 * _MICROSECONDS
"""What others may have written after the last that we saw."""


def made_at(revision: int) -> float:
    """Unix time at which the bucket was made that has this revision: some microseconds too late, one for each write."""
    return _BEGIN + revision / _MICROSECONDS


def first_revision(wall: float, seen: int = 0) -> int:
    """Of a bucket that is made now.

    Args:
        wall: Unix time.
        seen: the highest revision that is remembered of an earlier bucket of that name; 0: none.
    """
    return max(int((wall - _BEGIN) * _MICROSECONDS), seen + _SLACK if seen else 1)
