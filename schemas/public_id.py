"""The public id of a token.

Whoever knows the token of a lease can use and release its slots, and an owner's token releases its gang. So only the
holder has a token, and the worker or coordinator that checks it. Everything that others can read (keys and records of
the ledger, lists, events, journals, logs, errors) has the token's public id instead: a one-way hash, with which nobody
can do anything. See docs/adr/0012.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache
from hashlib import sha256
from typing import Final

MARK: Final = "~"
"""Prefix of every public id; no token starts with it."""


@lru_cache(maxsize=8192)  # a lease that is renewed is written again and again
def public_id(token: str) -> str:
    """The public id of a token: the mark, and the first 16 bytes of its SHA-256 in URL-safe base64. A public id is
    returned unchanged."""
    if token.startswith(MARK):
        return token
    return MARK + urlsafe_b64encode(sha256(token.encode()).digest()[:16])[:22].decode()


def is_token_of(token: str | None, id: str) -> bool:
    """Whether that is the token with this public id. The id itself is not."""
    return token is not None and not token.startswith(MARK) and public_id(token) == id
