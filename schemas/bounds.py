"""How bounds are written in errors."""

from __future__ import annotations


def plain(number: float) -> str:
    """A number as people type it: `2592000`, `0.005`; `:g` would write the first as `2.592e+06`."""
    return f"{number:.12g}"
