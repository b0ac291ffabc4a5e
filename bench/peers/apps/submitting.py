"""Shared by the modules of this folder."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

Submit = Callable[[float], Awaitable[object]]
"""Submit one task, with the time of its submission; returns when the system has it."""
Opened = Callable[[], AbstractAsyncContextManager[Submit]]

URL: Final = os.environ.get("GANGLINE_BENCH_URL", "")
"""URL of the server, NATS or Redis."""
TUNED: Final = os.environ.get("GANGLINE_BENCH_TUNED", "") == "1"
"""Whether this is the tuned run; otherwise defaults are used."""
