"""The files that CONTRIBUTING.md sends people to are there."""

from __future__ import annotations

import re
from pathlib import Path

from ..support.rows import case

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = ("bench", "bus", "coordinator", "dispatcher", "docs", "schemas", "src", "tests", "worker")
PATHS = sorted(path for path in set(re.findall(r"`([\w/.]+)`", TEXT)) if path.split("/")[0] in FOLDERS and "/" in path)
NAMED = sorted(set(re.findall(r"`(\w+)(?:\(\))?` in\s+`([\w/.]+\.py)`", TEXT)))


def test_a_path_is_there():
    for path in PATHS:
        with case(path):
            assert (ROOT / path).exists()


def test_a_name_is_defined_in_its_file():
    for name, path in NAMED:
        with case(name, path):
            defined = rf"^\s*(class|(async )?def) {name}\b|^{name}\b"
            assert re.search(defined, (ROOT / path).read_text(), re.MULTILINE)
