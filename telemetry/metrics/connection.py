"""When the credentials and certificates of this process's connections end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .instruments import gauge

_FILES: Final[set[tuple[str, Path]]] = set()


def credentials_used(kind: str, path: Path) -> None:
    """A connection uses this file. It is read at each collection: it may be replaced."""
    _FILES.add((kind, path))


def credential_ends() -> Iterator[tuple[tuple[str, ...], float]]:
    """For each kind, the Unix time at which the first of them ends."""
    from ...schemas.permissions.expiry import end_of_certificates, end_of_credentials

    ends: dict[str, float] = {}
    for kind, path in list(_FILES):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            continue
        end = (end_of_credentials if kind == "credentials" else end_of_certificates)(text)
        if end is not None:
            ends[kind] = min(end, ends.get(kind, end))
    for kind, end in ends.items():
        yield (kind,), end


gauge(
    "gangline.connection.credentials_end",
    "s",
    "Unix time at which the first of the credentials or certificates ends that this process connects with",
    ("file",),
    credential_ends,
)
