"""Warnings of headers `Gangline-...` that mean nothing. They are ignored, since they may be of a later version; but
perhaps they are misspelt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from ...schemas.messages.submission import OF_TASKS
from ...schemas.text import nearest_name
from ...schemas.wire.own_headers import OF_CALLS, OWN
from ...telemetry.logs import Log

_MOST_WARNED: Final = 100
"""About how many names a warning is logged."""
_SHOWN: Final = 80


def warn_of_unknown_headers(
    log: Log, warned: set[str], unknown: Iterable[str], known: Collection[str], *, of: str, kind: str, **extra: str
) -> None:
    """Once of each name, since all messages of one producer have it.

    Args:
        warned: the names that a warning was logged of. Grows.
        known: the headers that mean something there.
        of: the message, for example `job 12`.
        kind: what it is, for example `submitted task`.
        extra: the action of the line, and its ids.
    """
    for name in (each[:_SHOWN] for each in unknown):
        if name in warned or len(warned) >= _MOST_WARNED:
            continue
        warned.add(name)
        near = nearest_header(name, known)
        log.warning(
            "%s has a header %r, which means nothing on a %s and is ignored%s",
            of,
            name,
            kind,
            f": did you mean {near!r}?" if near else "",
            extra={**extra, "header": name},
        )


def nearest_header(name: str, known: Collection[str]) -> str | None:
    """The known header that was perhaps meant by an unknown one; None: none is near, or that is of other messages."""
    near = nearest_name(name.lower().removeprefix(OWN), _ALL)
    return _ALL[near] if near is not None and _ALL[near] in known else None


# Without the beginning that all have in common: with it, any two would be near.
_ALL: Final = {name.lower().removeprefix(OWN): name for name in (*OF_CALLS, *OF_TASKS)}
