"""Routing of one pool: assigns requests to workers, or queues them. Pure: no IO, no clock, no await.

Laws, which `check` asserts and tests quote:

1. A request is in one place at a time: queued, placed on one worker, or neither (not yet admitted, or over).
2. A placement is charged to its worker once and discharged once; the policy's `routed` and `completed` are called with
   them, so they are always paired.
3. Requests of one class and tenant are placed in order of arrival. A retry keeps its number, and with it its place.
4. A request is placed on a worker that is not known to have room only as a *probe*: at most once per backoff interval
   and class.
5. A request is placed at most `max_attempts` times. An attempt that may have started something is retried only if the
   task is idempotent.
6. Requests of a tenant with a quota of slots use no more of them at any time, and wait for each other without delaying
   others. What they use is zero when they have ended.
7. If no worker is left, waiting requests are refused within `no_workers_wait_s`; no request waits forever.
8. A request that waited, or is tried again while others wait, is placed only if it has as much time left as its task
   usually needs. One that would have to wait twice as long as it can is refused at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple, Protocol

from ...runtime.timers import Backoff, Pace, UsualDurations
from ...schemas.errors.base import (
    DeadlineExceeded,
    Disconnected,
    Draining,
    GanglineError,
    InvalidRequest,
    NotEntitled,
    NoWorkers,
    QueueFull,
    Saturated,
    StaleEpoch,
    UnknownMethod,
)
from ...schemas.names import WorkerId
from ...schemas.permissions.quotas import exceeded
from ...schemas.records.workers import Registration
from ...schemas.text import count_of, known_names, plain
from ...schemas.wire.frames import Load
from .outcome import TryOutcome, error_of_fate
from .policy import Candidates, Draw, Policy, PolicyBase, PowerOfTwo, Sticky, cost, cost_on, less_loaded, sample
from .settings import RouterSettings
from .wait_queue import WaitQueue
from .worker_table import WorkerEntry, WorkerTable


class RouteStay(Protocol):
    """A request's admission by the route that chose its pool."""

    def settled(self) -> None:
        """The request no longer counts on a worker."""

    def sent(self) -> None:
        """An attempt was sent."""


class RoutedRequest:
    """One request on its way to a worker, through all its attempts."""

    # No __slots__: most requests never set these, and class attributes make requests cheaper to create.

    slots: int | None = None
    """Slots to reserve; None: as many as the task takes."""
    key: str | None = None
    model: str | None = None
    labels: Mapping[str, str] | None = None
    idempotent: bool | None = None
    """None: as the task declares."""
    in_line = True
    """Whether it may wait for a worker with a free slot."""
    repeatable = False
    """`idempotent`, or as the task of the last attempt declares."""
    number = 0
    tenant = ""
    prefers = ""
    """The worker that it goes to if that has room, whatever the policy says."""
    queue: Hashable = None
    waits: object | None = None
    pace: Pace | None = None
    deadline: float | None = None
    """Loop time at which its caller ends the wait; None: `saturated_wait_s` ends it."""
    queued_at = 0.0
    """Since when it has been waiting to be accepted, including refusals."""
    attempts = 0
    avoid: set[WorkerEntry] | None = None
    worker: WorkerEntry | None = None
    """The worker on which it is placed and counted; None: none."""
    cost = 0
    """Slots counted there."""
    asked_at: float | None = None
    """Loop time of the first attempt to place it."""
    last: WorkerId | None = None
    """Worker of the last attempt."""
    uncertain: TryOutcome | None = None
    """Outcome of an attempt that may have started something and was retried: every later error says that it may have
    run."""
    uncertain_at: WorkerId | None = None
    """Worker of that attempt."""
    fate: TryOutcome | None = None
    """Outcome of the last attempt."""
    waiter: object | None = None
    """For use by the caller of the core."""
    endpoint: str | None = None
    """The endpoint whose route it follows: it leaves a pool that is removed from the route. None: the caller named the
    pool."""
    moved = False
    """It has already waited in another pool, so it is not refused because the queue is full."""
    admission: RouteStay | None = None
    """None: no route chose its pool."""

    def __init__(
        self,
        *,
        method: str | None,
        slots: int | None = None,
        key: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        deadline: float | None = None,
        max_attempts: int = 10_000,
        queue: bool | None = None,
        tenant: str = "",
        prefers: str = "",
    ) -> None:
        self.method = method
        self.max_attempts = max_attempts
        if slots is not None:
            self.slots = slots
        if key is not None:
            self.key = key
        if model is not None:
            self.model = model
        if labels:
            self.labels = labels
        if idempotent is not None:
            self.idempotent = self.repeatable = idempotent
        if deadline is not None:
            self.deadline = deadline
        if queue is False:
            self.in_line = False
        if tenant:
            self.tenant = tenant
        if prefers:
            self.prefers = prefers

    def __repr__(self) -> str:
        where = "waits" if self.waits is not None else f"on {self.worker.id}" if self.worker else "idle"
        return f"RoutedRequest(#{self.number} {self.method}, {where}, attempts={self.attempts})"


