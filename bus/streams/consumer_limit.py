"""How many consumers a stream has room for."""

from __future__ import annotations

from typing import Final

MAX_CONSUMERS: Final = 1_000_000
"""In the configuration of each stream that we make. Without a number (-1) a server has a limit of its own, 1000 from
version 2.15 on; and each queue of tasks is a consumer, and so is each watch of a bucket."""
UNLIMITED: Final = -1
"""For an account that may have fewer: its own limit holds."""
TOO_MANY_CONSUMERS: Final = 10026
"""The server's number for it."""
