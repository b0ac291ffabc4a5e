"""Lengths of time as people type them into headers and routes: `90`, `1.5`, `500ms`, `90s`, `5m`, `2h`, `1d`."""

from __future__ import annotations

import re
from typing import Final

_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: not a length of time; the text says how to write one.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no length of time: write 90, 500ms, 90s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
