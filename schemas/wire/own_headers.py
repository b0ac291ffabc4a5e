"""Gangline's own headers, by the message that may have them. Those of submissions are in messages.submission."""

from __future__ import annotations

from typing import Final

from . import headers

OWN: Final = "gangline-"
"""What their names begin with, in lower case."""
OF_CALLS: Final = (
    headers.TIMEOUT,
    headers.KEY,
    headers.MODEL,
    headers.IDEMPOTENT,
    headers.ARGUMENTS,
    headers.STREAM,
)
