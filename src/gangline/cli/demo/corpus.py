"""The demo's input: every Python file of the running interpreter's standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOREIGN: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders inside the library's own that hold what others installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What this process computes for one file by itself, to hold the workers' answers against."""

    size: int
    packed: int
    sha256: str


def library_files(root: Path | None = None) -> list[Path]:
    """All readable `.py` files, tests of the library included, in a stable order."""
    folder = root or Path(sysconfig.get_path("stdlib"))
    return [path for path in sorted(folder.rglob("*.py")) if FOREIGN.isdisjoint(path.parts) and _readable(path)]


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return path.is_file()
    except OSError:
        return False


def expectations(
    files: Iterable[Path], squeeze: Callable[[bytes], tuple[int, int, str]], *, threads: int = 2
) -> dict[str, Expected]:
    """Compute locally, without any of Gangline, what every file must give."""

    def one(path: Path) -> tuple[str, Expected]:
        size, packed, sha256 = squeeze(path.read_bytes())
        return str(path), Expected(size=size, packed=packed, sha256=sha256)

    with ThreadPoolExecutor(threads) as threads_pool:
        return dict(threads_pool.map(one, files))
