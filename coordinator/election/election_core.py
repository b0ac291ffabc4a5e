"""The leader election. Pure: time and random draws arrive in the event.

Two keys of the ledger: `leader` names the leader and is rewritten only by compare-and-set; its revision fences
everything that the leader writes. `leader_alive` expires `alive_ttl_s` after its last renewal. Laws:

1. A claim is a compare-and-set on `leader` with a higher term: of two candidates that saw the same leader, one wins.
2. Nobody claims while `leader_alive` exists, nor before a random wait after it is gone. Terms grow, even if the bucket
   is lost: the first term in a new bucket is the Unix time. There, whoever led last claims first, since it knows best
   what was lost: others wait for `alive_ttl_s` more.
3. A leader trusts its leadership until `alive_ttl_s - margin_s` after the *start* of its last renewal that succeeded,
   on its own monotonic clock. It stops before the key can expire, without asking anybody. If it still writes (frozen
   between the look at the clock and the write), the server refuses the write: law L9 does not rely on clocks.
4. A claim whose answer was lost is looked up, not believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from ...schemas.errors.base import InvalidSettings
from ...schemas.records.gangs import LeaderRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """Settings of the election, in seconds.

    Raises:
        InvalidSettings: a leader would stop trusting itself before it can renew.
    """

    alive_ttl_s: float = 2.0
    """Time to live of the key `leader_alive`. The server supports whole seconds only."""
    renew_s: float = 0.5
    """Interval at which the leader renews it."""
    margin_s: float = 0.5
    """How long before the key expires a leader stops acting as one; covers a slow write."""
    jitter_s: float = 0.3
    """A candidate waits a random time up to this before it claims leadership."""
    retry_s: float = 0.5
    """Wait after a claim that lost or failed, plus a random time of up to the same length."""

    def __post_init__(self) -> None:
        if not 0 < self.renew_s < self.alive_ttl_s - self.margin_s:
            raise InvalidSettings("renew_s must be above 0 and below alive_ttl_s - margin_s")
        if min(self.margin_s, self.jitter_s, self.retry_s) < 0:
            raise InvalidSettings("margin_s, jitter_s and retry_s must not be negative")


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionEvent:
    now: float
    """Seconds of a monotonic clock."""
    draw: float = 0.5
    """From [0, 1)."""
    wall: float = 0.0
    """Unix time, for the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRead(ElectionEvent):
    """Both keys as they are now: read at the start, after each ReadLeader, or seen by a watch."""

    leader: LeaderRecord | None
    revision: int
    """Of `leader`; 0: never written."""
    alive_term: int | None
    """Term in `leader_alive`; None: the key does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWon(ElectionEvent):
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(ElectionEvent):
    """Another candidate wrote `leader` first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUnknown(ElectionEvent):
    """No answer; it may have been written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(ElectionEvent):
    started_at: float
    """When the renewal was started, on the same clock as `now`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewFailed(ElectionEvent):
    """No answer, or no storage. The renewal is retried while the leader may still act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposed(ElectionEvent):
    """A conflict on `leader` or `leader_alive`: another process leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermFailed(ElectionEvent):
    """The leader could not begin its term. Another process may succeed, or this one a little later."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned(ElectionEvent):
    """This process is stopping; standbys should not have to wait for the key to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTick(ElectionEvent):
    """The time of the last ElectionWake has come."""


AnyElectionEvent = (
    LeaderRead
    | ClaimWon
    | ClaimLost
    | ClaimUnknown
    | Renewed
    | RenewFailed
    | Deposed
    | TermFailed
    | Resigned
    | ElectionTick
)


