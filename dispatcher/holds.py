"""All that one router holds now."""

from __future__ import annotations

from .alarms import Alarms
from .hold import Hold


class Holds:
    """Sees to it that each hold is renewed until it ends, and knows those that have not ended."""

    __slots__ = ("_brief", "_kept", "closed")

    def __init__(self) -> None:
        self.closed = False
        """All were released, and what is kept from now on must be released too."""
        self._kept: dict[Hold, None] = {}  # not a set: the order of releases must not depend on addresses
        self._brief: Alarms[Hold] = Alarms(self._outlast)
        """Those that will nearly all be used up before they have to be renewed: they need no timer so far."""

    def __len__(self) -> int:
        return len(self._kept) + len(self._brief)

    def keep(self, hold: Hold) -> None:
        """Keep it, until it ends."""
        hold.keeper = self
        self._kept[hold] = None
        hold.renew_in_time()

    def keep_briefly(self, hold: Hold) -> None:
        """Likewise, for one that will hardly live so long that it has to be renewed."""
        hold.keeper = self
        self._brief.add(hold, hold.asked_at + hold.terms.renew_s)

    def drop(self, hold: Hold) -> None:
        """It has ended."""
        if not self._brief.drop(hold):
            self._kept.pop(hold, None)

    def release_all(self) -> None:
        """The router stops."""
        self.closed = True
        for hold in [*self._kept, *self._brief]:
            hold.release()
        self._brief.close()

    def _outlast(self, hold: Hold) -> None:
        self._kept[hold] = None
        hold.due()

    def __repr__(self) -> str:
        return f"Holds({len(self._kept)} kept, {len(self._brief)} briefly)"
