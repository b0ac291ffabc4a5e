"""`--journal FILE`: every change of a worker's slots, one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...schemas.errors.base import InvalidSettings


@contextmanager
def journal_file(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A sink that appends to the file, or None without a file.

    Each line is written to the operating system before the event takes effect elsewhere, so a killed process leaves
    whole lines. It is not forced to disk.

    Raises:
        InvalidSettings: the file cannot be written.
    """
    if path is None:
        yield None
        return
    try:
        stream = path.open("ab", buffering=0)
    except OSError as error:
        raise InvalidSettings(f"journal {path} cannot be written: {error.strerror or error}") from error
    with stream:
        yield lambda record: _write(stream.write, record)


def _write(write: Callable[[bytes], object], record: dict[str, Any]) -> None:
    write(json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n")
