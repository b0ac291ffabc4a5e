"""Nkeys: the key pairs of operators and accounts, for signing, and of users, for authentication."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Self

import nkeys

from ...schemas.errors.base import InvalidSettings


class KeyKind(IntEnum):
    """Whose key it is, as the first letter of the public key shows."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


class KeyPair:
    """A key pair. The seed is the secret.

    Raises:
        InvalidSettings: it is not a seed.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed.strip()
        try:
            self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
            self.public = str(self._pair.public_key.decode())
        except Exception as error:  # nkeys raises errors of many types
            raise InvalidSettings("this is not the seed of an nkey: use the file unchanged") from error

    @classmethod
    def new(cls, kind: KeyKind) -> Self:
        return cls(bytes(nkeys.encode_seed(os.urandom(32), kind)).decode())

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))

    def __repr__(self) -> str:
        """Without the secret."""
        return f"<KeyPair {self.public}>"
