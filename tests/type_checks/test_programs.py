"""Type checkers accept correct programs and find the mistakes in wrong ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.long


@pytest.fixture
def programs(tmp_path):
    """A project of a user."""
    shutil.copytree(HERE / "programs", tmp_path, dirs_exist_ok=True)
    return tmp_path


def marked_lines() -> set[tuple[str, int]]:
    """File and number of each line that is marked as wrong."""
    return {
        (file.name, number)
        for file in (HERE / "programs").glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(r"# wrong\b", line)
    }


def run(project: Path, *command: str) -> str:
    done = subprocess.run((sys.executable, "-m", *command), cwd=project, capture_output=True, text=True, check=False)
    assert done.stderr == "" or "error" not in done.stderr.lower(), done.stderr
    return done.stdout


def mypy(project: Path) -> list[tuple[str, int, str]]:
    """File, line and text of each error."""
    cache = ROOT / ".mypy_cache" / "type_checks"
    told = run(project, "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), ".")
    found = re.findall(r"^(\w+\.py):(\d+): error: (.*)$", told, re.MULTILINE)
    assert "checked" in told or "Success" in told, told
    return [(file, int(line), text) for file, line, text in found]


def pyright(project: Path) -> list[tuple[str, int, str]]:
    (project / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "include": ["."]}))
    told = json.loads(run(project, "pyright", "--outputjson", "--pythonpath", sys.executable))
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in told["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def test_mypy_strict_finds_each_wrong_use_of_a_task_and_no_other(programs):
    found = mypy(programs)
    assert {(file, line) for file, line, _ in found} == marked_lines(), found


def test_pyright_strict_finds_each_wrong_use_of_a_task_and_no_other(programs):
    found = pyright(programs)
    assert {(file, line) for file, line, _ in found} == marked_lines(), found
