"""A worker's records of gangs: holds, members, members that are stopping, reserved slots, and marks of ended gangs.

Pure records; only worker.slots.gang_core changes them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ...schemas.messages.gangs import FormRequest
from .lease_table import GrantedLease, Refusal

ALONE_TTLS: Final = 2.0
"""A member that for so many times its gang's time to live heard no ping, and could not read the ledger either, is cut
off, and stops by itself."""


@dataclass(slots=True, kw_only=True, eq=False)
class LocalSeat:
    """One part of one rank of a gang, on this worker."""

    rank: int
    part: int
    lease: GrantedLease
    """While it is only held, the lease is not in the table: nothing can start on it (L7)."""


@dataclass(slots=True, kw_only=True, eq=False)
class TentativeHold:
    """Slots held tentatively, for a commit that may or may not follow."""

    gang: str
    generation: int
    attempt: int
    seats: tuple[LocalSeat, ...]
    due_at: float
    """When it must be looked up whether the commit came."""
    due: bool = False
    """That time has come. The hold stands until the ledger was read."""
    reg_revision: int = 0
    """As it was answered; a repeated request gets the same, never a newer one: the commit must not survive `due`."""
    port: int | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(seat.lease.token for seat in self.seats)


@dataclass(slots=True, kw_only=True, eq=False)
class LocalMember:
    """The seats of one generation of a gang on this worker."""

    gang: str
    form: FormRequest
    seats: dict[str, LocalSeat]
    """By token, never empty. While not `over`, each has its lease in the table."""
    hold: TentativeHold | None = None
    """That its newest seats came from."""
    proven_at: float
    """When it was last known for certain that the gang stands: formed, named in a ping, or read in the ledger."""
    look_at: float
    """When the ledger must be asked; NEVER while that is under way."""
    over: bool = False
    """The worker's epoch ended, and its leases with it; what runs goes on until the gang is torn down."""

    @property
    def generation(self) -> int:
        return self.form.generation

    @property
    def ranks(self) -> list[int]:
        return sorted({seat.rank for seat in self.seats.values() if seat.part == 0}) or [
            min(seat.rank for seat in self.seats.values())
        ]

    @property
    def alone_at(self) -> float:
        """When it stops by itself, if it hears and reads nothing until then."""
        return self.proven_at + ALONE_TTLS * self.form.ttl_s

    def __repr__(self) -> str:
        return (
            f"<LocalMember {self.gang} generation={self.generation} ranks={self.ranks}{' over' if self.over else ''}>"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LeavingMember:
    """Seats taken from a gang, or all of them: their leases have ended, and their tasks are being stopped."""

    gang: str
    generation: int
    seats: list[LocalSeat]
    form: FormRequest
    whole: bool
    """Nothing of that generation stays here."""
    reason: str
    rank: int | None
    grace_at: float
    """When what still runs is told again, harder; NEVER once it was."""
    hooks: int = 0
    """Hooks that still run; while there are any, the seats' idle slots are not free."""

    @property
    def stopped(self) -> bool:
        return self.hooks == 0 and all(seat.lease.busy == 0 for seat in self.seats)


@dataclass(slots=True)
class EndedGang:
    """The ended generations and attempts of one gang."""

    at: float = 0.0
    generation: int = 0
    """Torn down here, and all before."""
    attempt: int = -1
    """Given up or refused, and all before."""
    refusal: Refusal = Refusal.EXPIRED
    """What that attempt was told."""


@dataclass(slots=True)
class EndedGangs:
    """Marks of ended generations and attempts, so that late messages start nothing. Bounded by age and by count."""

    keep_s: float
    keep: int
    _by_gang: OrderedDict[str, EndedGang] = field(default_factory=OrderedDict)
    """Least recently marked first."""

    def get(self, gang: str) -> EndedGang | None:
        return self._by_gang.get(gang)

    def over(self, gang: str, generation: int, now: float) -> None:
        """That generation was torn down."""
        past = self._mark(gang, now)
        past.generation = max(past.generation, generation)

    def given_up(self, gang: str, attempt: int, refusal: Refusal, now: float) -> None:
        """That attempt holds nothing, and never will."""
        past = self._mark(gang, now)
        if attempt > past.attempt:
            past.attempt, past.refusal = attempt, refusal

    def sweep(self, now: float) -> None:
        while self._by_gang and next(iter(self._by_gang.values())).at + self.keep_s <= now:
            self._by_gang.popitem(last=False)

    def _mark(self, gang: str, now: float) -> EndedGang:
        past = self._by_gang.setdefault(gang, EndedGang())
        past.at = now
        self._by_gang.move_to_end(gang)
        while len(self._by_gang) > self.keep:
            self._by_gang.popitem(last=False)
        return past

    def __len__(self) -> int:
        return len(self._by_gang)
