"""The public id of a lease.

Whoever knows a token can use and release its slots. So tokens are only given to their holders and stored in the
ledger, which workers, routers and coordinators read. Operators see this id, which is derived from the token but does
not reveal it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

MARK: Final = "~"
"""Prefix of every public id; no token starts with it."""


def public_id(token: str) -> str:
    """The public id of a token, the same on every machine. A public id is returned unchanged."""
    if token.startswith(MARK):
        return token
    return MARK + blake2b(token.encode(), digest_size=6, person=b"gangline").hexdigest()
