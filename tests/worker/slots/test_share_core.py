"""Shares of a limit over several workers: the units of all never exceed it, and who waits gets some."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline.runtime.timers import IdLease
from gangline.schemas.records.workers import HeldShare, LimitRecord
from gangline.worker.slots import share_core
from gangline.worker.slots.share_core import AGAIN_S, PATIENCE_S, SETTLE_S, WANT_AFTER_S, ShareCore

from ...scale import repetitions
from ...support.rows import in_rows

TTL_S = 3.0
MARGIN_S = 0.5


@dataclass
class Ledger:
    """One record with compare-and-set, and heartbeats that expire."""

    record: LimitRecord | None = None
    revision: int = 0
    beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    writes: int = 0

    def put(self, record: LimitRecord, revision: int) -> bool:
        if revision != self.revision:
            return False
        self.record, self.revision = record, self.revision + 1
        self.writes += 1
        return True

    def lives(self, worker: str, instance: str, now: float) -> bool:
        known, until = self.beats.get(worker, ("", 0.0))
        return known == instance and now < until


class Node:
    """A worker that carries out at once what its core decides."""

    def __init__(
        self, ledger: Ledger, name: str, limit: int, *, at: float = 0.0, instance: str = "", interval_s: float = 0.0
    ) -> None:
        self.ledger, self.name, self.instance = ledger, name, instance or f"{name}-1"
        self.id_lease = IdLease()
        self.core = ShareCore(name, self.instance, self.id_lease, limit=limit, declared_at=at, interval_s=interval_s)
        self.running = 0
        self.pressed = False

    def beat(self, now: float) -> None:
        self.ledger.beats[self.name] = (self.instance, now + TTL_S)
        self.id_lease.extend(now, now + TTL_S - MARGIN_S)

    def read(self, now: float) -> None:
        self.core.seen(self.ledger.record, self.ledger.revision, now)

    def settle(self, now: float) -> None:
        """Read and write until there is nothing more to do."""
        for _ in range(10):
            self.read(now)
            others = self.core.others(now)
            if others:
                dead = [each for each in others if not self.ledger.lives(*each, now)]
                self.core.found_dead(self.core.revision, dead)
            planned = self.core.plan(self.running, now, pressed=self.pressed, fresh=f"{self.name} at {now}")
            if planned is None:
                return
            if self.ledger.put(planned, self.core.revision):
                self.core.written(self.ledger.revision, now)
            else:
                self.core.conflict()
        raise AssertionError("it never comes to rest")

    def start(self, now: float) -> bool:
        if self.running >= self.core.usable(now):
            self.core.refused(now)
            return False
        self.running += 1
        return True

    @property
    def units(self) -> int:
        record = self.ledger.record
        return 0 if record is None or self.name not in record.shares else record.shares[self.name].units


def nodes(*names: str, limit: int, interval_s: float = 0.0) -> list[Node]:
    """Of a limit, or with an interval of a rate."""
    ledger = Ledger()
    found = [Node(ledger, name, limit, interval_s=interval_s) for name in names]
    for each in found:
        each.beat(0.0)
        each.settle(0.0)
    return found


def beat_all(group: list[Node], now: float) -> None:
    for each in group:
        each.beat(now)


def settle_all(group: list[Node], now: float) -> None:
    for each in group:
        each.settle(now)


def test_the_first_worker_leaves_units_for_others_and_takes_them_when_it_needs_them() -> None:
    a, b = nodes("a", "b", limit=8)
    assert (a.units, b.units) == (4, 2)
    for _ in range(5):
        a.start(0.1)
    assert a.running == 4
    a.settle(0.1)
    assert (a.units, b.units) == (5, 2) and a.start(0.1)


def test_a_worker_alone_has_all_of_a_limit_of_one() -> None:
    (a,) = nodes("a", limit=1)
    assert a.start(0.1) and not a.start(0.1)
    writes = a.ledger.writes
    a.settle(0.5)
    assert a.ledger.writes == writes, "nobody else could give it more"


def test_who_waits_gets_an_idle_unit() -> None:
    a, b = nodes("a", "b", limit=1)
    assert (a.units, b.units) == (1, 0)
    assert not b.start(0.1)
    b.settle(0.1)
    assert not b.core.waiting, "its caller may find the other worker first"
    b.settle(0.1 + WANT_AFTER_S)
    assert b.core.waiting
    settle_all([a, b], 0.2)
    a.core.refused(0.2)
    settle_all([a, b], 0.2 + WANT_AFTER_S)
    assert (a.units, b.units) == (0, 1), "its caller has just been told to try again"
    assert b.start(0.24) and not a.start(0.24)


def test_a_unit_in_use_goes_to_who_waits_when_it_becomes_idle_even_if_more_callers_wait_here() -> None:
    a, b = nodes("a", "b", limit=1)
    assert a.start(0.1) and not b.start(0.1)
    a.pressed = True
    settle_all([b, a], 0.2)
    a.running = 0
    assert a.start(0.21), "it has not waited for long yet"
    a.settle(0.2 + PATIENCE_S)
    a.running = 0
    assert not a.start(0.4), "the unit is kept for the other worker"
    settle_all([a, b], 0.4)
    assert b.start(0.4)


def test_a_unit_is_not_used_from_before_it_is_given_up_is_written() -> None:
    a, b = nodes("a", "b", limit=1)
    b.start(0.1)
    b.settle(0.2)
    a.read(0.2)
    assert a.core.plan(0, 0.2, pressed=False, fresh="") is not None
    assert not a.start(0.2)
    a.core.unknown()
    a.read(0.2)
    assert not a.start(0.2), "the write may still be stored"
    a.settle(0.3)
    assert a.ledger.revision == a.core.revision


def test_an_unstored_gift_is_used_again_when_somebody_elses_write_shows_that_it_was_refused() -> None:
    a, b = nodes("a", "b", limit=1)
    b.start(0.1)
    b.settle(0.2)
    a.read(0.2)
    assert a.core.plan(0, 0.2, pressed=False, fresh="") is not None
    a.core.unknown()
    record = a.ledger.record
    assert record is not None and a.ledger.put(record.model_copy(update={"waiting": ()}), a.ledger.revision)
    a.read(0.3)
    assert a.start(0.3)


def test_nothing_starts_once_the_heartbeat_may_have_expired_until_the_share_is_written_again() -> None:
    (a,) = nodes("a", limit=2)
    assert a.start(0.1)
    assert not a.start(TTL_S - MARGIN_S)
    a.beat(5.0)
    assert not a.start(5.0), "another worker may be taking it at this moment"
    a.settle(5.0)
    a.core.refused(5.0)
    a.settle(5.0)
    assert a.start(5.0)


def test_a_share_outlives_a_worker_by_its_heartbeat_and_then_goes_to_others() -> None:
    a, b = nodes("a", "b", limit=1)
    a.start(0.1)
    for now in (1.0, 2.0):
        b.beat(now)
        b.start(now)
        b.settle(now)
        assert b.units == 0
    for now in (3.0, 4.0, 5.0):
        b.beat(now)
        b.start(now)
        b.settle(now)
    assert (a.units, b.units) == (0, 1)
    a.beat(6.0)
    a.settle(6.0)
    assert not a.start(6.0) and a.units == 1, "what still runs counts"


def test_a_worker_whose_own_heartbeat_had_lapsed_lets_the_others_come_back() -> None:
    a, b = nodes("a", "b", limit=1)
    now = 20.0
    b.beat(now)
    b.start(now)
    b.settle(now)
    assert b.units == 0
    a.beat(now + 1.0)
    a.settle(now + 1.0)
    assert a.start(now + 1.0)


def test_a_restarted_worker_does_not_inherit_the_share_of_its_predecessor() -> None:
    (a,) = nodes("a", limit=2)
    later = Node(a.ledger, "a", 2, instance="a-2")
    later.beat(9.0)
    later.settle(9.0)
    assert a.ledger.record is not None and a.ledger.record.shares["a"] == HeldShare(instance="a-2", units=1)
    a.read(9.0)
    assert a.core.usable(9.0) == 0


def test_after_the_ledger_was_lost_what_runs_is_written_first_and_nothing_is_taken_for_a_while() -> None:
    a, b = nodes("a", "b", limit=2)
    assert a.start(0.1) and b.start(0.1)
    a.ledger.record, a.ledger.revision = None, 0
    for each in (a, b):
        each.id_lease.lapse()
        each.beat(1.0)
    a.settle(1.0)
    a.start(1.0)
    a.settle(1.0)
    assert (a.units, b.units) == (1, 0), "the other one has not come back"
    b.settle(2.0)
    beat_all([a, b], 3.0)
    assert (a.units, b.units) == (1, 1)
    b.running = 0
    for now in (4.0, 4.5, 5.0):
        beat_all([a, b], now)
        a.start(now)
        settle_all([a, b], now)
    assert a.units == 2, "it is given what is idle"


def test_the_limit_of_the_worker_that_started_last_counts() -> None:
    (a,) = nodes("a", limit=4)
    for _ in range(2):
        a.start(0.1)
    new = Node(a.ledger, "b", 1, at=5.0)
    new.beat(0.2)
    new.settle(0.2)
    a.settle(0.2)
    assert a.core.limit == 1 and not a.start(0.2) and a.units == 2
    a.running = 0
    a.settle(0.3)
    assert a.units == 1
    old = Node(a.ledger, "c", 9, at=-1.0)
    old.beat(0.4)
    old.settle(0.4)
    assert old.core.limit == 1


def test_a_draining_worker_gives_up_what_is_idle_and_leaves_the_record() -> None:
    a, b = nodes("a", "b", limit=4)
    a.start(0.1)
    a.core.leaving = True
    a.settle(0.1)
    assert a.units == 1
    a.running = 0
    a.settle(0.2)
    planned = a.core.leave()
    assert planned is not None and "a" not in planned.shares


def test_a_worker_at_rest_has_nothing_to_do_at_any_time() -> None:
    a, b = nodes("a", "b", limit=4)
    a.start(0.1)
    assert a.core.next_at(0.2) is None and b.core.next_at(0.2) is None


def test_a_write_that_does_not_concern_a_worker_makes_it_read_nothing() -> None:
    a, b, c = nodes("a", "b", "c", limit=8)
    c.read(0.1)
    b.start(0.1)
    b.start(0.1)
    b.start(0.1)
    b.settle(0.1)
    assert b.ledger.record is not None
    assert not c.core.concerns(b.ledger.record, 0, 0.1) and a.core.concerns(
        b.ledger.record.model_copy(update={"waiting": ("b",)}), 0, 0.1
    )


# -- at random ----------------------------------------------------------------------------------------------------


class Crowd:
    """Workers whose reads and writes take time, are lost, or whose outcome stays unknown; which are frozen, cut off and
    killed; whose ledger is sometimes lost. What runs on a worker counts until it ends, or until the worker's heartbeat
    has expired."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"shares {seed}")
        self.limit = rng.choice((1, 1, 2, 3, 7))
        self.interval_s = 0.0
        self.ledger = Ledger()
        self.now = 0.0
        self._numbers = itertools.count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.nodes = [Node(self.ledger, f"w{number}", self.limit) for number in range(rng.randint(2, 5))]
        self.busy: dict[str, bool] = {}
        self.refused_at: dict[str, float] = {}
        self.cut_until: dict[str, float] = {}
        self.ends: dict[str, list[float]] = {each.name: [] for each in self.nodes}
        self.begun: dict[str, list[tuple[float, float]]] = {each.name: [] for each in self.nodes}
        """When they begin and end."""
        self.lapsed_at: dict[str, float] = {}
        """When the heartbeat last expired."""
        self.lossy = rng.choice((0.0, 0.0, 0.1))
        self.starts = 0
        for node in self.nodes:
            self.later(rng.uniform(0, 0.3), lambda node=node: self.beat(node))  # type: ignore[misc]
            self.later(0.01, lambda node=node: self.work(node))  # type: ignore[misc]

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + delay, next(self._numbers), action))

    def is_cut(self, node: Node) -> bool:
        return node not in self.nodes or self.now < self.cut_until.get(node.name, -1.0)

    def beat(self, node: Node) -> None:
        if not self.is_cut(node):
            sent = self.now
            self.lapse(node)
            self.ledger.beats[node.name] = (node.instance, sent + TTL_S)
            self.later(0.01, lambda: node.id_lease.extend(self.now, sent + TTL_S - MARGIN_S))
        self.later(1.0, lambda: self.beat(node))

    def work(self, node: Node) -> None:
        """One step of the worker's loop: read, then write; each takes a moment."""
        rng = self.rng
        self.later(rng.choice((0.005, 0.02, 0.1)), lambda: self.work(node))
        if self.busy.get(node.name) or self.is_cut(node) or not node.id_lease.holds(self.now):
            return
        self.busy[node.name] = True
        record, revision = self.ledger.record, self.ledger.revision

        def decide() -> None:
            self.gained(node, node.core.seen(record, revision, self.now))
            others = node.core.others(self.now)
            dead = [each for each in others if not self.ledger.lives(*each, self.now)]
            if others:
                node.core.found_dead(node.core.revision, dead)
            planned = node.core.plan(
                len(self.ends[node.name]), self.now, pressed=rng.random() < 0.5, fresh=f"{node.name} {self.now}"
            )
            if planned is None:
                self.busy[node.name] = False
                return
            self.write(node, planned, node.core.revision)

        self.later(rng.uniform(0.0, 0.01), decide)

    def write(self, node: Node, planned: LimitRecord, revision: int) -> None:
        lost = self.rng.random() < self.lossy or self.is_cut(node)
        stored: list[bool] = []

        def arrive() -> None:
            stored.append(self.ledger.put(planned, revision))

        def answer() -> None:
            self.busy[node.name] = False
            if lost or not stored:
                node.core.unknown()
            elif stored[0]:
                self.gained(node, node.core.written(revision + 1, self.now))
            else:
                node.core.conflict()

        if not lost or self.rng.random() < 0.5:
            self.later(self.rng.choice((0.001, 0.01, 0.6)) if lost else self.rng.uniform(0, 0.01), arrive)
        self.later(0.5 if lost else 0.011, answer)

    def counts(self, node: Node) -> int:
        """What runs there, if its heartbeat cannot have expired since it began."""
        self.lapse(node)
        lapsed = self.lapsed_at.get(node.name, -1.0)
        begun = self.begun[node.name] = [each for each in self.begun[node.name] if self.now < each[1]]
        return sum(began >= lapsed for began, _ in begun)

    def lapse(self, node: Node) -> None:
        """Others may take its share once its heartbeat has expired."""
        _, until = self.ledger.beats.get(node.name, ("", self.now + 1.0))
        if self.now >= until:
            self.lapsed_at[node.name] = until

    def play(self, seconds: float, *, accidents: bool) -> None:
        until = self.now + seconds
        rng = self.rng
        step = 0.0
        while self.now < until:
            when = self.queue[0][0] if self.queue else until
            if step <= when:
                self.now = max(self.now, step)
                self.call(accidents)
                step = self.now + rng.uniform(0.001, 0.05)
                continue
            self.now, _, action = heapq.heappop(self.queue)
            action()

    def gained(self, node: Node, units: int) -> None:
        """Callers that were refused try again."""
        self.ends[node.name] += [self.now + self.interval_s] * node.core.spent()
        for _ in range(units if self.now < self.refused_at.get(node.name, -1.0) + 1.0 else 0):
            self.later(0.002, lambda: self.start(node))

    def call(self, accidents: bool) -> None:
        node = self.rng.choice(self.nodes)
        if accidents and self.rng.random() < 0.01:
            self.cut_until[node.name] = self.now + self.rng.choice((0.3, 2.0, 5.0))
        self.start(node)

    def start(self, node: Node) -> None:
        rng = self.rng
        for name, ends in self.ends.items():
            self.ends[name] = [at for at in ends if at > self.now]
        if len(self.ends[node.name]) < node.core.usable(self.now):
            until = self.now + rng.choice((0.01, 0.2, 2.0))
            self.ends[node.name].append(until)
            self.begun[node.name].append((self.now, until))
            self.starts += 1
            running = sum(map(self.counts, self.nodes))
            assert running <= self.limit, f"{running} run at {self.now:.3f} s, the limit is {self.limit}"
        else:
            node.core.refused(self.now)
            self.refused_at[node.name] = self.now


