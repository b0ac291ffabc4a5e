"""Each request has exactly one outcome, in time, which correctly tells its caller what ran; and no live worker is taken
for lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ....dispatcher.pools.pool import RoutedPool
from ....dispatcher.routing.worker_table import WorkerEntry
from ....runtime.timers import CLOCKS_DIFFER
from ....schemas.errors.base import GanglineError, WorkerLost
from ..history.checker import Checker

TOLD_S = 0.05
"""After this time a caller knows that nobody is subscribed, from the server's answers to the message and to the CHECK
that follows it."""
HANG_SLACK_S = 0.5
"""Tolerance for scheduling. A deadline is measured by the caller's own clock, so no other delay is an excuse."""

EARLY_SLACK_S = 0.05
"""Rounding on the wire, at each step."""


@dataclass(slots=True)
class SimulatedRequest:
    """One request as seen by its caller, the server and its task."""

    id: str
    node: str
    idempotent: bool
    begun_at: float
    deadline_at: float
    starts: int = 0
    """How often its task's code started."""
    returns: int = 0
    """How often its task's code returned a value."""
    outcome: str | None = None
    surely_not_started: bool = False
    """Whether its caller was told that nothing ran."""
    sent_at: float | None = None
    """When a message that contains it last reached the server."""
    heard: bool = False
    """Whether a worker that could have run it was subscribed then."""
    pool: str = ""
    method: str = ""
    plain: bool = False
    """Whether it is a call that any worker of the pool may run."""


