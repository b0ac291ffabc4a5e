"""What a lease is called where others may read it.

Whoever knows a token can use and release its slots. So tokens go to those who hold them and into the ledger, which
workers, routers and coordinators read; operators are shown this id, which is made of the token without giving it away.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

MARK: Final = "~"
"""Begins every public id; no token has it."""


def public_id(token: str) -> str:
    """The same for the same token, on every machine. A public id stays as it is."""
    if token.startswith(MARK):
        return token
    return MARK + blake2b(token.encode(), digest_size=6, person=b"gangline").hexdigest()