# -- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Write `leader` at this revision (0: only if it does not exist). Answer ClaimWon, ClaimLost or ClaimUnknown."""

    record: LeaderRecord
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLeadership:
    """Write `leader_alive` with this time to live: the first of a term unconditionally, later ones at our own revision.
    Answer Renewed, RenewFailed or Deposed."""

    term: int
    first: bool
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLeader:
    """Read both keys from the stream's leader and answer LeaderRead; repeat until it succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BecomeLeader:
    """This process leads. Read the ledger, then send LeadershipGained to the gang core."""

    term: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldLeadership:
    """This process no longer leads: send LeadershipLost to the gang core at once, before anything else."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """Delete `leader_alive`, at our own revision, so that a standby claims at once. May fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionWake:
    """Send an ElectionTick at this time; replaces the previous ElectionWake."""

    at: float


ElectionEffect = Claim | RenewLeadership | ReadLeader | BecomeLeader | YieldLeadership | ResignLeadership | ElectionWake


class ElectionRole(StrEnum):
    FOLLOWER = "follower"
    """Another process leads, or it is unknown whether one does."""
    CANDIDATE = "candidate"
    """Nobody seems to lead; we wait for a random time."""
    CLAIMING = "claiming"
    LEADER = "leader"
    RESIGNED = "resigned"


