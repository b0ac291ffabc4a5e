"""The owner's view of a gang. Pure: no IO, no clock, no await.

Laws:

1. Each generation begins once and ends once (by GenerationLost, or by the GenerationFormed of the next), in order;
   messages about one that has ended change nothing. Events may be lost, duplicated and late: answers to renewals have
   the same facts.
2. The gang is trusted for its time to live, measured from before the last renewal that was answered, minus a margin, so
   the owner always stops trusting it before the coordinator can end it. A later answer restores the trust.
3. An ended gang stays ended.
4. Each rank of the current generation is lost at most once; if all ranks are lost, the generation itself ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...runtime.timers import margin_s
from ...schemas.errors.base import (
    GangEnded,
    GangFailed,
    GanglineError,
    GangRestarted,
    LeaseExpired,
    NotOwner,
    UnknownGang,
)
from ...schemas.messages.gangs import GangEvent, GangEventKind, GangReply
from ...schemas.names import MARK
from ...schemas.records.gangs import GangState

RENEWALS_PER_TTL: Final = 3
_AGAIN_PER_TTL: Final = 12
ANSWER_S: Final = 0.1
"""How long the answer to an acquire may lag behind the event with the same news."""
_FINAL: Final = (GangEnded, NotOwner, UnknownGang)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFormed:
    """A generation is formed: calls may go to its members."""

    reply: GangReply
    instead: GanglineError | None = None
    """Set if the previous generation had not ended yet. Members that stayed (same token) continue; the others ended
    with this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost:
    """Ranks of the current generation are lost and will be replaced; the others continue."""

    generation: int
    ranks: tuple[int, ...]
    """Only those not reported before."""
    error: GanglineError


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLost:
    """The newest generation has ended: end all work on it."""

    generation: int
    error: GanglineError


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipEnded:
    """There will be no further generation. Comes after the GenerationLost of the last one."""

    error: GanglineError


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewOwnership:
    """Send a renewal now; report the result with `answered`, `refused` or `unanswered`."""


Effect = GenerationFormed | GenerationLost | RanksLost | OwnershipEnded | RenewOwnership


