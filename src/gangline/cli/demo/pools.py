"""The demo's input, and its tasks, which real worker processes serve: `gangline worker gangline.cli.demo.pools:squeeze`
and `gangline.cli.demo.pools:words`. Each execution is recorded."""

from __future__ import annotations

import hashlib
import keyword
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...testing.kit.records import recorded
from ...worker.context.task_context import current_task
from ...worker.pool.pool import Pool

SLOTS: Final = 4
LEVEL: Final = 9
WORD_SLOTS: Final = 2
FOREIGN: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders inside the standard library's folder with installed packages."""

squeeze = Pool("squeeze", slots=SLOTS)
words = Pool("words", slots=WORD_SLOTS)
"""For gangs."""

Tally = dict[str, int]
"""Counts by Python keyword, with the number of words under ALL. Small, however many words are counted."""
ALL: Final = "all words"
_WORD = re.compile(r"[^\W\d]\w*")
_KEYWORDS: Final = frozenset(keyword.kwlist)


def library_files(root: Path | None = None) -> list[Path]:
    """Every readable `.py` file of the interpreter's standard library, its tests included, in a stable order."""
    folder = root or Path(sysconfig.get_path("stdlib"))
    return [path for path in sorted(folder.rglob("*.py")) if FOREIGN.isdisjoint(path.parts) and _readable(path)]


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return path.is_file()
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Squeezed:
    """The answer of one task. Everything except the process id depends only on the content."""

    size: int
    packed: int
    sha256: str
    """Hash of the compressed content, so that any wrong byte is found."""
    pid: int


def squeeze_file(path: str | Path) -> Squeezed:
    """Compress and hash without Gangline. Deterministic for one build of zlib."""
    data = Path(path).read_bytes()
    packed = zlib.compress(data, LEVEL)
    return Squeezed(size=len(data), packed=len(packed), sha256=hashlib.sha256(packed).hexdigest(), pid=os.getpid())


def expectations(files: Iterable[Path], *, threads: int = 2) -> dict[str, Squeezed]:
    """The expected answer for every file, computed by this process."""
    with ThreadPoolExecutor(threads) as threads_pool:
        return dict(threads_pool.map(lambda path: (str(path), squeeze_file(path)), files))


@squeeze.task(idempotent=True)
def file(path: str) -> Squeezed:
    """Compress and hash one file. It is safe to run it twice, so it may be retried after a crash."""
    with recorded(path):
        return squeeze_file(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The answer of one rank."""

    rank: int
    generation: int
    """Generation of the gang it counted in."""
    own: int
    """Words in its own share."""
    tally: Tally
    """Words of all shares together, as this rank received them from the others."""
    pid: int


def tally_files(paths: Iterable[str]) -> Tally:
    """Count without Gangline."""
    counts: Counter[str] = Counter()
    total = 0
    for path in paths:
        found = _WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
        total += len(found)
        counts.update(word for word in found if word in _KEYWORDS)
    return {**counts, ALL: total}


def added(tallies: Iterable[Tally]) -> Tally:
    """The sum of all."""
    total: Counter[str] = Counter()
    for one in tallies:
        total.update(one)
    return dict(total)


@words.task(idempotent=True)
def count(paths: list[str]) -> Counted:
    """Count every n-th of these files, and send the counts to all ranks."""
    gang = current_task().gang
    with recorded(f"{gang.id}/{gang.generation}"):
        own = tally_files(paths[gang.rank :: gang.world_size])
        every = gang.all_gather_blocking(own)
    return Counted(rank=gang.rank, generation=gang.generation, own=own[ALL], tally=added(every), pid=os.getpid())
