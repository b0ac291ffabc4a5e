"""Laws L7 and L8 at the members: which code of each gang runs, in which process, since when.

The facts come from the ledger's replay, requests to workers, their journals, and the code of tasks and hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ....dispatcher.gangs.gang import Gang
from ....runtime.timers import CLOCKS_DIFFER
from ....schemas.messages.gangs import GangReply, TeardownRequest
from ....schemas.names import Names
from ....schemas.records.gangs import GangRecord, GangState
from ....worker.context.task_context import GangContext
from ...loop import node_context
from ..history.checker import Checker
from .ledger import GangLedger

STOP_SLACK_S = 0.5
"""How long a member may run beyond the grace time after its process was told to stop it ..."""
QUIET_SLACK_S = 1.0
"""... and after the ledger's record, without faults."""
QUIET_BEFORE_S = 5.0
"""There were no faults for this long before: there is a leader, and it has announced its writes."""
WAITS_SLACK_S = 1.5
"""How long a waiting gang may stay beyond its time to live when its owner has gone: a second, plus a check and a
message ..."""
COMMIT_IN_DOUBT_S = 5.0
"""... plus, if the answer to its commit was lost, the time after which storage is asked again ..."""
FOUND_OUT_S = 14.0
"""... measured from the last fault, if there was one: members read the ledger every ten seconds anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberBody:
    """Running code of a member: a task or a hook."""

    node: str
    gang: str
    generation: int
    rank: int
    token: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.what} of rank {self.rank} of gang {self.gang}, generation {self.generation}, on {self.node}"


@dataclass(slots=True)
class Told:
    """The ends that one worker process was told about."""

    stop_by: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """By gang: generation, and when its members must have stopped."""
    tokens: dict[str, float] = field(default_factory=dict[str, float])
    """The same for single seats that ended."""
    thawed_at: float = 0.0


@dataclass(slots=True)
class Meeting:
    """The ranks of one attempt of a run in one generation."""

    starts: Counter[int] = field(default_factory=Counter[int])
    arrived: set[int] = field(default_factory=set[int])


class GangWatch:
    """All gangs of a run."""

    def __init__(
        self,
        checker: Checker,
        names: Names,
        *,
        instance_of: Callable[[str], str | None],
        frozen: Callable[[str], bool],
        quiet_for: Callable[[], float],
        rate: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        """
        Args:
            instance_of: returns the instance of the coordinator with that bus name, if it is one.
            frozen: whether that process is frozen.
            quiet_for: seconds since the last fault; 0 during one.
            rate: seconds that the clock of that process counts per second.
        """
        self._fail = checker.fail
        self._trace = checker.trace
        self._clock = checker.clock
        self._frozen = frozen
        self._quiet_for = quiet_for
        self._rate = rate
        self.ledger = GangLedger(checker, names, instance_of=instance_of, on_torn=self._torn)
        self._told: dict[str, Told] = {}
        """By process."""
        self._bodies: dict[int, MemberBody] = {}
        self._meetings: dict[tuple[str, str, int, int], Meeting] = {}
        """By request, gang, generation and the owner's number of the attempt. (A surviving member may be a generation
        ahead of its owner, which then retries in that one.)"""
        self.owned: dict[str, tuple[str, Gang]] = {}
        """By gang: the process of its owner, and the owner's view of it."""
        self.counts: Counter[str] = Counter()
        self._died_at: dict[str, float] = {}
        """By process."""
        self._renewed: dict[str, float] = {}
        """By gang: until when it lives, as its owner was told."""
        self._torn_at: list[tuple[float, str]] = []
        """When which gang was torn down."""

    # -- workers --------------------------------------------------------------------------------------------------

    def told(self, node: str, end: TeardownRequest) -> None:
        """A teardown request has reached a process."""
        told, stop_by = (
            self._told.setdefault(node, Told()),
            self._clock() + end.grace_s / self._rate(node) + STOP_SLACK_S,
        )
        if end.only is None:
            known = told.stop_by.get(end.gang)
            if known is None or known[0] < end.generation:
                told.stop_by[end.gang] = (end.generation, stop_by)
        else:
            for token in end.only:
                told.tokens.setdefault(token, stop_by)

    def journal(self, node: str, record: dict[str, object]) -> None:
        """A line of a worker's journal about a gang, or about its drain."""
        if record["event"] == "drain":
            self.ledger.drains(node.partition(".")[0])
        gang, generation = record.get("gang"), record.get("generation")
        if not isinstance(gang, str) or not isinstance(generation, int):
            return
        if record["event"] == "form":
            self.counts["formed"] += 1
            if not self.ledger.stood(gang, generation):
                self._fail("L7", f"{node} forms generation {generation} of gang {gang}, which was never committed")
            ended = self._ended(node, gang)
            if generation <= ended:
                self._fail("L8", f"{node} forms generation {generation} of gang {gang} after the end of {ended}")
        elif record["event"] == "teardown":
            self.counts["torn down"] += 1

    def died(self, node: str) -> None:
        """A process died, and its code with it."""
        for number in [number for number, body in self._bodies.items() if body.node == node]:
            del self._bodies[number]
        self._told.pop(node, None)
        self._died_at[node] = self._clock()
        for gang in [gang for gang, (owner, _) in self.owned.items() if owner == node]:
            del self.owned[gang]

    def thawed(self, node: str) -> None:
        self._told.setdefault(node, Told()).thawed_at = self._clock()

    def _ended(self, node: str, gang: str) -> int:
        told = self._told.get(node)
        return 0 if told is None or gang not in told.stop_by else told.stop_by[gang][0]

    # -- the code of members --------------------------------------------------------------------------------------

    def starts(self, number: int, node: str, what: str, gang: GangContext, token: str | None) -> None:
        """A task or a hook of a member starts."""
        body = MemberBody(node=node, gang=gang.id, generation=gang.generation, rank=gang.rank, token=token, what=what)
        self._bodies[number] = body
        self.counts["members"] += 1
        if not self.ledger.stood(gang.id, gang.generation):
            self._fail("L7", f"{body} starts before the commit")
        if token is not None and token not in self.ledger.granted:
            self._fail("L7", f"{body} starts on token {token}, which was never granted")
        ended = self._ended(node, gang.id)
        if gang.generation <= ended:
            self._fail("L8", f"{body} starts, though it was told of the end of {ended}")
        told = self._told.get(node)
        if token is not None and told is not None and token in told.tokens:
            self._fail("L8", f"{body} starts, though its process was told that this seat ended")

    def stops(self, number: int) -> None:
        """It has ended."""
        self._bodies.pop(number, None)

    def runs(self, request: str, gang: GangContext) -> None:
        """A rank of a run starts."""
        meeting = self._meetings.setdefault((request, gang.id, gang.generation, gang.run), Meeting())
        meeting.starts[gang.rank] += 1
        if meeting.starts[gang.rank] > 1:
            self._fail("outcome", f"{request}: rank {gang.rank} starts again in generation {gang.generation}")

    def arrives(self, request: str, gang: GangContext) -> None:
        """A rank reaches the barrier."""
        self._meetings[request, gang.id, gang.generation, gang.run].arrived.add(gang.rank)

    def passes(self, request: str, gang: GangContext, values: list[object]) -> None:
        """A rank has passed the barrier and gathered values."""
        meeting = self._meetings[request, gang.id, gang.generation, gang.run]
        missing = set(range(gang.world_size)) - meeting.arrived
        if missing:
            self._fail("outcome", f"{request}: rank {gang.rank} passes the barrier before {sorted(missing)}")
        wanted = [meeting_value(request, rank, gang.generation) for rank in range(gang.world_size)]
        if values != wanted:
            self._fail("outcome", f"{request}: rank {gang.rank} gathered {values} instead of {wanted}")
        self.counts["meetings"] += 1

    def renewed(self, gang: str, ttl_s: float, *, since: float) -> None:
        """An owner was told that its gang lives, which it asked at that time."""
        self._renewed[gang] = since + ttl_s * (1 - CLOCKS_DIFFER)

    # -- the end --------------------------------------------------------------------------------------------------

    def _torn(self, record: GangRecord) -> None:
        """The end of a generation was written to the ledger."""
        self._torn_at.append((self._clock(), record.id))
        reason = record.reason.partition(":")[0]
        self.counts[f"torn: {reason}"] += 1
        self._trace.note("ledger", f"gang {record.id} torn down in generation {record.generation}: {record.reason}")
        left_s = self._renewed.get(record.id, 0.0) - self._clock()
        if reason == "owner_lost" and left_s > 0:
            self._fail("L5", f"gang {record.id} ended as its owner did not renew, {left_s:.3f} s before it may: it did")
        owner, gang = self.owned.get(record.id, ("", None))
        if reason != "owner_lost" or gang is None or self._frozen(owner):
            return
        if node_context(owner).run(lambda: gang.lost) is None:  # by its own clock
            self._fail("L5", f"gang {record.id} ended as its owner did not renew, and {owner} still trusts it")

    def torn_within(self, at: float, seconds: float, owner: str) -> bool:
        """Whether a gang of this process was torn down within so many seconds of a moment."""
        near = (gang for torn_at, gang in self._torn_at if abs(torn_at - at) <= seconds)
        return any(gang in self.owned and self.owned[gang][0] == owner for gang in near)

    def look(self) -> None:
        """Find members that should have stopped."""
        now = self._clock()
        for body in self._bodies.values():
            if self._frozen(body.node):
                continue
            told = self._told.get(body.node)
            thawed_at = 0.0 if told is None else told.thawed_at + STOP_SLACK_S
            generation, stop_by = (0, 0.0) if told is None else told.stop_by.get(body.gang, (0, 0.0))
            if body.generation <= generation and now > max(stop_by, thawed_at):
                self._fail("L8", f"{body} still runs, {now - stop_by:.2f} s after it had to stop")
            elif told is not None and body.token in told.tokens and now > max(told.tokens[body.token], thawed_at):
                self._fail("L8", f"{body} still runs, though its seat was ended")
            else:
                self._look_alone(body, now)

    def _look_alone(self, body: MemberBody, now: float) -> None:
        """Find those that should have stopped even if their process was told nothing."""
        history = self.ledger.history.get(body.gang)
        if history is None or body.generation > history.torn:
            return
        since, quiet_s = now - history.torn_at - history.grace_s, self._quiet_for()
        quiet = quiet_s > now - history.torn_at + QUIET_BEFORE_S
        if (quiet and since > QUIET_SLACK_S) or min(since, quiet_s) > FOUND_OUT_S:
            self._fail("L8", f"{body} still runs, {since:.1f} s after its grace time was over")

    def look_at_queue(self, gangs: Iterable[GangReply], *, since: float) -> None:
        """L4 for waiting requests: check the queue of a leader that had no fault since then."""
        now = self._clock()
        for gang in gangs:
            owner = gang.id.rpartition("-")[0].replace("_", ".")  # in the form in which the run makes tokens
            died_at = self._died_at.get(owner)
            if died_at is None or gang.gangset is not None or gang.state is not GangState.QUEUED or gang.restarts:
                continue
            waited_s = now - max(died_at, since)
            in_doubt_s = COMMIT_IN_DOUBT_S if gang.step == "committing" else 0.0
            if waited_s > gang.ttl_s + WAITS_SLACK_S + in_doubt_s:
                self._fail("L4", f"gang {gang.id} still waits, {waited_s:.1f} s after {owner} died that asked for it")

    def check_rest(self, sets: list[str]) -> None:
        """Check, when there are no more requests, that nothing is left."""
        for body in self._bodies.values():
            self._fail("L8", f"at rest {body} still runs")
        for record in self.ledger.at_rest(sets):
            self._fail("L12", f"at rest the ledger still has {record}")


def meeting_value(request: str, rank: int, generation: int) -> list[object]:
    """The value that a rank passes to the others."""
    return [request, rank, generation]
