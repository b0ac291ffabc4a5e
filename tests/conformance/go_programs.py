"""The Go example's programs, built once for each state of their sources, whoever needs them first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

GO: Final = Path(__file__).parents[2] / "examples" / "go"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gangline-tests" / "go"
UNUSED_DAYS: Final = 7


def build() -> Path:
    """The folder with `worker` and `producer`. The processes of pytest-xdist wait for the one that builds."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go on this machine")
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / _key(go)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(go, folder)
            _remove_unused()
        os.utime(folder)
    return folder


def _key(go: str) -> str:
    """Changes with the sources and the compiler."""
    digest = hashlib.sha256(subprocess.check_output([go, "version"]))
    for path in sorted(path for path in GO.rglob("*") if path.suffix in (".go", ".mod", ".sum")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(GO)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _build(go: str, folder: Path) -> None:
    fetched = subprocess.run([go, "mod", "download"], cwd=GO, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the Go example's modules cannot be fetched here: {fetched.stderr.strip()[-300:]}")
    unfinished = folder.with_suffix(".unfinished")
    built = subprocess.run([go, "build", "-o", f"{unfinished}/", "./cmd/..."], cwd=GO, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    unfinished.rename(folder)


def _remove_unused() -> None:
    for folder in CACHE.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86_400:
            shutil.rmtree(folder, ignore_errors=True)
