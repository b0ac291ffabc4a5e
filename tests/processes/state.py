"""What the kernel says of a process."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int) -> str:
    """`R`, `S`, `T` and so on; `Z`: it has ended and is not reaped. Empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may go between opening and reading
        return ""
