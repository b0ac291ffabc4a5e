"""Law `secret`: nothing that others than its holder can read has a token.

Others read every revision of the ledger, every event, what coordinators send to workers, and answers to `list`, `why`,
`stats` and to a `get` that shows no owner's token.
"""

from __future__ import annotations

import re
from typing import Final

from ....bus.port.bus import KvEntry, Message
from ....schemas.names import MARK, PRIVATE, GangOperation, Names, Operation
from ....schemas.wire import codec
from ..history.checker import Checker

_WORDS: Final = re.compile(rb"[A-Za-z0-9_~-]+")
_OPEN: Final = (GangOperation.LIST, GangOperation.WHY, Operation.STATS)
_TO_ALL: Final = (Operation.FORM, Operation.TEARDOWN)


class SecretWatch:
    """Taps the hub."""

    def __init__(self, checker: Checker, names: Names) -> None:
        self._checker = checker
        self._names = names
        self._secrets: dict[bytes, str] = {}
        """Tokens that were ever made, and of what."""
        self._read: dict[bytes, str] = {}
        """Words that others could read, and where."""
        self._asked: set[str] = set()
        """Reply subjects of requests whose answers anybody may get."""

    def made(self, token: str, what: str) -> None:
        """A token was given to its holder."""
        if token.startswith(MARK):
            return  # a public id, which is none
        word = token.encode()
        self._secrets[word] = what
        if word in self._read:
            self._checker.fail("secret", f"{what}, {token}, can be read in {self._read[word]}")

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision."""
        if bucket == self._names.ledger_bucket:
            self._can_read(entry.key, entry.key.encode(), entry.value or b"")

    def on_message(self, sender: str, message: Message) -> None:
        """A message has reached the server."""
        subject = message.subject.removeprefix(f"{PRIVATE}.").removeprefix(f"{self._names.namespace}.")
        if subject in self._asked:
            self._can_read(f"an answer of {sender}", message.data)
        elif b'"tokens"' in message.data or b'"owner_token"' in message.data:
            self._collect(sender, message)
        room, operation = subject.partition(".")[0], subject.rpartition(".")[2]
        if room == "event" or (room == "worker" and operation in _TO_ALL):
            self._can_read(message.subject, message.data)
        if room in ("gang", "worker") and message.reply and self._is_open(operation, message.data):
            self._asked.add(message.reply)

    @staticmethod
    def _is_open(operation: str, data: bytes) -> bool:
        return operation in _OPEN or (operation == GangOperation.GET and b'"owner_token"' not in data)

    def _collect(self, sender: str, message: Message) -> None:
        if not message.data.startswith(b"{"):
            return
        body = codec.from_json(message.data)
        for token in body.get("tokens", ()):
            self.made(token, f"the token of a seat of {sender}")
        if body.get("owner_token"):
            self.made(body["owner_token"], f"the owner's token of gang {body.get('id')}")

    def _can_read(self, where: str, *texts: bytes) -> None:
        for text in texts:
            for word in _WORDS.findall(text):
                if word in self._secrets:
                    self._checker.fail("secret", f"{where} has {self._secrets[word]}, {word.decode()}")
                else:
                    self._read[word] = where
