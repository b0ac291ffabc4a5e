"""What may be tuned in a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of one gateway.

    Raises:
        InvalidSettings: a value out of its bounds.
    """

    default_timeout_s: float = 30.0
    """Deadline of a call that names none with `Gangline-Timeout`. Above 0. Whoever asked is likely gone after that."""
    max_pending: int = 10_000
    """Calls that may be under way at once; one more is answered with QueueFull at once. At least 1."""
    drain_grace_s: float = 30.0
    """How long `drain` lets calls finish before it ends them. At least 0."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InvalidSettings(f"{name} is {value!r}, it must be between {plain(low)} and {plain(high)}")


_BOUNDS: Final = (
    ("default_timeout_s", 0.001, MAX_DEADLINE_S),
    ("max_pending", 1, 10_000_000),
    ("drain_grace_s", 0.0, MAX_DEADLINE_S),
)
