"""Bugs that tests plant to see that a check catches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]
Place = tuple[Any, Any]
"""A class or module and the name of what it has; or a table and one of its keys."""


def planting(bug: Callable[..., Any], *, around: Place | None = None, instead_of: Place | None = None) -> Plant:
    """What plants the bug: itself, or it is put `instead_of` what stands at a place. `around` is the same, but it gets
    what it replaces as its first argument."""
    place = around or instead_of
    if place is None:
        return bug
    owner, name = place

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = owner[name] if isinstance(owner, dict) else getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            return bug(original, *args, **named)

        replace = patch.setitem if isinstance(owner, dict) else patch.setattr
        replace(owner, name, wrapped if around else bug)

    return plant
