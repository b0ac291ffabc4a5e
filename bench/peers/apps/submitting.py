"""Shared by the modules of this folder."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

Submit = Callable[[float], Awaitable[object]]
"""Submit one task, with the time of its submission; returns when the system has it. With RESULTS: the task's result,
which is that time."""
SubmitMany = Callable[[list[float]], Awaitable[object]]
"""Submit one task for each of the times, in one call."""
Opened = Callable[[], AbstractAsyncContextManager[Submit]]

URL: Final = os.environ.get("GANGLINE_BENCH_URL", "")
"""URL of the server, NATS or Redis."""
RESULTS: Final = os.environ.get("GANGLINE_BENCH_RESULTS", "") == "1"
"""Whether results are kept and awaited; otherwise they are off."""
TUNED: Final = os.environ.get("GANGLINE_BENCH_TUNED", "") == "1"
"""Whether this is the tuned run; otherwise defaults are used."""
