"""Scripts of docs/, which are no modules of a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(name: str) -> ModuleType:
    """Load a script as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name.removesuffix('.py')}", DOCS / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
