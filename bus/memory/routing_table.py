"""Who listens to what: the routing table of the in-memory hub."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from ..port.subjects import SubjectPattern


class SubjectRoute(Protocol):
    pattern: SubjectPattern
    queue: str


L = TypeVar("L", bound=SubjectRoute)


class RoutingTable(Generic[L]):
    """Which listeners match a subject; answers are remembered until a listener comes or goes."""

    def __init__(self) -> None:
        self._listeners: dict[L, None] = {}
        self._known: dict[str, tuple[list[L], list[list[L]]]] = {}

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, listener: L) -> None:
        self._listeners[listener] = None
        self._known.clear()

    def remove(self, listener: L) -> None:
        self._listeners.pop(listener, None)
        self._known.clear()

    def match(self, subject: str) -> tuple[list[L], list[list[L]]]:
        """Plain listeners, and the members of each queue group, in the order in which they subscribed."""
        known = self._known.get(subject)
        if known is None:
            plain: list[L] = []
            groups: dict[str, list[L]] = {}
            for listener in self._listeners:
                if listener.pattern.matches(subject):
                    if listener.queue:
                        groups.setdefault(listener.queue, []).append(listener)
                    else:
                        plain.append(listener)
            known = plain, list(groups.values())
            if len(self._known) > 4096:  # subjects made for one answer each
                self._known.clear()
            self._known[subject] = known
        return known
