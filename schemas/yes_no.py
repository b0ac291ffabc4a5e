"""Yes and no as people type them into headers."""

from __future__ import annotations

from typing import Final

_YES: Final = frozenset(("true", "1", "yes"))
_NO: Final = frozenset(("false", "0", "no", ""))


def parse_yes_no(text: str) -> bool:
    """`true`, `1`, `yes`; `false`, `0`, `no` or nothing; in whatever case.

    Raises:
        ValueError: something else.
    """
    word = text.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise ValueError(f"{text[:40]!r} is neither 'true' nor 'false'")