class OwnerCore:
    """One gang as its owner sees it."""

    def __init__(self, gang: str, ttl_s: float) -> None:
        self.gang = gang
        self.ttl_s = ttl_s
        self.formed: GangReply | None = None
        """The current generation; None between two generations and after the end."""
        self.over: GanglineError | None = None
        self.ready = 0
        """The newest generation whose members are known to have all started."""
        self.restarts = 0
        self.failures = 0
        self.lost: dict[int, None] = {}
        """Ranks of the current generation that are lost and being replaced."""
        self.renew_at: float | None = None
        """When to call `tick`."""
        self.trusted_until = float("-inf")
        self._newest = 0
        """The newest generation received."""
        self._gone = 0
        """All generations up to this one have ended."""

    def trouble(self, now: float) -> GanglineError | None:
        """Why nothing new may be sent to members, even if they are formed as far as is known."""
        if self.over is not None:
            return self.over
        if now >= self.trusted_until:
            return LeaseExpired(
                f"gang {self.gang} could not be renewed in time and may have ended; nothing was sent: "
                "is a coordinator running?",
                details={"gang": self.gang},
            )
        return None

    # -- what happens ---------------------------------------------------------------------------------------------

    def answered(self, reply: GangReply, asked_at: float, now: float) -> list[Effect]:
        """The coordinator answered an acquire (the gang is formed) or a renewal."""
        if self.over is not None:
            return []
        if asked_at + self.ttl_s - margin_s(self.ttl_s) > self.trusted_until:
            self.trusted_until = asked_at + self.ttl_s - margin_s(self.ttl_s)
        self.renew_at = max(now, asked_at + self.ttl_s / RENEWALS_PER_TTL)
        self._count(reply)
        alive = reply.state in (GangState.FORMED, GangState.RETIRING) and bool(reply.seats)
        if alive and reply.generation > self._newest and any(seat.token.startswith(MARK) for seat in reply.seats):
            # A new leader has public ids from the ledger, and is asking the workers for the tokens.
            self.renew_at = now + ANSWER_S
            return []
        if alive:
            if reply.ready is not False:  # for older coordinators, formed means ready
                self.ready = max(self.ready, reply.generation)
            return [*self._formed(reply), *self._ranks_lost(reply.generation, reply.lost, reply.reason)]
        if reply.state is GangState.ENDED:
            return self._end(self._error(reply.generation, reply.rank, reply.reason, ends=True))
        # Torn down or queued again: all generations before the one named have ended.
        gone = reply.generation if reply.state is GangState.TEARING_DOWN else reply.generation - 1
        return self._lost(gone, reply.rank, reply.reason, ends=False)

    def refused(self, error: GanglineError, now: float) -> list[Effect]:
        """The coordinator answered a renewal with an error."""
        # Before the first members are known, only the answer to the acquire itself is final.
        if self.over is None and self._newest > 0 and isinstance(error, _FINAL):
            return self._end(error)
        return self.unanswered(now)

    def unanswered(self, now: float) -> list[Effect]:
        """A renewal was not answered: retry soon."""
        if self.over is None:
            self.renew_at = now + self.ttl_s / _AGAIN_PER_TTL
        return []

    def told(self, event: GangEvent, now: float) -> list[Effect]:
        """An event of the gang was received."""
        if self.over is not None or event.gang != self.gang:
            return []
        self._count(event)
        match event.kind:
            case GangEventKind.TORN_DOWN:
                return self._lost(event.generation, event.rank, event.reason, ends=event.ends)
            case GangEventKind.RESTARTING:
                return self._lost(event.generation - 1, event.rank, event.reason, ends=False)
            case GangEventKind.ENDED:
                return self._end(self._error(event.generation, event.rank, event.reason, ends=True))
            case GangEventKind.FORMED | GangEventKind.READY if self._newest == 0:
                self.renew_at = now + ANSWER_S  # the answer to the acquire is on its way, unless it was lost
                return []
            case GangEventKind.FORMED | GangEventKind.READY if event.generation > self._newest:
                return self._ask(now)  # the seats are in the answer
            case GangEventKind.READY:
                self.ready = max(self.ready, event.generation)
                return []
            case GangEventKind.MEMBER_LOST:
                ranks = event.lost or (() if event.rank is None else (event.rank,))
                return [*self._ranks_lost(event.generation, ranks, event.reason), *self._ask(now)]
            case GangEventKind.RECOVERED:
                return self._ask(now)
            case _:
                return []

    def tick(self, now: float) -> list[Effect]:
        """`renew_at` has come, or there is a reason to renew earlier."""
        return [] if self.over is not None else self._ask(now)

    def close(self, error: GanglineError) -> list[Effect]:
        """The owner releases the gang."""
        return self._end(error) if self.over is None else []

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> list[Effect]:
        self.renew_at = now + self.ttl_s / _AGAIN_PER_TTL
        return [RenewOwnership()]

    def _formed(self, reply: GangReply) -> list[Effect]:
        if reply.generation <= max(self._newest, self._gone):
            return []
        instead = None if self.formed is None else self._replaced(self.formed, reply)
        self._gone = max(self._gone, reply.generation - 1)
        self._newest = reply.generation
        self.formed = reply
        self.lost.clear()
        return [GenerationFormed(reply=reply, instead=instead)]

    def _replaced(self, before: GangReply, reply: GangReply) -> GangRestarted:
        """The error for members that a repair replaced, or of a generation whose teardown was not reported."""
        stayed = {seat.token for seat in before.seats} & {seat.token for seat in reply.seats}
        what = "lost the member" if stayed else "was torn down"
        text = (
            f"generation {before.generation} of gang {self.gang} {what}: generation {reply.generation} has formed since"
        )
        return GangRestarted(
            text,
            details={"generation": before.generation, "rank": None, "reason": ""},
        )

    def _ranks_lost(self, generation: int, ranks: Iterable[int], reason: str) -> list[Effect]:
        if self.formed is None or self.formed.generation != generation:
            return []
        new = tuple(rank for rank in ranks if rank not in self.lost)
        if not new:
            return []
        self.lost.update(dict.fromkeys(new))
        one = len(new) == 1
        who = f"rank {new[0]}" if one else f"ranks {', '.join(map(str, new))}"
        what, so = ("was lost", "it is being replaced") if one else ("were lost", "they are being replaced")
        text = f"{who} of gang {self.gang} {what} in generation {generation} ({reason}): {so}"
        details = {"generation": generation, "rank": new[0], "reason": reason}
        return [RanksLost(generation=generation, ranks=new, error=GangRestarted(text, details=details))]

    def _count(self, told: GangReply | GangEvent) -> None:
        self.restarts = max(self.restarts, told.restarts)
        self.failures = max(self.failures, told.failures)

    def _lost(self, generation: int, rank: int | None, reason: str, *, ends: bool) -> list[Effect]:
        """All generations up to this one have ended."""
        if generation <= self._gone:
            return []
        self._gone = generation
        if self.formed is None or self.formed.generation > generation:
            return []
        went = GenerationLost(
            generation=self.formed.generation, error=self._error(self.formed.generation, rank, reason, ends=ends)
        )
        self.formed = None
        self.lost.clear()
        return [went]

    def _end(self, error: GanglineError) -> list[Effect]:
        effects: list[Effect] = []
        if self.formed is not None:
            effects.append(GenerationLost(generation=self.formed.generation, error=error))
            self.formed = None
        self.lost.clear()
        self.over = error
        self.renew_at = None
        return [*effects, OwnershipEnded(error=error)]

    def _error(self, generation: int, rank: int | None, reason: str, *, ends: bool) -> GanglineError:
        details = {"generation": generation, "rank": rank, "reason": reason}
        who = f"rank {rank} " if rank is not None else ""
        if not ends:
            text = f"generation {generation} of gang {self.gang} was torn down ({who}{reason}): it forms again"
            return GangRestarted(text, details=details)
        if rank is None:
            return GangEnded(f"gang {self.gang} has ended ({reason}): acquire a new one", details=details)
        return GangFailed(f"gang {self.gang} ended in generation {generation}: {who}{reason}", details=details)