class Outcomes:
    """All requests of a run.

    Args:
        checker: reports violations.
        excuses_doubt: whether messages between the caller of the request and the server may have been lost or late.
        may_be_lost: whether the worker of that name has died, left, or been unreachable since then.
        rate: seconds that the clock of that process counts per second.
    """

    def __init__(
        self,
        checker: Checker,
        excuses_doubt: Callable[[SimulatedRequest], bool],
        may_be_lost: Callable[[str, float], bool],
        *,
        rate: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        self._checker = checker
        self._clock = checker.clock
        self._excuses_doubt = excuses_doubt
        self._may_be_lost = may_be_lost
        self._rate = rate
        self.requests: dict[str, SimulatedRequest] = {}
        self._open: dict[str, SimulatedRequest] = {}
        self._dead: set[str] = set()
        self._frozen: set[str] = set()
        self._thawed_at: dict[str, float] = {}

    def begin(self, request_id: str, node: str, *, idempotent: bool, timeout_s: float) -> SimulatedRequest:
        """A client makes a request."""
        now = self._clock()
        request = SimulatedRequest(
            request_id, node, idempotent, begun_at=now, deadline_at=now + timeout_s / self._rate(node)
        )
        if request_id in self.requests:
            raise ValueError(f"request {request_id} begins twice: the plan is wrong")
        self.requests[request_id] = self._open[request_id] = request
        return request

    def extend(self, request: SimulatedRequest, timeout_s: float) -> None:
        """Its time starts now, because it waited for a slot until now."""
        request.begun_at = self._clock()
        request.deadline_at = request.begun_at + timeout_s / self._rate(request.node)

    def reached(self, request_id: str, *, heard: bool) -> None:
        """A message that contains it has reached the server. `heard`: a worker that may run it is subscribed."""
        request = self.requests.get(request_id)
        if request is not None:
            request.sent_at = self._clock()
            request.heard |= heard

    def body_started(self, request_id: str, node: str) -> None:
        """Its task's code starts on a node."""
        request = self.requests[request_id]
        request.starts += 1
        if request.surely_not_started:
            self._fail(f"{request_id} starts on {node} after its caller was told that it never did: {request.outcome}")
        if request.starts > 1 and not request.idempotent:
            self._fail(f"{request_id} is not idempotent and starts again on {node}")

    def body_returned(self, request_id: str) -> None:
        self.requests[request_id].returns += 1

    def succeeded(self, request: SimulatedRequest, value: object, expected: object) -> None:
        """The caller got a result."""
        self._end(request, "ok")
        if value != expected:
            self._fail(f"{request.id} got {value!r} instead of {expected!r}")
        if not request.returns:
            self._fail(f"{request.id} got a result, but its task never returned one ({request.starts} starts)")

    def failed(self, request: SimulatedRequest, code: str, *, may_have_started: bool, lost: str | None = None) -> None:
        """The caller got an error. `lost`: the name of the worker that the error says is lost."""
        self._end(request, code)
        if lost is not None and not self._may_be_lost(lost, request.begun_at):
            self._checker.fail("loss", f"{request.id} was told that {lost} is lost, which lives: {code}")
        request.surely_not_started = not may_have_started
        if request.surely_not_started and request.starts:
            self._fail(
                f"{request.id} ran {request.starts} times, but its caller was told that it never started: {code}"
            )
        if may_have_started and request.sent_at is not None and not request.heard:
            # Nobody was subscribed, each time. The server says so at once.
            late_s = self._clock() - request.sent_at
            if late_s > TOLD_S and not self._excuses_doubt(request):
                self._checker.fail(
                    "doubt",
                    f"{request.id} was sent to nobody, last {late_s:.2f} s ago, and its caller is told that it "
                    f"may have started: {code}",
                )

    def too_late(self, request: SimulatedRequest) -> None:
        """The caller was told that its deadline has passed. Check that, up to the difference between clocks."""
        given_s, left_s = request.deadline_at - request.begun_at, request.deadline_at - self._clock()
        if left_s > given_s * CLOCKS_DIFFER + EARLY_SLACK_S:
            self._fail(f"{request.id} was told that its deadline has passed, {left_s:.3f} of {given_s:.3f} s before it")

    def cancelled(self, request: SimulatedRequest) -> None:
        """The caller cancelled it: anything may have run."""
        self._end(request, "cancelled")

    def client_died(self, node: str) -> None:
        """A client died: its open requests end."""
        self._dead.add(node)
        for request in list(self._open.values()):
            if request.node == node:
                request.outcome = "client died"
                del self._open[request.id]

    def client_froze(self, node: str) -> None:
        self._frozen.add(node)

    def client_thawed(self, node: str) -> None:
        self._frozen.discard(node)
        self._thawed_at[node] = self._clock()

    def look(self) -> None:
        """Find requests that hang."""
        now = self._clock()
        for request in self._open.values():
            if request.node in self._frozen:
                continue
            due_at = max(request.deadline_at, self._thawed_at.get(request.node, 0.0))
            if now > due_at + HANG_SLACK_S:
                self._checker.fail(
                    "hang", f"{request.id} of {request.node} has not ended {now - due_at:.2f} s too late"
                )

    def waiting(self) -> list[SimulatedRequest]:
        """Requests for slots that have not started, of clients that live."""
        return [each for each in self._open.values() if each.pool and not each.starts and each.node not in self._frozen]

    @property
    def open(self) -> int:
        return len(self._open)

    def counts(self) -> dict[str, int]:
        """Number of requests by outcome."""
        found: dict[str, int] = {}
        for request in self.requests.values():
            name = request.outcome or "open"
            found[name] = found.get(name, 0) + 1
        return dict(sorted(found.items()))

    def _end(self, request: SimulatedRequest, outcome: str) -> None:
        if request.outcome is not None:
            self._fail(f"{request.id} ended twice: {request.outcome}, then {outcome}")
        request.outcome = outcome
        self._open.pop(request.id, None)

    def _fail(self, text: str) -> None:
        self._checker.fail("outcome", text)


def lost_worker(error: GanglineError) -> str | None:
    """The name of the worker that an error reports as lost, together with what ran there."""
    worker = error.details.get("worker") if isinstance(error, WorkerLost) and error.may_have_started else None
    return worker.rpartition(".")[2] if isinstance(worker, str) else None


class Routing(Protocol):
    """A process with a router."""

    @property
    def node(self) -> str: ...

    def routed(self) -> Iterable[RoutedPool]:
        """Its pools."""
        ...


class LossWatch:
    """Law `loss`: no router takes a live worker for lost. Compares the workers that routers drop with those that serve.

    Args:
        lives: whether the worker process of that name and instance is live: it serves and had no fault lately; in
            particular, the ledger always had its heartbeat.
    """

    def __init__(self, checker: Checker, lives: Callable[[str, str], bool]) -> None:
        self._checker = checker
        self._lives = lives
        self._known: dict[str, dict[str, WorkerEntry]] = {}
        """Known workers by the process that knows them, and by name."""

    def look(self, processes: Iterable[Routing]) -> None:
        """Compare the known workers with those at the last call."""
        for process in processes:
            pools = list(process.routed())
            known = {each.id.worker: each for pool in pools for each in pool.core.view.workers.values()}
            for name, before in self._known.get(process.node, {}).items():
                if not before.known and self._lives(name, before.instance):
                    self._checker.fail("loss", f"{process.node} takes {before.id} for lost, which lives")
            self._known[process.node] = known
