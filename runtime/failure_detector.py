"""When somebody who has fallen silent is lost. Pure: no IO, no clock, no await; time comes with every call.

That nothing was heard of somebody says as much about our own server, and about what lies between the servers, as about
whoever is silent. So a silent one is only suspected, and its heartbeat key in the ledger decides.

Laws:

1. Nobody is lost by silence. Who is suspected is lost when the ledger has said twice in a row that there is no
   heartbeat of it, and was asked the second time `CONFIRM_S` or more after it had answered the first. In a ledger that
   has just woken, or has just elected its leader, heartbeats have expired whose renewals it has not read yet.
2. An answer counts only if it came within `PROMPT_S` of its question. One that comes later is an old view: the server
   stood still, or we did.
3. Who is heard of is suspected no longer, and what was asked about it before says nothing.
4. When no answer about a suspect has counted for `unconfirmed_after_s`, those who wait for it can be told that it is
   unreachable (`unconfirmed`). It is not lost for that.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

LOOK_S: Final = 0.1
"""Between two questions about one suspect."""
CONFIRM_S: Final = 0.25
PROMPT_S: Final = 1.0

K = TypeVar("K", bound=Hashable)


class _Suspicion:
    __slots__ = ("answered_at", "asked_at", "gone_at", "since", "why")

    def __init__(self, why: str, now: float) -> None:
        self.why = why
        self.asked_at = float("-inf")
        self.since = self.answered_at = now
        """When the last answer came that counted; at first, since when it is suspected."""
        self.gone_at: float | None = None
        """When the first of those answers in a row came that say that it is gone."""


class FailureDetector(Generic[K]):
    """Those who are suspected, and what the ledger has said of them.

    Args:
        unconfirmed_after_s: see law 4.
    """

    def __init__(self, unconfirmed_after_s: float) -> None:
        self._unconfirmed_after_s = unconfirmed_after_s
        self._suspicions: dict[K, _Suspicion] = {}

    def __len__(self) -> int:
        return len(self._suspicions)

    def __contains__(self, who: K) -> bool:
        return who in self._suspicions

    def __repr__(self) -> str:
        return f"FailureDetector(suspects={len(self)})"

    def suspect(self, who: K, why: str, now: float) -> bool:
        """Nothing is heard of it; False if that was known. `why` is for people: `not heard of for 3 s`."""
        if who in self._suspicions:
            return False
        self._suspicions[who] = _Suspicion(why, now)
        return True

    def clear(self, who: K) -> None:
        """It was heard of, or nobody is interested any more. Idempotent."""
        self._suspicions.pop(who, None)

    def clear_all(self) -> None:
        """Nobody could have been heard of: the connection was lost."""
        self._suspicions.clear()

    def due(self, now: float) -> K | None:
        """Whom to ask the ledger about now: the one that was asked about longest ago, if that is long enough. It counts
        as asked about."""
        if not self._suspicions:
            return None
        who = min(self._suspicions, key=lambda each: self._suspicions[each].asked_at)
        suspicion = self._suspicions[who]
        if now < suspicion.asked_at + LOOK_S:
            return None
        suspicion.asked_at = now
        return who

    def answered(self, who: K, *, asked_at: float, now: float, alive: bool) -> str | None:
        """The ledger has answered. Returns why it is lost, if it is now; then it is suspected no longer."""
        suspicion = self._suspicions.get(who)
        if suspicion is None or now - asked_at > PROMPT_S or asked_at < suspicion.since:
            return None
        suspicion.answered_at = now
        if alive:
            suspicion.gone_at = None
        elif suspicion.gone_at is None:
            suspicion.gone_at = now
        elif asked_at - suspicion.gone_at >= CONFIRM_S:
            del self._suspicions[who]
            return f"{suspicion.why}, and its heartbeat has expired"
        return None

    def unconfirmed(self, now: float) -> list[K]:
        """Suspects of whom the ledger has not said anything for so long."""
        limit = now - self._unconfirmed_after_s
        return [who for who, suspicion in self._suspicions.items() if suspicion.answered_at <= limit]
