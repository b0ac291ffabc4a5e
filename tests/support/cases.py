"""Many rows of a table in one test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def case(*row: object) -> Iterator[None]:
    """A failure inside names the row."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"for {', '.join(repr(each)[:200] for each in row)}")
        raise
