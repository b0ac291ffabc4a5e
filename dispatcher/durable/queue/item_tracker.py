"""Which items of one try have come, and which of them are stored. Pure.

Items come over a connection that may lose them, and credit goes back over one that may lose it: so the worker keeps
what was not credited, and sends it again from any place on to who attaches anew.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

MOST_GAPS: Final = 6
"""So often in a row, over some three seconds, items that lack are asked for in vain."""


class ItemVerdict(Enum):
    """What to do with an item."""

    NEXT = auto()
    """Store it."""
    AGAIN = auto()
    """It is known."""
    GAP = auto()
    """One before it got lost: have them sent again."""


class ItemTracker:
    """Of one try.

    Args:
        known: it begins with item 0. False: another dispatcher stored some before; what comes first is the next.
    """

    __slots__ = ("_asked_at", "_gaps", "_still", "_stored", "credited", "known", "received")

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.credited = 0
        """Stored, with all before them."""
        self.received = 0
        """How many came, without a gap."""
        self._stored: set[int] = set()
        """... without all before them."""
        self._asked_at: int | None = None
        """How many had come when the end came too early."""
        self._gaps = 0
        """In a row, without an item that was lacking."""
        self._still: tuple[int, int] = (-1, 0)
        """How many had come at the last look, and at how many looks it was the same."""

    def __repr__(self) -> str:
        return f"ItemTracker({self.received} came, {self.credited} stored{'' if self.known else ', begin unknown'})"

    def take(self, index: int) -> ItemVerdict:
        """An item came."""
        if not self.known:
            self.known, self.received, self.credited = True, index, index
        if index != self.received:
            return ItemVerdict.AGAIN if index < self.received else ItemVerdict.GAP
        self.received += 1
        self._gaps = 0
        return ItemVerdict.NEXT

    def ask_after_s(self) -> float | None:
        """How long to wait before what lacks is asked for again; None: it was in vain often enough."""
        self._gaps += 1
        if self._gaps > MOST_GAPS:
            return None
        return 0.0 if self._gaps == 1 else 0.1 * 2 ** (self._gaps - 2)

    def stored(self, index: int) -> int:
        """An item is stored. Returns how many more are, with all before them: so many are the worker's credit."""
        self._stored.add(index)
        before = self.credited
        while self.credited in self._stored:
            self._stored.discard(self.credited)
            self.credited += 1
        return self.credited - before

    def lacks(self, count: int) -> bool:
        """Whether some of so many, which is all there are, did not come. Asked at the end."""
        return count != self.received if self.known else count > 0

    def may_ask(self) -> bool:
        """Whether they may be asked for again: not twice in a row for nothing."""
        received = self.received if self.known else -1
        if self._asked_at == received:
            return False
        self._asked_at = received
        return True

    def stands_still(self) -> bool:
        """Whether to have a look at the worker's side, since nothing has come for long: it may wait for credit that got
        lost. Asked now and then; each time in vain makes the next rarer."""
        received, times = self._still
        if received != self.received:
            self._still = (self.received, 0)
            return False
        times += 1
        self._still = (received, times)
        return times & (times - 1) == 0
