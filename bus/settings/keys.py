"""Nkeys: key pairs with which operators and accounts sign, and with which users prove who they are."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Self

import nkeys

from ...schemas.errors.base import InvalidSettings


class KeyKind(IntEnum):
    """Whose key it is; the first letter of its public key says so."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


class KeyPair:
    """Made from a seed, which is the secret.

    Raises:
        InvalidSettings: it is no seed.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed.strip()
        try:
            self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
            self.public = str(self._pair.public_key.decode())
        except Exception as error:  # the library raises many kinds
            raise InvalidSettings("this is no seed of an nkey: use the file as it was written") from error

    @classmethod
    def new(cls, kind: KeyKind) -> Self:
        return cls(bytes(nkeys.encode_seed(os.urandom(32), kind)).decode())

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))

    def __repr__(self) -> str:
        """Without the secret."""
        return f"<KeyPair {self.public}>"
