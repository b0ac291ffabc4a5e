"""Names that have changed: the old one works for one more release, with a warning."""

from __future__ import annotations

import warnings
from typing import Any


def renamed(module: str, old: str, value: Any) -> Any:
    """Return the value, after a warning that its name `old` in `module` will be removed in the next release."""
    warnings.warn(
        f"{module}.{old} is now {value.__name__}; the old name goes with the next release", DeprecationWarning, 3
    )
    return value
