"""Builds and empty environments, all without the network: the build backend is the one installed here, and what
Gangline depends on is lent to each new environment through a path file."""

from __future__ import annotations

import fcntl
import os
import shutil
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


Shared = Callable[[str, Callable[[Path], object]], Path]
"""A folder of that name for the whole run, filled by that function: once, also where several processes test."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a folder in that of the whole run.
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging"
    root.mkdir(exist_ok=True)

    def folder(name: str, fill: Callable[[Path], object]) -> Path:
        made, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(made, ignore_errors=True)  # another process failed at it
                made.mkdir()
                fill(made)
                done.touch()
        return made

    return folder


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path

    @classmethod
    def of(cls, folder: Path) -> Built:
        def only(name: str) -> Path:
            (found,) = (folder / name).iterdir()
            return found

        return cls(only("wheel"), only("sdist"), only("again"))


def _build(target: str, source: Path, into: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)


@pytest.fixture(scope="session")
def built(shared: Shared) -> Built:
    def build(folder: Path) -> None:
        _build("wheel", ROOT, folder / "wheel")
        _build("sdist", ROOT, folder / "sdist")
        with tarfile.open(next((folder / "sdist").iterdir())) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (source,) = (folder / "unpacked").iterdir()
        _build("wheel", source, folder / "again")

    return Built.of(shared("built", build))


Installed = Callable[[str], Environment]


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, shared: Shared) -> Installed:
    """An environment with Gangline, by way of installing: "wheel", "source distribution", "folder" or "editable".
    Tests only read it, so that there is one for each way."""

    def install(way: str, made: Environment) -> None:
        if way == "editable":
            made.install("--editable", ROOT)
        elif way == "folder":
            made.install(ROOT)
        else:
            built: Built = request.getfixturevalue("built")
            made.install({"wheel": built.wheel, "source distribution": built.sdist}[way])

    def environment(way: str) -> Environment:
        name = way.replace(" ", "-")
        return Environment(shared(name, lambda folder: install(way, empty(folder / "venv"))) / "venv")

    return environment


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
