"""Subjects, their wildcards, and subscriptions to them."""

from __future__ import annotations

import itertools
import re
from typing import Final, Protocol, runtime_checkable

from ...schemas.errors.base import InvalidName

_FORBIDDEN: Final = re.compile(r"[ \t\r\n*>]")
"""In subjects that can be published to."""


@runtime_checkable
class Subscription(Protocol):
    """A live subscription. Survives reconnects."""

    async def unsubscribe(self) -> None:
        """Stop delivery at once. Idempotent."""
        ...


@runtime_checkable
class SubjectSubscription(Subscription, Protocol):
    """A subscription to a subject."""

    async def drain(self) -> None:
        """Like `unsubscribe`, but messages that the server sent before it processed that are still delivered.

        For responders: their requests were sent to nobody else. Returns when the server has confirmed, after 5 s, or
        when the connection is lost; never raises. Idempotent.
        """
        ...


class SubjectPattern:
    """A subject with wildcards: `*` stands for one token, a last `>` for one or more.

    Raises:
        InvalidName: there is an empty token, white space, or a `>` before the end.
    """

    __slots__ = ("_prefix", "_wild", "literal", "text")

    def __init__(self, text: str) -> None:
        tokens = text.split(".")
        if not all(tokens) or any(char.isspace() for char in text) or ">" in tokens[:-1]:
            raise InvalidName(f"{text!r} is not a subject: tokens joined by dots, '*' for one, '>' for the rest")
        self.text = text
        self.literal = "*" not in tokens and tokens[-1] != ">"
        """Whether it matches only the subject that it is."""
        self._prefix = text[:-1] if "*" not in tokens and tokens[-1] == ">" else None
        """If this and anything more matches."""
        self._wild = None if self.literal or self._prefix is not None else _expression(tokens)

    def __repr__(self) -> str:
        return f"SubjectPattern({self.text!r})"

    def matches(self, subject: str) -> bool:
        if self.literal:
            return subject == self.text
        if self._wild is not None:
            return self._wild.fullmatch(subject) is not None
        assert self._prefix is not None
        return subject.startswith(self._prefix) and len(subject) > len(self._prefix)


def _expression(tokens: list[str]) -> re.Pattern[str]:
    wild = {"*": "[^.]*", ">": ".+"}
    return re.compile(r"\.".join(wild.get(token) or re.escape(token) for token in tokens), re.DOTALL)


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    for mine, theirs in itertools.zip_longest(one.split("."), other.split(".")):
        if ">" in (mine, theirs):
            return mine is not None and theirs is not None
        if mine is None or theirs is None or ("*" not in (mine, theirs) and mine != theirs):
            return False
    return True


def check_subject(subject: str) -> None:
    """Raise if a server would not route this subject.

    Raises:
        InvalidName: it is empty or has an empty token, white space or a wildcard.
    """
    bad = not subject or ".." in subject or subject[0] == "." or subject[-1] == "."
    if bad or _FORBIDDEN.search(subject):
        raise InvalidName(f"{subject!r} is not a subject that can be published to")