class ElectionCore:
    """The election logic of one coordinator. Begin with the effects of `start()`."""

    def __init__(self, instance: str, settings: ElectionSettings | None = None) -> None:
        self.settings = settings or ElectionSettings()
        self.instance = instance
        self.role = ElectionRole.FOLLOWER
        self.term = 0
        """The term of the last leader seen; our own while we lead."""
        self.trusted_until = float("-inf")
        """Monotonic; while leader."""
        self._revision = 0
        self._led_last = ""
        """The instance that led last, as far as we know."""
        self._wait_until = float("-inf")
        self._renew_at = float("inf")
        self._renewing = False

    def __repr__(self) -> str:
        return f"<ElectionCore {self.instance} {self.role.value} term={self.term}>"

    def start(self) -> list[ElectionEffect]:
        return [ReadLeader()]

    def handle(self, event: AnyElectionEvent) -> list[ElectionEffect]:
        """Decide."""
        if self.role is ElectionRole.RESIGNED:
            return []
        if self.role is ElectionRole.LEADER and event.now >= self.trusted_until:
            # It is too late to act on this event as a leader.
            return self._step_down(event, "its renewals did not succeed in time")
        match event:
            case LeaderRead():
                return self._read(event)
            case ClaimWon():
                return self._won(event, event.revision) if self.role is ElectionRole.CLAIMING else []
            case ClaimLost() | ClaimUnknown():
                return self._not_won(event)
            case Renewed():
                return self._renewed(event)
            case RenewFailed():
                self._renewing = False
                self._renew_at = event.now + self.settings.renew_s / 2
                return [self._wake()] if self.role is ElectionRole.LEADER else []
            case Deposed():
                return (
                    self._step_down(event, "somebody else leads")
                    if self.role is ElectionRole.LEADER
                    else [ReadLeader()]
                )
            case TermFailed():
                return self._step_down(event, event.reason) if self.role is ElectionRole.LEADER else []
            case Resigned():
                leading, self.role = self.role is ElectionRole.LEADER, ElectionRole.RESIGNED
                return [YieldLeadership(reason="resigned"), ResignLeadership()] if leading else []
            case ElectionTick():
                return self._tick(event)
            case _:
                assert_never(event)

    def _read(self, event: LeaderRead) -> list[ElectionEffect]:
        record = event.leader
        if self.role is ElectionRole.LEADER:
            if record is None or (record.instance, record.term) != (self.instance, self.term):
                return self._step_down(event, "the leader record is no longer ours")
            self._revision = max(self._revision, event.revision)
            return []
        ours = record is not None and record.instance == self.instance and record.term == self.term + 1
        if self.role is ElectionRole.CLAIMING and ours:
            return self._won(event, event.revision)  # the claim whose answer was lost
        self._revision = event.revision
        wait_s = event.draw * self.settings.jitter_s
        if record is not None:
            self.term, self._led_last = record.term, record.instance
        else:
            if self._led_last not in ("", self.instance):
                wait_s += self.settings.alive_ttl_s
            # None was ever written, or the bucket was lost, perhaps with terms unknown to us. Ids and attempt numbers
            # contain the term, and workers remember past ones.
            self.term = max(self.term, int(event.wall))
        if event.alive_term is not None and event.alive_term >= self.term:
            self.role = ElectionRole.FOLLOWER
            # In case the watch misses the expiry.
            self._wait_until = event.now + self.settings.alive_ttl_s + self.settings.jitter_s
            return [self._wake()]
        if self.role is not ElectionRole.CANDIDATE:
            self.role = ElectionRole.CANDIDATE
            self._wait_until = max(self._wait_until_retry(event), event.now + wait_s)
        if event.now >= self._wait_until:
            return self._claim(event)
        return [self._wake()]

    def _wait_until_retry(self, event: ElectionEvent) -> float:
        return self._wait_until if self.role is ElectionRole.CLAIMING else event.now

    def _claim(self, event: ElectionEvent) -> list[ElectionEffect]:
        self.role = ElectionRole.CLAIMING
        # Look again in case neither an answer nor the shell's own timeout comes.
        self._wait_until = event.now + self.settings.alive_ttl_s * 2
        record = LeaderRecord(term=self.term + 1, instance=self.instance, since=event.wall)
        return [Claim(record=record, revision=self._revision), self._wake()]

    def _won(self, event: ElectionEvent, revision: int) -> list[ElectionEffect]:
        self.role = ElectionRole.LEADER
        self.term += 1
        self._led_last = self.instance
        self._revision = revision
        # `leader_alive` does not exist until the first renewal, so others may claim: then we are deposed and fenced.
        self.trusted_until = event.now + self.settings.alive_ttl_s - self.settings.margin_s
        self._renewing = True
        self._renew_at = event.now + self.settings.renew_s
        renew = RenewLeadership(term=self.term, first=True, ttl_s=self.settings.alive_ttl_s)
        return [renew, BecomeLeader(term=self.term, fence=revision), self._wake()]

    def _not_won(self, event: ElectionEvent) -> list[ElectionEffect]:
        if self.role is not ElectionRole.CLAIMING:
            return []
        self._wait_until = event.now + self.settings.retry_s * (1 + event.draw)
        if isinstance(event, ClaimLost):
            self.role = ElectionRole.FOLLOWER
        return [ReadLeader()]

    def _renewed(self, event: Renewed) -> list[ElectionEffect]:
        if self.role is not ElectionRole.LEADER:
            return []
        self._renewing = False
        end = event.started_at + self.settings.alive_ttl_s - self.settings.margin_s
        self.trusted_until = max(self.trusted_until, end)
        self._renew_at = max(event.now, event.started_at + self.settings.renew_s)
        return [self._wake()]

    def _tick(self, event: ElectionTick) -> list[ElectionEffect]:
        match self.role:
            case ElectionRole.LEADER:
                if self._renewing or event.now < self._renew_at:
                    return [self._wake()]
                self._renewing = True
                return [RenewLeadership(term=self.term, first=False, ttl_s=self.settings.alive_ttl_s), self._wake()]
            case ElectionRole.CANDIDATE if event.now >= self._wait_until:
                return [ReadLeader()]  # it shows who became leader meanwhile
            case ElectionRole.FOLLOWER | ElectionRole.CLAIMING if event.now >= self._wait_until:
                self._wait_until = event.now + self.settings.alive_ttl_s
                return [ReadLeader(), self._wake()]
            case _:
                return [self._wake()]

    def _step_down(self, event: ElectionEvent, reason: str) -> list[ElectionEffect]:
        self.role = ElectionRole.FOLLOWER
        self._renewing = False
        self._wait_until = event.now + self.settings.retry_s * (1 + event.draw)
        return [YieldLeadership(reason=reason), ReadLeader(), self._wake()]

    def _wake(self) -> ElectionWake:
        if self.role is ElectionRole.LEADER:
            return ElectionWake(at=self.trusted_until if self._renewing else min(self.trusted_until, self._renew_at))
        return ElectionWake(at=self._wait_until)
