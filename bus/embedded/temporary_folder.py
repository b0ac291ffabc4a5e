"""Temporary folders that do not outlive their process for long, even if it is killed.

Each folder has a file `owner.pid`, which its process keeps locked. The next process that creates a folder removes those
whose lock is free. The lock decides, not the pid: pids are reused, and mean nothing in another container that shares
the temporary directory; a lock always ends with its process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

try:
    import fcntl
except ImportError:  # Windows: nothing is marked, so nothing is swept
    fcntl = None  # type: ignore[assignment]

_OWNER: Final = "owner.pid"


class TemporaryFolder:
    """A new folder, created at once; folders left behind by dead processes are removed first.

    Args:
        prefix: the start of its name; only folders with the same prefix are removed.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = _mark(self.path)

    def remove(self) -> None:
        """Remove it with its contents. Idempotent; what cannot be removed stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<TemporaryFolder {self.path}>"


def sweep(prefix: str) -> list[Path]:
    """Remove this user's folders whose process is dead; returns them. Never fails or blocks."""
    swept: list[Path] = []
    if fcntl is None:
        return swept
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if _remove_if_left(folder):
                swept.append(folder)
    return swept


def _mark(folder: Path) -> int | None:
    """Write and lock the owner's file; the lock lasts as long as the returned descriptor is open."""
    if fcntl is None:
        return None
    unready = folder / f"{_OWNER}.new"
    lock = os.open(unready, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, f"{os.getpid()}\n".encode())
    unready.rename(folder / _OWNER)  # it appears locked: nobody can take a folder in the making for a dead process's
    return lock


def _remove_if_left(folder: Path) -> bool:
    """
    Raises:
        OSError: it is not such a folder, its process is alive, or another process was faster.
    """
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        return False
    owner = folder / _OWNER
    lock = os.open(owner, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry in list(folder.iterdir()):
            if entry == owner:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        # The mark is removed last: a sweep interrupted here is completed by another.
        owner.unlink()
        folder.rmdir()
    finally:
        os.close(lock)
    return True
