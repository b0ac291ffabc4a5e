"""The task of the demo's gangs. Served by real worker processes: `gangline worker gangline.cli.demo.gang_pool:pool`."""

from __future__ import annotations

import keyword
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...worker.context import current_task
from ...worker.pool import Pool

SLOTS: Final = 2

pool = Pool("words", slots=SLOTS)

Tally = dict[str, int]
"""Times by Python keyword, and under ALL the number of words. Small, whatever was counted."""
ALL: Final = "all words"

_WORD = re.compile(r"[^\W\d]\w*")
_KEYWORDS: Final = frozenset(keyword.kwlist)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one rank answers."""

    rank: int
    generation: int
    """Of the gang that it counted in."""
    own: int
    """Words in its own share."""
    tally: Tally
    """Of all shares together, as this rank has it from the others."""
    pid: int


def tally_files(paths: Iterable[str]) -> Tally:
    """Count without any of Gangline."""
    counts: Counter[str] = Counter()
    words = 0
    for path in paths:
        found = _WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
        words += len(found)
        counts.update(word for word in found if word in _KEYWORDS)
    return {**counts, ALL: words}


def added(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    total: Counter[str] = Counter()
    for one in tallies:
        total.update(one)
    return dict(total)


@pool.task(idempotent=True)
def count(paths: list[str]) -> Counted:
    """Count every so-manieth of these files, and let all ranks know the counts of all."""
    gang = current_task().gang
    own = tally_files(paths[gang.rank :: gang.world_size])
    every = gang.all_gather_blocking(own)
    return Counted(rank=gang.rank, generation=gang.generation, own=own[ALL], tally=added(every), pid=os.getpid())
