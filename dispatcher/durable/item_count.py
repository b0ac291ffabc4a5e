"""Which items of one try have come, and which of them are stored. Pure.

Items come over a connection that may lose them, and credit goes back over one that may lose it: so the worker keeps
what was not credited, and sends it again from any place on to who attaches anew.
"""

from __future__ import annotations

from enum import Enum, auto


class Came(Enum):
    """What to do with an item."""

    NEXT = auto()
    """Store it."""
    AGAIN = auto()
    """It is known."""
    GAP = auto()
    """One before it got lost: have them sent again."""


class ItemCount:
    """Of one try.

    Args:
        known: it begins with item 0. False: another dispatcher stored some before; what comes first is the next.
    """

    __slots__ = ("_asked_at", "_received", "_stored", "_still", "credited", "known")

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.credited = 0
        """Stored, with all before them."""
        self._received = 0
        self._stored: set[int] = set()
        """... without all before them."""
        self._asked_at: int | None = None
        """How many had come when the end came too early."""
        self._still: tuple[int, int] = (-1, 0)
        """How many had come at the last look, and at how many looks it was the same."""

    def __repr__(self) -> str:
        return f"ItemCount({self._received} came, {self.credited} stored{'' if self.known else ', begin unknown'})"

    def take(self, index: int) -> Came:
        """An item came."""
        if not self.known:
            self.known, self._received, self.credited = True, index, index
        if index != self._received:
            return Came.AGAIN if index < self._received else Came.GAP
        self._received += 1
        return Came.NEXT

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
        return count != self._received if self.known else count > 0

    def may_ask(self) -> bool:
        """Whether they may be asked for again: not twice in a row for nothing."""
        received = self._received if self.known else -1
        if self._asked_at == received:
            return False
        self._asked_at = received
        return True

    def stands_still(self) -> bool:
        """Whether to have a look at the worker's side, since nothing has come for long: it may wait for credit that got
        lost. Asked now and then; each time in vain makes the next rarer."""
        received, times = self._still
        if received != self._received:
            self._still = (self._received, 0)
            return False
        times += 1
        self._still = (received, times)
        return times & (times - 1) == 0
