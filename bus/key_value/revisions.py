"""The first revision of a new bucket, chosen so that revisions never repeat.

A bucket in memory is lost with its server and created again, and a stream counts from 1 by default. But revisions serve
as fencing tokens: resources refuse lower ones, and writes are conditional on them. So a bucket starts at the current
time in microseconds since 2020: the previous bucket had less than one write per microsecond, so its revisions were
lower. Only if the creator's clock is behind a revision that it remembers does it count from there. (If it always did,
several restarts in a row would lead so far ahead of the time that a process without memory would start below.)
"""

from __future__ import annotations

from typing import Final

_BEGIN: Final = 1_577_836_800
"""2020-01-01 in Unix time. Microseconds since then stay below 2**53, and thus exact in JSON, until 2305."""
_MICROSECONDS: Final = 1_000_000
_SLACK: Final = 60 * _MICROSECONDS
"""Room for writes of others after the last one that we saw."""


def made_at(revision: int) -> float:
    """Unix time at which the bucket with this revision was created, plus one microsecond for each write."""
    return _BEGIN + revision / _MICROSECONDS


def first_revision(wall: float, seen: int = 0) -> int:
    """The first revision of a bucket created now.

    Args:
        wall: Unix time.
        seen: the highest remembered revision of an earlier bucket of this name; 0: none.
    """
    now = int((wall - _BEGIN) * _MICROSECONDS)
    if now > seen:
        return now
    return seen + _SLACK if seen else 1
