"""A worker's share of a limit that holds over all workers of its pool: when to take units of it, and when to give them
up. Pure.

The units of a limit are divided in one record of the ledger (LimitRecord), which every worker changes by
compare-and-set. A worker starts an execution only while fewer of its units are in use than it has. Its units stay with
it until it gives them up itself, or until its heartbeat has expired in the ledger. So it needs the ledger only to
change its share.

A unit of `max_running` is in use while an execution runs. A unit of a rate is in use for `interval_s` after each start:
with B units and B / rate seconds, at most B + rate * t executions start in any t seconds, however often units move,
because only units that are not in use are given to others.

Laws:

1. *Limit.* The units of all workers together never exceed the limit when one of them takes some. They may exceed it
   after the limit was lowered, and after the ledger was lost or a worker was cut off, by the executions that still run.
2. *Give first.* A unit that is given up is not used any more from before the write that says so, until a later revision
   shows whether that was stored.
3. *Expired is dead.* A share is used only while the worker's id is certainly its own (IdLease), and only if the record
   was written by this worker since that became so. Others take it only when the ledger no longer has the worker's
   heartbeat. So a worker that was frozen or cut off stops using its share before another can have it.
4. *Spent.* Units of a rate that may have been in use when they were freed (their worker left, died or was started
   anew) count as in use from when somebody takes them.
5. *No waiting for ever.* A worker that waits for a unit gets an idle one at once. If all are in use, it gets one of the
   next that become idle at another worker, `PATIENCE_S` after that worker has learnt that it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...runtime.timers import IdLease
from ...schemas.records.workers import HeldShare, LimitRecord

PATIENCE_S: Final = 0.1
"""A worker whose own callers wait keeps its units for this long while another worker waits, so that short executions
need no write each."""
WANT_AFTER_S: Final = 0.02
"""How long a refused caller may find another worker before this one asks for a unit that others have."""
HOLD_S: Final = 0.05
"""A worker that asked for a unit and got it keeps it for its callers for this long: it has just told them to try again.
Where they come back more slowly, as dispatchers do, it waits for the next one."""
PACE_S: Final = 0.6
"""Callers that come back more rarely than this are not waited for."""
NEEDED_S: Final = 0.6
"""A worker keeps a unit of `max_running` for this long after its caller was refused because of the rate. Without that,
two workers that each have what the other one needs would exchange it for ever. Longer than callers take to come back.
"""
WANTED_S: Final = 1.0
"""A refusal counts for this long: dispatchers and routers try again at least every half second."""
AGAIN_S: Final = 1.0
"""How often a worker that waits asks again, and looks for workers that are gone."""
RECLAIM_AFTER_S: Final = 4.0
"""A worker whose own id was uncertain leaves the shares of others alone for this long: what kept it from writing
heartbeats may have kept them, too. Longer than a heartbeat lives."""
SETTLE_S: Final = 4.0
"""How long nobody takes units after the ledger was lost, so that workers that still run something can say so."""


class ShareCore:
    """The share of one worker in one limit. `now` is monotonic and never goes backwards."""

    __slots__ = (
        "_allowed",
        "_dead",
        "_declared_at",
        "_generation",
        "_held_until",
        "_incarnation",
        "_interval_s",
        "_limit",
        "_offered",
        "_planned",
        "_pace",
        "_paced_at",
        "_prefetch",
        "_refused_at",
        "_settled_at",
        "_spent",
        "_tried_at",
        "_unclear",
        "_unknown",
        "_waited_since",
        "_withheld",
        "_wanted_since",
        "_wants_until",
        "id_lease",
        "instance",
        "leaving",
        "record",
        "revision",
        "stale",
        "worker",
    )

    def __init__(
        self,
        worker: str,
        instance: str,
        id_lease: IdLease,
        *,
        limit: int,
        declared_at: float,
        interval_s: float = 0.0,
    ) -> None:
        """
        Args:
            worker: its name within the pool.
            instance: its process; see Registration.
            id_lease: until when this process has that name.
            limit: what it declares for all workers together.
            declared_at: Unix time of its start. The limit of the worker that started last is the one that counts.
            interval_s: of a rate, how long a unit is in use after each start; 0: until the execution ends.
        """
        self.worker = worker
        self.instance = instance
        self.id_lease = id_lease
        self.leaving = False
        """It drains: it takes nothing, and gives up what it does not use."""
        self.record: LimitRecord | None = None
        """As last read or written; None: there is none."""
        self.revision = 0
        self.stale = True
        """The record must be read before the next decision."""
        self._limit = limit
        self._interval_s = interval_s
        self._declared_at = declared_at
        self._incarnation = ""
        self._settled_at = float("-inf")
        self._allowed = 0
        """At most the units in the record; fewer while some are being given up."""
        self._offered = 0
        """Units that the last write gives up. If it is refused, since others write, too, they are not new here."""
        self._withheld = 0
        """Units that nothing more starts on, because others wait for them."""
        self._generation = 0
        """Of the id, in which this share was last confirmed; 0: never."""
        self._planned: tuple[LimitRecord, int] | None = None
        """The write that is under way, and the generation in which it was decided."""
        self._unknown: int | None = None
        """A write on this revision may have been stored, or may still be."""
        self._spent = 0
        """Units gained, or about to be, that count as in use from then on; see `spent`."""
        self._prefetch = True
        """It has not had any unit yet, and takes free ones before anybody asks for them."""
        self._held_until = float("-inf")
        """Until then it gives up nothing that it is not using yet."""
        self._refused_at = float("-inf")
        self._pace = 0.0
        """Seconds between the last refusals, of which several may come at once: a dispatcher tries all of its tasks."""
        self._paced_at = float("-inf")
        """When that was measured."""
        self._unclear = False
        """It tried to take units that count as in use, and that may have been stored before others wrote."""
        self._wanted_since = float("-inf")
        self._wants_until = float("-inf")
        self._tried_at = float("-inf")
        """When it last looked for workers that are gone."""
        self._waited_since: dict[str, float] = {}
        """When it learnt that another worker waits."""
        self._dead: tuple[int, frozenset[tuple[str, str]]] = (0, frozenset())
        """Workers and instances that were gone after this revision was read."""

    def __repr__(self) -> str:
        return f"ShareCore({self.worker}: {self._allowed} of {self.limit}, revision={self.revision})"

    @property
    def limit(self) -> int:
        """The limit over all workers."""
        return self._limit if self.record is None else self.record.limit

    @property
    def interval_s(self) -> float:
        """Of a rate: how long a unit is in use after each start."""
        return self._interval_s if self.record is None else self.record.interval_s or self._interval_s

    @property
    def waiting(self) -> bool:
        """Whether it waits for a unit that another worker has."""
        return self.record is not None and self.worker in self.record.waiting

    @property
    def unconfirmed(self) -> bool:
        """Whether the share cannot be used before this worker has written the record again."""
        return self._generation != self.id_lease.generation

    def polls(self, now: float) -> bool:
        """Whether to read the record again from time to time, since a change may have been missed."""
        return self.waiting or self._wants(now)

    def usable(self, now: float) -> int:
        """How many executions may run here now."""
        if self._generation != self.id_lease.generation or not self.id_lease.holds(now):
            return 0
        return self._allowed - self._withheld

    def refused(self, now: float) -> None:
        """A caller was refused for lack of a unit."""
        if not self._wants(now):
            self._wanted_since = now
        pace = now - self._refused_at
        if pace >= HOLD_S or now >= self._paced_at + PACE_S:
            self._pace, self._paced_at = pace if pace < PACE_S else 0.0, now
        self._refused_at = now
        self._wants_until = now + WANTED_S

    def needed(self, now: float) -> None:
        """A caller that could have used a unit was refused for lack of something else, which is on its way."""
        self._held_until = max(self._held_until, now + NEEDED_S)

    def concerns(self, hint: LimitRecord, in_use: int, now: float) -> bool:
        """Whether this record, which may have been written, would be a reason to do something."""
        mine = hint.shares.get(self.worker)
        known = None if self.record is None else self.record.shares.get(self.worker)
        return (
            mine != known
            or (mine is not None and mine.units > 0 and any(each != self.worker for each in hint.waiting))
            or (mine is not None and mine.units > in_use and _units(hint.shares) > hint.limit)
            or self.waiting
            or self._wants(now)
            or self.record is None
            or _units(self.record.shares) > self.record.limit
        )

    # -- what was read and written ------------------------------------------------------------------------------------

    def seen(self, record: LimitRecord | None, revision: int, now: float) -> int:
        """The record was read. Returns the units that it has gained."""
        if record is None or record.incarnation != self._incarnation:
            self._generation = 0  # it was lost meanwhile, and has to be confirmed
            self._unknown = None
        elif revision < self.revision:
            return 0  # read from a server that lags behind
        self._adopt(record, now)
        self.record, self.revision, self.stale = record, revision, False
        self._note_waiting(now)
        own = self._own()
        if own is None:
            self._allowed = self._withheld = self._generation = 0
            return 0
        if self._unknown == revision:
            return 0  # what is being given up may still be stored
        unclear = self._unknown is not None or self._unclear
        self._unknown, self._unclear = None, False
        refused = self._offered if self._waited_since else 0
        gained = self._allow(self._room(record, own), now)
        # What could not be given up is still for those who wait: nothing starts on it before the next decision.
        self._withheld = min(max(self._withheld, refused), self._allowed)
        if unclear and self._interval_s:
            self._spent = gained  # they may be those that it took
        return gained

    def written(self, revision: int, now: float) -> int:
        """The planned write was stored. Returns the units that it has gained."""
        assert self._planned is not None
        record, generation = self._planned
        self._planned = self._unknown = None
        self._adopt(record, now)
        self.record, self.revision = record, revision
        self._generation = generation
        self._note_waiting(now)
        own = self._own()
        assert own is not None or self.leaving, "it wrote a record without itself"
        return self._allow(0 if own is None else self._room(record, own), now)

    def spent(self) -> int:
        """How many of the units just gained count as in use. Call after `seen` and `written`."""
        spent, self._spent = self._spent, 0
        return spent

    def conflict(self) -> None:
        """The planned write was refused: another worker was faster."""
        self._planned = None
        self._unclear, self._spent = self._spent > 0, 0
        self.stale = True

    def unknown(self) -> None:
        """Nobody knows whether the planned write was stored."""
        self._planned, self._spent = None, 0
        self._unknown, self.stale = self.revision, True

    def found_dead(self, revision: int, dead: Iterable[tuple[str, str]]) -> None:
        """The heartbeats of these workers and instances were not in the ledger after this revision was read."""
        self._dead = (revision, frozenset(dead))

    def others(self, now: float) -> list[tuple[str, str]]:
        """Workers and instances whose heartbeats to look up now; empty: there is no reason to."""
        record = self.record
        if record is None or now < self._tried_at + AGAIN_S or now < self.id_lease.since + RECLAIM_AFTER_S:
            return []
        if not (self.waiting or self._wants(now)):
            return []
        self._tried_at = now
        return [(name, each.instance) for name, each in record.shares.items() if name != self.worker]

    # -- what to write ------------------------------------------------------------------------------------------------

    def plan(self, in_use: int, now: float, *, pressed: bool, fresh: str) -> LimitRecord | None:
        """The record to write on `revision`, if any; then call `written`, `conflict` or `unknown`.

        Args:
            in_use: units in use here: executions that run, or that have started within the last interval.
            pressed: whether callers wait here, too.
            fresh: a new random name.
        """
        if self._planned is not None or self.stale or not self.id_lease.holds(now):
            return None
        record, own = self.record, self._own()
        if record is None:
            record = LimitRecord(
                incarnation=fresh,
                limit=self._limit,
                declared_at=self._declared_at,
                settled=self._incarnation == "",
                interval_s=self._interval_s,
                spent=self._limit if self._incarnation and self._interval_s else 0,
            )
            free = self._limit // 2 or 1
            units = in_use if self._incarnation or self.leaving else max(in_use, free)
            return self._begin(record, {self.worker: HeldShare(instance=self.instance, units=units)}, ())
        record = self._declared(record)
        shares, waiting = dict(record.shares), [each for each in record.waiting if each in record.shares]
        for name, instance in self._dead[1] if self._dead[0] == self.revision else ():
            if name in shares and shares[name].instance == instance:
                record = self._freed(record, shares.pop(name).units)
                waiting = [each for each in waiting if each != name]
        if own is None or self._generation != self.id_lease.generation or self._unknown is not None:
            units = 0 if own is None else own.units
            if own is None and self.worker in shares:
                record = self._freed(record, shares[self.worker].units)  # those of the process before
            if self._unknown is not None:
                units = min(units, self._allowed)  # law 2
            shares[self.worker] = HeldShare(instance=self.instance, units=max(units, in_use))
            if own is None and in_use:
                # The ledger or this worker was away: others may be about to say the same.
                record = record.model_copy(update={"settled": False})
            return self._begin(record, shares, waiting)
        self._allowed, self._withheld = self._room(record, own), 0
        before = shares[self.worker].units
        gave = self._give(shares, waiting, record.limit, in_use, pressed, now)
        if not gave and self._take(shares, waiting, record.limit, in_use, pressed, now):
            taken = shares[self.worker].units - before
            rested = record.limit - (_units(shares) - taken) - record.spent
            self._spent = max(0, taken - rested) if record.spent else 0
            record = record.model_copy(update={"settled": True, "spent": record.spent - self._spent})
        if shares == record.shares and tuple(waiting) == record.waiting and record == self.record:
            if self.waiting and self._wants(now) and now >= self._wanted_since + AGAIN_S:
                self._wanted_since = now  # those who have units may not have heard of it: tell them again
                return self._begin(record, shares, waiting)
            return None
        return self._begin(record, shares, waiting)

    def leave(self, in_use: int = 0) -> LimitRecord | None:
        """The record without this worker, when nothing runs there any longer. `in_use`: of a rate."""
        record, own = self.record, self._own()
        if record is None or own is None or self._planned is not None or self.stale or self._unknown is not None:
            return None
        self.leaving = True
        shares = {name: each for name, each in record.shares.items() if name != self.worker}
        record = self._freed(record, min(in_use, own.units))
        return self._begin(record, shares, [each for each in record.waiting if each != self.worker])

    def next_at(self, now: float, idle_at: float | None = None) -> float | None:
        """When to decide again, if nothing happens before; None: there is no need. `idle_at`: when a unit that is in
        use now becomes idle, if that is known."""
        if self.stale or not self.id_lease.holds(now):
            return None if not self.id_lease.holds(now) else now
        times: list[float] = []
        own = self._own()
        if own is not None and own.units:
            times += [at + PATIENCE_S for at in self._waited_since.values() if at + PATIENCE_S > now]
            times += [self._held_until] if self._waited_since and self._held_until > now else []
            if idle_at is not None and (self._waited_since or self.leaving or self.usable(now) < own.units):
                times.append(idle_at)
        if self._wants(now) or self.waiting:
            times += [at for at in (self._wanted_since + WANT_AFTER_S,) if at > now]
            times.append(now + AGAIN_S / 2)
        if (self._prefetch or self._wants(now)) and self._settled_at > now:
            times.append(self._settled_at)
        return min(times, default=None)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _begin(self, record: LimitRecord, shares: dict[str, HeldShare], waiting: Iterable[str]) -> LimitRecord:
        spent = min(record.spent, max(0, record.limit - _units(shares)))  # not more than are free
        planned = record.model_copy(update={"shares": shares, "waiting": tuple(waiting), "spent": spent})
        self._planned = (planned, self.id_lease.generation)
        own, before = shares.get(self.worker), self._allowed
        self._allowed = min(self._allowed, 0 if own is None else own.units)  # law 2
        self._offered = before - self._allowed
        self._withheld = min(self._withheld, self._allowed)
        return planned

    def _declared(self, record: LimitRecord) -> LimitRecord:
        if self._declared_at <= record.declared_at or self.leaving:
            return record
        declared = {"limit": self._limit, "declared_at": self._declared_at, "interval_s": self._interval_s}
        return record.model_copy(update=declared)

    def _freed(self, record: LimitRecord, units: int) -> LimitRecord:
        """With these units free, which may be in use (law 4)."""
        return record.model_copy(update={"spent": record.spent + units}) if self._interval_s else record

    def _give(
        self,
        shares: dict[str, HeldShare],
        waiting: list[str],
        limit: int,
        in_use: int,
        pressed: bool,
        now: float,
    ) -> bool:
        """Give up what others need, or what is too much. Whether something was given up."""
        units = shares[self.worker].units
        idle = units - in_use
        others = [each for each in waiting if each != self.worker]
        excess = _units(shares) - limit
        given = 0
        if excess > 0:
            given = max(0, min(idle, excess))
        elif others:
            long = now >= min(self._waited_since.get(each, now) for each in others) + PATIENCE_S
            if idle > 0 and ((now >= self._held_until and (long or not pressed)) or self.leaving):
                for place, name in enumerate(others):
                    part = min(idle - given, max(1, (idle - given) // (len(others) - place + 1)))
                    if part <= 0:
                        break
                    shares[name] = shares[name].model_copy(update={"units": shares[name].units + part})
                    waiting.remove(name)
                    given += part
                if not pressed:
                    self._wants_until = float("-inf")  # its callers did not come back: it wants nothing until one does
            elif long and idle <= 0:
                self._withheld = min(units, len(others))  # the next that become idle here are for them
        elif self.leaving:
            given = max(0, idle)
        if given:
            shares[self.worker] = shares[self.worker].model_copy(update={"units": units - given})
        return given > 0

    def _take(
        self,
        shares: dict[str, HeldShare],
        waiting: list[str],
        limit: int,
        in_use: int,
        pressed: bool,
        now: float,
    ) -> bool:
        """Take free units, or wait for one. Whether it takes any."""
        units = shares[self.worker].units
        wants = self._wants(now) and units <= in_use
        if self.leaving or units >= limit or not (wants or self._prefetch):
            # Between two executions it goes on waiting if more callers do: its unit is not idle for long.
            if self.worker in waiting and not wants and not (pressed and self._wants(now)):
                waiting.remove(self.worker)
            return False
        ahead = waiting.index(self.worker) if self.worker in waiting else len(waiting)
        free = limit - _units(shares) - ahead
        if free > 0 and now >= self._settled_at:
            taken = min(max(1, free // 2), limit - units)
            shares[self.worker] = shares[self.worker].model_copy(update={"units": units + taken})
            if self.worker in waiting:
                waiting.remove(self.worker)
            return True
        if wants and self.worker not in waiting and now >= self._wanted_since + WANT_AFTER_S:
            waiting.append(self.worker)
        elif not wants and now >= self._settled_at:
            self._prefetch = False  # others have all of it
        return False

    def _wants(self, now: float) -> bool:
        return now < self._wants_until

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _own(self) -> HeldShare | None:
        own = None if self.record is None else self.record.shares.get(self.worker)
        return own if own is not None and own.instance == self.instance else None

    @staticmethod
    def _room(record: LimitRecord | None, own: HeldShare) -> int:
        """While all units together exceed the limit, nothing starts on those that are too many."""
        excess = 0 if record is None else _units(record.shares) - record.limit
        return own.units if excess <= 0 else max(0, own.units - excess)

    def _allow(self, units: int, now: float) -> int:
        gained, offered = units - self._allowed, self._offered
        self._allowed, self._withheld, self._offered = units, min(self._withheld, units), 0
        if units:
            self._prefetch = False
        if gained > offered and self._wants(now):
            self._held_until = max(now, self._refused_at + 1.25 * self._pace) + HOLD_S
        return max(0, gained)

    def _adopt(self, record: LimitRecord | None, now: float) -> None:
        if record is None:
            return
        if record.settled:
            self._settled_at = float("-inf")
        elif record.incarnation != self._incarnation or self._settled_at == float("-inf"):
            self._settled_at = now + SETTLE_S
        self._incarnation = record.incarnation

    def _note_waiting(self, now: float) -> None:
        names = () if self.record is None else self.record.waiting
        self._waited_since = {each: self._waited_since.get(each, now) for each in names if each != self.worker}


def _units(shares: Mapping[str, HeldShare]) -> int:
    return sum(each.units for each in shares.values())
