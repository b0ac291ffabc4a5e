"""Writes the results, and reads them for the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def save(name: str, found: dict[str, Any]) -> None:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def load(name: str) -> dict[str, Any] | None:
    """The results written there; None: there are none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
