"""Builds and empty environments, all without the network: the build backend is the one installed here, and what
Gangline depends on is lent to each new environment through a path file."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run to the end and return what it printed; a failure shows all of it."""
    # Nothing is found that is not installed: what the tests themselves run with does not count.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing of ours in it, until `install`."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *what: str | Path) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index", "--no-deps")
        run(*pip, "--no-build-isolation", "--disable-pip-version-check", *what)

    def run(self, code: str, cwd: Path) -> str:
        return run(self.python, "-c", code, cwd=cwd).strip()


def empty(folder: Path) -> Environment:
    """A new environment that can import what Gangline depends on, but not Gangline."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    # A path file adds the folder but does not read the path files in it: our own editable install stays unseen.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made = Environment(folder)
    assert made.run("import importlib.util as u; print(u.find_spec('gangline'))", folder) == "None"
    return made


Installed = Callable[[str], Environment]


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with Gangline, by way of installing: "wheel", "source distribution", "folder" or "editable".
    Tests only read it, so that there is one for each way."""

    @functools.cache
    def environment(way: str) -> Environment:
        made = empty(tmp_path_factory.mktemp("environment") / "venv")
        if way == "editable":
            made.install("--editable", ROOT)
        elif way == "folder":
            made.install(ROOT)
        else:
            built: Built = request.getfixturevalue("built")
            made.install({"wheel": built.wheel, "source distribution": built.sdist}[way])
        return made

    return environment


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def _build(target: str, source: Path, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    (made,) = [path for path in into.iterdir() if path.name.endswith(".whl" if target == "wheel" else ".tar.gz")]
    return made


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    folder: Callable[[str], Path] = tmp_path_factory.mktemp
    wheel = _build("wheel", ROOT, folder("wheel"))
    sdist = _build("sdist", ROOT, folder("sdist"))
    unpacked = folder("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return Built(wheel, sdist, _build("wheel", source, folder("again")))


@pytest.fixture
def crowded(tmp_path) -> Path:
    """A user's folder whose modules have the names of our folders; importing any of them by mistake is an error."""
    folder = tmp_path / "crowded"
    for name in ("schemas", "bus", "dispatcher", "telemetry", "cli"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('the package took the user\\'s module')\n")
    (folder / "worker.py").write_text("MINE = True\n")
    (folder / "testing.py").write_text("raise RuntimeError('the package took the user\\'s module')\n")
    return folder
