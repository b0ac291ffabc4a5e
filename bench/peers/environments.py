"""An environment for each peer, in the user's cache folder: created in the first run and kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "GANGLINE_BENCH_CACHE"
"""Environment variable with the folder of the environments; the user's cache folder if unset."""
_INSTALL_S: Final = 900.0
_STAMP: Final = ".installed"


class NotInstalled(Exception):
    """A peer could not be installed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A peer's own Python."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def script(self, name: str) -> str:
        """A command of the peer."""
        return str(self.folder / "bin" / name)

    async def versions(self, packages: tuple[str, ...]) -> dict[str, str]:
        """Versions of the installed packages."""
        code = "import importlib.metadata as m, sys; print(*(m.version(p) for p in sys.argv[1:]))"
        process = await asyncio.create_subprocess_exec(
            self.python, "-c", code, *packages, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return dict(zip(packages, out.decode().split(), strict=False))


def cache_folder() -> Path:
    """Folder of the environments; outside of the project."""
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gangline-bench"


async def environment(name: str, requirements: tuple[str, ...]) -> Environment:
    """The environment with exactly these requirements; created if it does not exist.

    Raises:
        NotInstalled: pip could not install them.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    mark = hashlib.sha256("\n".join((version, *requirements)).encode()).hexdigest()[:8]
    found = Environment(folder=cache_folder() / f"{name}-py{version}-{mark}")
    stamp = found.folder / _STAMP
    if stamp.exists():
        return found
    shutil.rmtree(found.folder, ignore_errors=True)  # an earlier run was interrupted
    await asyncio.to_thread(venv.create, found.folder)
    await _install(found, requirements)
    stamp.write_text("\n".join(requirements) + "\n")
    return found


async def _install(made: Environment, requirements: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        # Use our own pip: installing one into each environment takes longer than most of them need.
        *(sys.executable, "-m", "pip", "--python", made.python, "install"),
        *("--quiet", "--disable-pip-version-check", *requirements),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_INSTALL_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NotInstalled(f"pip did not finish within {_INSTALL_S:g} s") from None
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise NotInstalled(
            f"pip could not install {' '.join(requirements)}: {lines[-1] if lines else 'no reason given'}"
        )