class Placed(NamedTuple):
    """The request was placed: send it to `routed_request.worker`."""

    routed_request: RoutedRequest


class PlacementRefused(NamedTuple):
    """The request will no longer be placed."""

    routed_request: RoutedRequest
    error: GanglineError


Effect = Placed | PlacementRefused


class RoutingCore:
    """Decides for one pool. Methods that may let other requests proceed return the effects, in order."""

    def __init__(
        self, pool: str, settings: RouterSettings, policy: Policy, draw: Draw, numbers: Iterator[int] | None = None
    ) -> None:
        """`numbers`: order of arrival; shared by pools between which requests may move."""
        self.pool = pool
        self.view = WorkerTable(node=settings.node, zone=settings.zone, stale_after_s=settings.stale_after_s)
        self.policy = policy
        hooks = (getattr(type(policy), "routed", None), getattr(type(policy), "completed", None))
        self._tells_policy = hooks != (PolicyBase.routed, PolicyBase.completed)
        self._plain = type(policy).choose in (PowerOfTwo.choose, Sticky.choose) and not self._tells_policy
        """A request without special requirements may be placed without calling the policy."""
        self._sticky = type(policy).choose is Sticky.choose and not self._tells_policy
        """Likewise a request with a key."""
        self.connected = True
        self._settings = settings
        self._draw = draw
        self._candidates = Candidates(self.view, draw)
        self._limits_tenants = settings.quotas.limits_slots
        self._line: WaitQueue[RoutedRequest] = WaitQueue(
            settings.weight_of, self._held_back if self._limits_tenants else None
        )
        self._slots: dict[str, int] = {}
        """Slots on which requests of tenants are placed, by tenant, if there are quotas for them."""
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s)
        self._numbers = numbers or itertools.count(1)
        self._placed = 0
        self._progress: dict[Hashable, float] = {}
        """When a request of each class was last accepted by a worker, kept while others wait."""
        self._empty_since = 0.0
        """When the pool last became empty; valid while it is."""
        self.coming = False
        """A worker or gang for it is starting; see `expect`."""
        self._changed_at = 0.0
        """When a worker last joined or left."""
        self._moving = False
        """Whether a worker accepted a request since the current interval began."""
        self.usual = UsualDurations()
        """How long tasks usually take, by method, from when they are sent until they are answered."""
        self.probes = 0
        """Number of backoff intervals that ended with a probe."""

    @property
    def waiting(self) -> int:
        """Number of queued requests."""
        return self._line.size

    @property
    def placed(self) -> int:
        """Number of requests charged to workers now."""
        return self._placed

    # -- requests -------------------------------------------------------------------------------------------------

    def admit(self, routed_request: RoutedRequest, now: float) -> bool:
        """Admit a new request: True if it was placed (see `routed_request.worker`), False if it waits. One that was
        moved keeps its number, and with it its place.

        Raises:
            UnknownMethod: there are workers, and none has the task.
            InvalidRequest: it names a model, and no worker has models.
            Saturated: no worker has that many slots, busy or not.
            QueueFull: it would have to wait, and `max_queued` requests wait already, or as many as will take longer
                than it has time.
        """
        if not routed_request.number:
            routed_request.number = next(self._numbers)
        routed_request.queued_at = now
        routed_request.queue = self._class_of(routed_request)
        if self.view.workers:
            if (error := self._impossible(routed_request) or self._too_large(routed_request)) is not None:
                raise error
            if self._limits_tenants and (forbidden := self._not_entitled(routed_request)) is not None:
                raise forbidden
            if self.connected and not self._waits_before(routed_request) and self._try(routed_request, now):
                return True
        if len(self._line) >= self._settings.max_queued and not routed_request.moved:
            raise QueueFull(
                f"the queue for pool {self.pool!r} is full ({count_of(len(self._line), 'request')}): "
                "slow down, or raise max_queued",
                details={"pool": self.pool, "max_queued": self._settings.max_queued},
            )
        if routed_request.deadline is not None and routed_request.in_line and not routed_request.moved:
            self._check_wait(routed_request, routed_request.deadline, now)
        self._line.add(routed_request)
        return False

    def admit_at_once(self, routed_request: RoutedRequest, now: float) -> bool:
        """Admit a new request only if it neither waits nor overtakes a waiting one; otherwise nothing is kept of it."""
        routed_request.queue = self._class_of(routed_request)
        if not self.connected or not self.view.workers or self._line.has_line(routed_request.queue):
            return False
        routed_request.number = next(self._numbers)
        return self._impossible(routed_request) is None and self._try(routed_request, now)

    def place_plain(self, method: str | None) -> WorkerEntry | None:
        """Place a request for one slot of any worker that has the task, as nearly every call is: like `admit`, without
        the general machinery and without a RoutedRequest. It counts there until `ended` or `end_plain`.

        None: nothing was done, because the case is not plain (no free slot, requests wait, workers differ, or a custom
        policy).

        Args:
            method: None: reserve only a slot.
        """
        view = self.view
        table = view.table
        if table is None or not self.connected or not self._plain or self._line.size:
            return None
        if method is not None:
            declared = table.get(method)
            if declared is None or declared.slots != 1 or (declared.policy is not None and declared.policy.limited):
                return None
        for row in view.open:
            if row:
                break
        else:
            return None
        worker = row[0] if len(row) == 1 else less_loaded(sample(row, 2, self._draw))
        self._placed += 1
        view.charge(worker, 1)
        return worker

    def place_keyed(self, method: str, key: str) -> WorkerEntry | None:
        """`place_plain` for a request with a key. None also if the key's home is full."""
        table = self.view.table
        if table is None or not self.connected or not self._sticky or self._line.size:
            return None
        home = self._candidates.home_for(key, method)
        if home is None or not home.has_room:
            return None
        declared = table.get(method)
        if declared is None or declared.slots != 1 or (declared.policy is not None and declared.policy.limited):
            return None
        self._placed += 1
        self.view.charge(home, 1)
        return home

    def progressed_on(self, method: str, key: str, now: float) -> None:
        """A request of `place_keyed` was accepted. Only matters while requests wait."""
        self.progressed((None, None if self.view.uniform else method, key), now)

    def end_plain(self, worker: WorkerEntry, count: int = 1) -> None:
        """This many plain requests no longer count on the worker. Call `pump` afterwards."""
        self._placed -= count
        self.view.discharge(worker, count)

    def ended(self, worker: WorkerEntry, now: float) -> None:
        """The plain requests counted in `worker.ended` were accepted by the worker and have ended."""
        count, worker.ended = worker.ended, 0
        self.end_plain(worker, count)
        self.progressed(None, now)

    def tried_plain(
        self, routed_request: RoutedRequest, worker: WorkerEntry, number: int, since: float
    ) -> RoutedRequest:
        """The RoutedRequest of a plain request after its attempt on that worker, which has ended and is settled.

        Args:
            number: its place in the order of arrival.
            since: when it was admitted.
        """
        routed_request.number, routed_request.queued_at = number, since
        routed_request.queue = self._class_of(routed_request)
        routed_request.attempts, routed_request.cost, routed_request.last = 1, 1, worker.id
        if routed_request.method is not None and routed_request.method in worker.methods:
            routed_request.repeatable = worker.methods[routed_request.method].idempotent
        return routed_request

    def again(self, routed_request: RoutedRequest, fate: TryOutcome, now: float) -> bool:
        """An attempt failed and was settled: place the request again (True), or let it wait at its old place (False).

        Raises:
            WorkerLost, ResultLost: it may have started and is not idempotent.
            Saturated, ...: `max_attempts` are used up; see `give_up`. Or others wait, and it has less time left than
                its task usually needs.
        """
        self.judge(routed_request, fate, now)
        if self._line.size and (late := self._late(routed_request, now)) is not None:
            raise late
        if self.view.workers:
            if (error := self._impossible(routed_request)) is not None:
                raise error
            if self.connected and not self._waits_before(routed_request) and self._try(routed_request, now):
                return True
        self._line.add(routed_request)
        return False

    def judge(self, routed_request: RoutedRequest, fate: TryOutcome, now: float) -> None:
        """Check that there may be another attempt after this outcome.

        Raises:
            GanglineError: there must not; as `again`.
        """
        assert routed_request.worker is None and routed_request.waits is None, routed_request
        routed_request.fate = fate
        if fate.may_have_started or fate is TryOutcome.UNSEEN:
            routed_request.queued_at = now  # until now it was with a worker, as far as was known
        if not fate.allows_retry(routed_request.repeatable):
            raise self.outcome_unknown(routed_request, fate)
        if fate.may_have_started:
            routed_request.uncertain, routed_request.uncertain_at = fate, routed_request.last
        if routed_request.attempts >= routed_request.max_attempts:
            raise self.give_up(routed_request, f"after {count_of(routed_request.attempts, 'attempt')}")

    def take_out(self, endpoint: str) -> list[RoutedRequest]:
        """Remove all waiting requests that follow that endpoint's route, oldest first."""
        found = [routed_request for routed_request in self._line if routed_request.endpoint == endpoint]
        for routed_request in found:
            self._line.remove(routed_request)
            routed_request.moved = True
        return found

    def withdraw(self, routed_request: RoutedRequest) -> None:
        """The caller gave up, while the request waited or was placed. Idempotent. Call `pump` afterwards."""
        if not self._line.remove(routed_request):
            self.settle(routed_request)

    def accepted(self, routed_request: RoutedRequest, now: float) -> None:
        """A worker accepted the request."""
        self.progressed(routed_request.queue, now)

    def progressed(self, queue: Hashable, now: float) -> None:
        """A worker accepted a request of that class: reset the backoff, and restart the `saturated_wait_s` of waiting
        requests of that class."""
        self._moving = True
        self._backoff.failures = 0
        if self._line.size:
            self._progress[queue] = now
        elif self._progress:
            self._progress.clear()

    def settle(self, routed_request: RoutedRequest) -> None:
        """Stop counting the request on its worker. Idempotent (law 2). Call `pump` afterwards."""
        worker = routed_request.worker
        if worker is None:
            return
        routed_request.worker = None
        self._placed -= 1
        if self._limits_tenants and routed_request.tenant:
            left = self._slots[routed_request.tenant] - routed_request.cost
            if left:
                self._slots[routed_request.tenant] = left
            else:
                del self._slots[routed_request.tenant]
        self.view.discharge(worker, routed_request.cost)
        if self._tells_policy:
            self.policy.completed(worker, routed_request)
        if routed_request.admission is not None:
            routed_request.admission.settled()

    def turned_down(self, routed_request: RoutedRequest, worker: WorkerEntry, fate: TryOutcome) -> None:
        """The worker rejected the request: it is avoided until the next backoff is over. But if only the known epoch
        was outdated, retry there once at once."""
        if fate is TryOutcome.STALE and routed_request.fate is not TryOutcome.STALE:
            return
        if routed_request.avoid is None:
            routed_request.avoid = set()
        routed_request.avoid.add(worker)

    def invited(self, worker: WorkerEntry) -> None:
        """The worker reports free slots: it no longer counts that it rejected requests. Call `pump` afterwards."""
        for head in self._line.heads():
            if head.avoid:
                head.avoid.discard(worker)

    # -- workers --------------------------------------------------------------------------------------------------

    def registered(self, record: Registration, revision: int, now: float) -> WorkerEntry | None:
        """Apply a registration from the ledger; returns the worker whose process it replaced, which is dead. That
        worker is still `known` if its answers named the new epoch before: see WorkerTable.register."""
        count = len(self.view.workers)
        _, replaced = self.view.register(record, revision, now)
        if replaced is not None or len(self.view.workers) != count:
            self._changed_at = now
        if replaced is not None:
            self.policy.worker_lost(replaced)
        return replaced

    def gone(self, worker: WorkerEntry, now: float) -> bool:
        """The worker left or is lost; False if that was known."""
        if self.view.workers.get(worker.id.worker) is not worker:
            return False
        self.view.remove(worker)
        self.policy.worker_lost(worker)
        self._changed_at = now
        if not self.view.workers:
            self._empty_since = now
        return True

    def loaded(self, worker: WorkerEntry, load: Load, epoch: int, now: float) -> None:
        """An answer or a heartbeat arrived, with the load when it was sent."""
        self.view.heard(worker, now)
        self.view.loaded(worker, load, epoch, now)

    # -- progress -------------------------------------------------------------------------------------------------

    def pump(self, now: float, freed: WorkerEntry | None = None) -> list[Effect]:
        """Place all requests that can be placed now, oldest first. Cheap if none waits or no worker has room.

        Args:
            freed: the only worker that may have gained room since the last call. With thousands of queued classes
                (keys) that wait for other workers, checking each at every answer would use all CPU time.
        """
        if self._limits_tenants:
            freed = None  # a request may have waited for its tenant's quota, and others have room
        if not self._line.size or not self.connected or not self._has_room(freed):
            return []
        effects: list[Effect] = []
        for head in self._line.heads():
            following: RoutedRequest | None = head
            while following is not None:
                if (late := self._late(following, now)) is not None:
                    self._line.remove(following)
                    effects.append(PlacementRefused(following, late))
                elif self._try(following, now):
                    self._line.take(following, following.cost, now)
                    effects.append(Placed(following))
                else:
                    break
                following = self._line.next_after(following)
            if not self._has_room(freed):
                break
        return effects

    def wake(self, now: float) -> list[Effect]:
        """A backoff interval has ended: forget rejections, probe, and refuse requests that cannot be served."""
        effects = self._refuse_hopeless(now)
        if not self.connected or not self.view.workers:
            return effects
        for head in self._line.heads():
            head.avoid = None
        effects += self.pump(now)
        # While requests are being accepted, answers show where there is room, and a probe would only be rejected.
        for head in [] if self._moving else self._line.heads():
            if (late := self._late(head, now)) is not None:
                self._line.remove(head)
                effects.append(PlacementRefused(head, late))
            elif self._try(head, now, anyhow=True):
                self.probes += 1
                self._line.take(head, head.cost, now)
                effects.append(Placed(head))
        return effects

    def next_wake_s(self, now: float) -> float | None:
        """Seconds until `wake` must be called; None: no request waits. Each call counts as one backoff."""
        if not self._line:
            return None
        if not self.connected:
            return self._settings.backoff_max_s
        if not self.view.workers and self.coming:
            return self._settings.backoff_max_s
        if not self.view.workers:
            oldest = next(iter(self._line))
            return max(0.0, self._hopeless_at(oldest) - now)
        self._moving = False
        return self._backoff.next_s(self._draw())

    def expect(self, coming: bool, now: float) -> None:
        """Say whether a worker or gang for the pool is starting: requests then wait as for a full pool."""
        if self.coming and not coming:
            self._empty_since = now
        self.coming = coming

    def refuse_all(self, error: GanglineError) -> list[Effect]:
        """Refuse all waiting requests (the router closes)."""
        effects: list[Effect] = []
        for routed_request in list(self._line):
            self._line.remove(routed_request)
            effects.append(PlacementRefused(routed_request, error))
        return effects

    # -- errors ---------------------------------------------------------------------------------------------------

    def give_up(self, routed_request: RoutedRequest, after: str) -> GanglineError:
        """The error for a request that must no longer be tried and is not known to have started."""
        details = {"pool": self.pool, "attempts": routed_request.attempts}
        if routed_request.uncertain is not None:
            return self.outcome_unknown(routed_request, routed_request.uncertain)
        if not self.connected:
            return Disconnected(f"no connection to the server {after}; nothing was sent", details=details)
        workers = self.view.workers
        if not workers:
            return NoWorkers(
                f"no worker serves pool {self.pool!r} ({after}): start one, or check the pool's name", details=details
            )
        if routed_request.fate is TryOutcome.LATE:
            return DeadlineExceeded(f"every attempt reached a worker too late ({after})", details=details)
        if all(worker.draining for worker in workers.values()):
            return Draining(f"all workers of pool {self.pool!r} are draining ({after})", details=details)
        if not any(worker.reachable for worker in workers.values()):
            return NoWorkers(f"no worker of pool {self.pool!r} can be reached ({after})", details=details)
        if (unlabelled := self._unlabelled(routed_request)) is not None:
            return unlabelled
        if self._held_back(routed_request):
            limit, used = self._quota(routed_request) or 0, self._slots.get(routed_request.tenant, 0)
            what = f"slots of pool {self.pool!r} in use ({after})"
            return exceeded(routed_request.tenant, "slots", limit, used, what, "wait until calls have ended")
        because = f"; last: {routed_request.fate.value}" if routed_request.fate is not None else ""
        largest = max(worker.total for worker in workers.values())
        if (needed := cost(self.view, routed_request)) > largest:
            because = f"; it takes {count_of(needed, 'slot')}, and the largest worker has {largest}"
        return Saturated(
            f"no worker of pool {self.pool!r} had room {after}{because}: add workers or slots, or wait longer",
            details=details,
        )

    def outcome_unknown(self, routed_request: RoutedRequest, fate: TryOutcome) -> GanglineError:
        """The error for an attempt that may have started something and must not be retried."""
        worker = routed_request.uncertain_at or routed_request.last or self.pool
        return error_of_fate(fate, str(worker), attempts=routed_request.attempts)

    # -- checking -------------------------------------------------------------------------------------------------

    @property
    def empty_since(self) -> float | None:
        """Since when there have been no workers; 0: always. None: there are some."""
        return None if self.view.workers else self._empty_since

    def check(self) -> None:
        """Assert the laws; tests call it after every event."""
        self.view.check()
        for routed_request in self._line:
            assert routed_request.worker is None, routed_request
        assert self._placed >= 0
        assert all(slots > 0 for slots in self._slots.values()), self._slots

    def __repr__(self) -> str:
        return (
            f"RoutingCore({self.pool}, {len(self.view.workers)} workers, waiting={self.waiting}, placed={self._placed})"
        )

    # -- inside ---------------------------------------------------------------------------------------------------

    def _has_room(self, freed: WorkerEntry | None) -> bool:
        return self.view.has_room if freed is None else freed.has_room

    def _class_of(self, routed_request: RoutedRequest) -> Hashable:
        labels = frozenset(routed_request.labels.items()) if routed_request.labels else None
        # A task that only the new workers have must not block the others during a roll-out; nor must one that waits for
        # its declared limit.
        method = routed_request.method
        if self.view.uniform and not (method is not None and self._limited(method)):
            method = None
        if labels is None and method is None and routed_request.key is None:
            return None
        return (labels, method, routed_request.key)

    def _limited(self, method: str) -> bool:
        declared = self.view.method(method)
        return declared is not None and declared.limited

    def _waits_before(self, routed_request: RoutedRequest) -> bool:
        """Whether a request of the same class with an older number waits. One that its tenant's quota holds back counts
        for this tenant only."""
        if not self._line.size:
            return False
        head = self._line.next_after(routed_request)
        if self._limits_tenants and routed_request.tenant and (head is None or head.number >= routed_request.number):
            head = self._line.first_of(routed_request)
        return head is not None and head.number < routed_request.number

    def _quota(self, routed_request: RoutedRequest) -> int | None:
        """How many slots of this pool the requests of its tenant may use together."""
        quota = self._settings.quotas.of(routed_request.tenant)
        return None if quota is None else quota.slots

    def _held_back(self, routed_request: RoutedRequest) -> bool:
        """Whether it must wait for other requests of its tenant."""
        limit, used = self._quota(routed_request), self._slots.get(routed_request.tenant, 0)
        return limit is not None and used + cost(self.view, routed_request) > limit

    def _not_entitled(self, routed_request: RoutedRequest) -> NotEntitled | None:
        """The error if its tenant may never use so many slots."""
        limit = self._quota(routed_request)
        if limit is None or (needed := cost(self.view, routed_request)) <= limit:
            return None
        tenant = routed_request.tenant
        return NotEntitled(
            f"tenant {tenant!r} asks for {count_of(needed, 'slot')} of pool {self.pool!r}, and its quota slots is "
            f"{limit}: call a smaller task, or have an operator raise the quota",
            details={"tenant": tenant, "quota": "slots", "limit": limit},
        )

    def _try(self, routed_request: RoutedRequest, now: float, *, anyhow: bool = False) -> bool:
        if self._limits_tenants and self._held_back(routed_request):
            return False
        candidates = self._candidates.of(routed_request, anyhow=anyhow)
        worker = self.view.workers.get(routed_request.prefers) if routed_request.prefers else None
        if worker is None or not candidates.fits(worker):
            worker = self.policy.choose(candidates, routed_request)
        if worker is None:
            return False
        if routed_request.idempotent is None and routed_request.method is not None:
            routed_request.repeatable = (
                worker.methods[routed_request.method].idempotent if routed_request.method in worker.methods else False
            )
        self._charge(routed_request, worker, cost_on(worker, routed_request))
        if routed_request.model is not None:
            self.view.routed_model(worker, routed_request.model, now)
        return True

    def _charge(self, routed_request: RoutedRequest, worker: WorkerEntry, slots: int) -> None:
        routed_request.cost = slots
        routed_request.worker = worker
        routed_request.last = worker.id
        routed_request.attempts += 1
        self._placed += 1
        if self._limits_tenants and routed_request.tenant:
            self._slots[routed_request.tenant] = self._slots.get(routed_request.tenant, 0) + slots
        self.view.charge(worker, slots)
        if self._tells_policy:
            self.policy.routed(worker, routed_request)

    def _impossible(self, routed_request: RoutedRequest) -> GanglineError | None:
        """Why none of the workers could ever take it. Call this while there are workers."""
        if routed_request.method is not None and not self.view.serves(routed_request.method):
            known, method = self.view.methods, routed_request.method
            return UnknownMethod(
                f"pool {self.pool!r} has no task {method!r}; {known_names(method, known)}",
                details={"pool": self.pool, "methods": known},
            )
        if routed_request.model is not None and not any(
            worker.max_models or worker.models for worker in self.view.workers.values()
        ):
            return InvalidRequest(
                f"pool {self.pool!r} has no models (its max_models is 0): "
                f"ask without model {routed_request.model[:80]!r}",
                details={"pool": self.pool, "model": routed_request.model[:80]},
            )
        return None

    def _too_large(self, routed_request: RoutedRequest) -> Saturated | None:
        """The error if more slots are wanted than any worker has, even when idle. A paused worker (0 slots) may get any
        number."""
        if routed_request.slots is None:
            return None  # the slots of a task were declared for its workers: a resized worker may grow again
        workers = self.view.workers.values()
        if any(worker.total >= routed_request.slots or worker.total == 0 for worker in workers):
            return None
        largest = max(worker.total for worker in workers)
        return Saturated(
            f"{routed_request.slots} slots were asked for and the largest worker of pool {self.pool!r} has {largest}: "
            "ask for fewer, or start a larger worker",
            details={"pool": self.pool, "slots": routed_request.slots, "largest": largest},
        )

    def _unlabelled(self, routed_request: RoutedRequest) -> NoWorkers | None:
        """The error if no worker has the required labels. Call this while there are workers."""
        wanted = routed_request.labels
        if not wanted or any(wanted.items() <= worker.labels.items() for worker in self.view.workers.values()):
            return None
        return NoWorkers(
            f"no worker of pool {self.pool!r} has the labels {', '.join(f'{name}={wanted[name]}' for name in wanted)}: "
            "start one that has, or ask for others",
            details={"pool": self.pool, "labels": dict(wanted)},
        )

    def _late(self, routed_request: RoutedRequest, now: float) -> GanglineError | None:
        """The error if it has less time left than its task usually needs. Slots are reserved in no time."""
        method, deadline, asked_at = routed_request.method, routed_request.deadline, routed_request.asked_at
        if deadline is None or method is None or asked_at is None or routed_request.slots is not None:
            return None
        left_s = deadline - now
        if left_s >= self.usual.needed_s(method, deadline - asked_at):
            return None
        return self.give_up(routed_request, f"in time ({self.usual.shortage(method, left_s)})")

    def _check_wait(self, routed_request: RoutedRequest, deadline: float, now: float) -> None:
        """
        Raises:
            QueueFull: it would wait twice as long as it can.
        """
        pace = self._line.pace(routed_request)
        if pace is None or (wait_s := pace.in_vain_s(deadline - now, now)) is None:
            return
        raise QueueFull(
            f"the queue for pool {self.pool!r} is too long: {count_of(pace.size, 'request')} will take about "
            f"{wait_s:.3g} s, and this one has {deadline - now:.3g} s: slow down, add workers, or give it more time",
            details={"pool": self.pool, "waiting": pace.size, "wait_s": round(wait_s, 3)},
        )

    def _hopeless_at(self, routed_request: RoutedRequest) -> float:
        return max(routed_request.queued_at, self._empty_since) + self._settings.no_workers_wait_s

    def _refuse_hopeless(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for routed_request in list(self._line):
            error = self._hopeless(routed_request, now)
            if error is not None:
                self._line.remove(routed_request)
                effects.append(PlacementRefused(routed_request, error))
        return effects

    def _hopeless(self, routed_request: RoutedRequest, now: float) -> GanglineError | None:
        limit_s = self._settings.saturated_wait_s
        if (
            routed_request.deadline is None
            and max(routed_request.queued_at, self._progress.get(routed_request.queue, 0.0)) + limit_s <= now
        ):
            return self.give_up(routed_request, f"for {plain(limit_s)} s")
        if not self.connected:
            return None
        if not self.view.workers:
            if not self.coming and self._hopeless_at(routed_request) <= now:
                return self.give_up(routed_request, f"for {plain(self._settings.no_workers_wait_s)} s")
            return None
        # A large or matching worker that restarts, or starts later than others, is waited for like the only one.
        waited_s = now - max(routed_request.queued_at, self._changed_at)
        unfit: GanglineError | None = None
        if waited_s >= self._settings.no_workers_wait_s:
            unfit = self._too_large(routed_request) or self._unlabelled(routed_request)
        if self._limits_tenants:
            unfit = self._not_entitled(routed_request) or unfit
        return self._impossible(routed_request) or unfit


def stale(worker: WorkerEntry, epoch: int) -> StaleEpoch:
    """The error for a token of an outdated epoch."""
    return StaleEpoch(
        f"worker {worker.id} is in epoch {worker.epoch}, the lease is of epoch {epoch}: lease again",
        details={"worker": str(worker.id), "epoch": worker.epoch},
    )