def test_no_more_run_than_the_limit_whatever_is_lost_late_or_cut_off() -> None:
    crowds = [Crowd(seed) for seed in range(repetitions(10, whole=60))]
    for crowd in crowds:
        crowd.play(20.0, accidents=True)
    assert sum(crowd.starts for crowd in crowds) > 200


def test_every_worker_gets_its_turn_once_faults_are_over() -> None:
    for seed in range(repetitions(3, whole=10)):
        crowd = Crowd(seed)
        crowd.lossy = 0.0
        crowd.play(5.0, accidents=False)
        served: set[str] = set()
        for _ in range(300):
            crowd.play(0.1, accidents=False)
            served |= {name for name, ends in crowd.ends.items() if ends}
        assert served == {each.name for each in crowd.nodes}, f"seed {seed}: only {served} with {crowd.limit}"


class RateCrowd(Crowd):
    """The same with a rate. Workers die, too, and others start under their names when the heartbeat has expired."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.interval_s = self.rng.choice((0.05, 0.5, 6.0))
        self.times: list[float] = []
        self.nodes = [Node(self.ledger, each.name, self.limit, interval_s=self.interval_s) for each in self.nodes]
        for each in self.nodes:
            self.begin(each, self.rng.uniform(0, 0.3))

    def begin(self, node: Node, after_s: float) -> None:
        self.later(after_s, lambda: self.beat(node))
        self.later(after_s + 0.01, lambda: self.work(node))

    def call(self, accidents: bool) -> None:
        if accidents and self.rng.random() < 0.005:
            self.replace(self.rng.randrange(len(self.nodes)))
        super().call(accidents)

    def replace(self, place: int) -> None:
        gone = self.nodes[place]
        self.nodes[place] = new = Node(
            self.ledger, gone.name, self.limit, instance=f"{gone.name} at {self.now}", interval_s=self.interval_s
        )
        self.ends[gone.name], self.busy[gone.name] = [], False
        self.begin(new, TTL_S)

    def start(self, node: Node) -> None:
        ends = self.ends[node.name] = [at for at in self.ends[node.name] if at > self.now]
        if len(ends) >= node.core.usable(self.now):
            node.core.refused(self.now)
            self.refused_at[node.name] = self.now
            return
        ends.append(self.now + self.interval_s)
        self.times.append(self.now)
        self.starts += 1
        rate = self.limit / self.interval_s
        for number, time in enumerate(self.times):
            count, most = len(self.times) - number, self.limit + rate * (self.now - time) + 1e-6
            assert count <= most, f"{count} starts since {time:.3f} s at {self.now:.3f} s, the limit is {most:.3f}"


def test_no_more_start_than_the_rate_allows_whatever_is_lost_late_cut_off_or_dies() -> None:
    crowds = [RateCrowd(seed) for seed in range(repetitions(10, whole=60))]
    for crowd in crowds:
        crowd.play(20.0, accidents=True)
    assert sum(crowd.starts for crowd in crowds) > 100


def _begin_eagerly(self: ShareCore, *args: object) -> LimitRecord:
    allowed = self._allowed
    planned = _BEGIN(self, *args)  # type: ignore[arg-type]
    self._allowed = allowed
    return planned


def _plan_as_if_idle(self: ShareCore, in_use: int, now: float, **given: Any) -> LimitRecord | None:
    return _PLAN(self, 0, now, **given)


_BEGIN, _PLAN = ShareCore._begin, ShareCore.plan


@pytest.mark.parametrize(
    ("crowd", "name", "broken"),
    [
        pytest.param(Crowd, "_begin", _begin_eagerly, id="a unit is used while it is given up"),
        pytest.param(Crowd, "usable", lambda self, now: self._allowed, id="a share is used after the heartbeat"),
        pytest.param(RateCrowd, "spent", lambda self: 0, id="units that a worker used before it died are free"),
        pytest.param(RateCrowd, "plan", _plan_as_if_idle, id="units of a rate are given up in use"),
    ],
)
def test_the_crowd_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, crowd: type[Crowd], name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(ShareCore, name, broken)
    with pytest.raises(AssertionError, match="the limit is"):
        for seed in range(60):
            crowd(seed).play(20.0, accidents=True)


def test_a_worker_that_leaves_says_which_units_it_has_just_used() -> None:
    a, b = nodes("a", "b", limit=4, interval_s=10.0)
    assert (a.units, b.units) == (2, 1)
    a.settle(0.1)
    planned = a.core.leave(1)
    assert planned is not None and planned.spent == 1 and a.ledger.put(planned, a.core.revision)
    for _ in range(3):
        while b.start(0.2):
            pass
        b.settle(0.2 + WANT_AFTER_S)
        b.running += b.core.spent()
    assert (b.units, b.running) == (4, 4), "three started, and one counts as in use"
    assert b.ledger.record is not None and b.ledger.record.spent == 0


def test_a_worker_that_starts_anew_takes_what_it_used_before_for_used() -> None:
    (a,) = nodes("a", limit=2, interval_s=10.0)
    a.settle(0.1)
    new = Node(a.ledger, "a", 2, instance="a-2", interval_s=10.0)
    new.beat(9.0)
    new.settle(9.0)
    assert new.units == 1 and new.core.spent() == 0, "one was never in use"
    new.running = 1
    new.start(9.1)
    new.settle(9.1)
    assert new.units == 2 and new.core.spent() == 1


@in_rows("refuse", [ShareCore.unknown, ShareCore.conflict])
def test_units_that_were_taken_without_an_answer_count_as_in_use(refuse: Callable[[ShareCore], None]) -> None:
    a, b = nodes("a", "b", limit=2, interval_s=10.0)
    assert (a.units, b.units) == (1, 1)
    a.settle(0.1)
    gone = a.core.leave(1)
    assert gone is not None and a.ledger.put(gone, a.core.revision)
    b.read(0.2)
    b.running = 1
    b.start(0.2)
    taken = b.core.plan(1, 0.3, pressed=True, fresh="")
    assert taken is not None and b.ledger.put(taken, b.core.revision)
    assert b.ledger.put(taken.model_copy(update={"waiting": ("c",)}), b.ledger.revision), "another one writes"
    refuse(b.core)
    b.read(0.4)
    assert b.units == 2 and b.core.spent() == 1


def test_the_rate_of_the_worker_that_started_last_counts() -> None:
    (a,) = nodes("a", limit=1, interval_s=0.5)
    later = Node(a.ledger, "b", 3, at=5.0, interval_s=0.1)
    later.beat(0.1)
    later.settle(0.1)
    a.settle(0.2)
    assert a.core.interval_s == 0.1 and a.core.limit == 3
    assert a.ledger.record is not None and a.ledger.record.rate_per_s == pytest.approx(30.0)


def test_who_waits_for_a_unit_in_use_gets_it_when_it_is_idle() -> None:
    a, b = nodes("a", "b", limit=1, interval_s=0.5)
    assert a.start(0.1) and not b.start(0.15)
    settle_all([b, a], 0.2)
    assert a.core.next_at(0.31, 0.6) == 0.6, "nobody tells it that the unit is idle then"
    a.running = 0
    settle_all([a, b], 0.6)
    assert b.start(0.6) and not a.start(0.6)


def test_a_unit_is_kept_for_a_caller_that_waits_for_something_else() -> None:
    a, b = nodes("a", "b", limit=1)
    a.core.needed(0.1)
    assert not b.start(0.1)
    for now in (0.2, 0.4):
        settle_all([b, a], now)
        assert a.units == 1
    a.settle(0.1 + share_core.NEEDED_S)
    assert a.units == 0


def test_between_two_executions_a_worker_whose_callers_wait_goes_on_waiting() -> None:
    a, b = nodes("a", "b", limit=2)
    assert (a.units, b.units) == (1, 1) and a.start(0.1) and b.start(0.1) and not b.start(0.1)
    b.pressed = True
    b.settle(0.1 + WANT_AFTER_S)
    writes = b.ledger.writes
    b.running = 0
    b.settle(0.15)
    assert b.core.waiting and b.ledger.writes == writes, "it would ask again at once"
    b.pressed = False
    b.settle(0.16)
    assert not b.core.waiting


def test_who_gives_a_unit_that_its_callers_did_not_come_back_for_wants_none() -> None:
    a, b = nodes("a", "b", limit=1)
    a.running = 1
    b.start(0.1)
    b.settle(0.1 + WANT_AFTER_S)
    a.start(0.12)
    a.running = 0
    a.settle(0.13)
    assert b.units == 1
    a.start(0.14)
    for now in (0.17, 0.3, 0.4, 0.6):
        settle_all([a, b], now)
    assert a.units == 1 and not b.core.waiting, "an idle unit would move to and fro"


def test_waits_are_ordered() -> None:
    assert share_core.NEEDED_S > PATIENCE_S
    assert WANT_AFTER_S < PATIENCE_S < AGAIN_S < share_core.RECLAIM_AFTER_S
    assert TTL_S < share_core.RECLAIM_AFTER_S and TTL_S < SETTLE_S


def test_a_unit_is_kept_for_a_caller_that_tries_several_tasks_at_once_and_comes_back_later() -> None:
    a, b = nodes("a", "b", limit=1)
    for now in (0.1, 0.101, 0.6, 0.601):
        assert not b.start(now)
    for each, now in ((b, 0.63), (a, 0.64), (b, 0.65)):
        each.settle(now)
    assert b.units == 1 and not a.start(0.8)
    for now in (0.83, 1.0):
        settle_all([a, b], now)
    assert a.core.waiting and b.start(1.1), "two that come in turn would take it from each other for ever"
    for now in (1.3, 1.5):
        assert not b.start(now) and not b.start(now + 0.001)
    b.running = 0
    settle_all([b, a], 1.51)
    assert a.start(1.52), "who waits gets the next one that becomes idle"


@in_rows("tasks", [1, 2, 9])
def test_two_that_come_in_turn_do_not_take_the_unit_from_each_other_for_ever(tasks: int) -> None:
    a, b = nodes("a", "b", limit=1)
    starts = {"a": 0, "b": 0}
    for turn in range(40):
        now = 0.1 + 0.25 * turn
        each = (b, a)[turn % 2]
        beat_all([a, b], now)
        for task in range(tasks):
            if each.start(now + 0.001 * task):
                starts[each.name] += 1
                each.running = 0
        for after_s in (0.03, 0.04, 0.15, 0.2):
            settle_all([b, a], now + after_s)
    assert min(starts.values()) >= 3, starts


def test_a_unit_that_could_not_be_given_up_because_another_worker_wrote_is_given_up_then() -> None:
    a, b, c = nodes("a", "b", "c", limit=1)
    assert a.start(0.1) and not b.start(0.1)
    b.settle(0.13)
    a.pressed = True
    a.settle(0.14)
    assert b.core.waiting and not c.start(0.3) and not a.start(0.3)
    c.settle(0.34)  # `a` has not read that it waits, too
    a.running = 0
    planned = a.core.plan(0, 0.35, pressed=True, fresh="")
    assert planned is not None and planned.shares["b"].units == 1
    assert not a.ledger.put(planned, a.core.revision)
    a.core.conflict()
    a.read(0.351)
    assert not a.start(0.351), "not even between reading the record and deciding"
    a.settle(0.352)
    assert not a.start(0.352)
    b.settle(0.353)
    assert b.start(0.354)
