"""Draws by weight and by key, limits and who waits for them: without a loop, without a bus."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.dispatcher.traffic.route_core import RouteCore, draw_pool, home_pool
from gangline.schemas.records.routes import RouteRecord

from ...scale import repetitions

KEYS = [f"user-{number}" for number in range(5_000)]


@dataclass(eq=False)
class Asked:
    """A request."""

    key: str | None = None
    number: int = 0
    queue: object = None
    tenant: str = ""
    waits: object | None = None


def core_of(*, deserted: set[str] | None = None, seed: int = 1, **route: object) -> RouteCore:
    gone = deserted if deserted is not None else set()
    chance = random.Random(seed).random
    return RouteCore("e", RouteRecord.model_validate(route), draw=chance, deserted=gone.__contains__)


def bound(count: int, share: float) -> float:
    """Half the width of the 99 % interval of a binomial."""
    return 2.576 * math.sqrt(count * share * (1 - share)) + 1


# -- by weight ----------------------------------------------------------------------------------------------------


def test_a_pool_is_drawn_as_often_as_its_weight_says() -> None:
    chance = random.Random(7).random
    weights = {"a": 90.0, "b": 9.0, "c": 1.0, "never": 0.0}
    drawn = Counter(draw_pool(weights.items(), chance()) for _ in range(10_000))
    assert set(drawn) == {"a", "b", "c"}
    for pool, share in (("a", 0.9), ("b", 0.09), ("c", 0.01)):
        assert abs(drawn[pool] - 10_000 * share) < bound(10_000, share), drawn


def test_the_ends_of_the_draw_belong_to_pools_with_a_weight() -> None:
    weights = [("zero", 0.0), ("a", 0.1), ("b", 0.2), ("none", 0.0)]
    assert draw_pool(weights, 0.0) == "a"
    assert draw_pool(weights, math.nextafter(1.0, 0.0)) == "b"
    assert draw_pool([("zero", 0.0)], 0.5) is None


# -- by key -------------------------------------------------------------------------------------------------------


def homes(**weights: float) -> list[str | None]:
    return [home_pool(weights.items(), key) for key in KEYS]


def test_a_pool_whose_weight_is_hardly_above_0_is_a_home_if_there_is_no_other():
    assert home_pool([("a", 5e-324)], "key") == "a"
    assert home_pool([("a", 5e-324), ("b", 1.0)], "key") == "b"


def test_keys_are_spread_as_the_weights_say() -> None:
    counted = Counter(homes(a=70, b=20, c=10))
    for pool, share in (("a", 0.7), ("b", 0.2), ("c", 0.1)):
        assert abs(counted[pool] - len(KEYS) * share) < bound(len(KEYS), share), counted


def test_a_key_keeps_its_pool_when_all_weights_grow_alike_or_their_order_changes() -> None:
    assert homes(a=70, b=30) == homes(b=0.3, a=0.7)


def test_when_weights_change_only_the_share_moves_that_must() -> None:
    before, after = homes(a=90, b=10), homes(a=80, b=20)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {("a", "b")}  # nobody moves away from a pool that grew
    assert abs(len(moved) - 0.1 * len(KEYS)) < bound(len(KEYS), 0.1)


def test_when_a_pool_goes_only_its_own_keys_move() -> None:
    before, after = homes(a=50, b=30, c=20), homes(a=50, b=30)
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {"c"}


# -- pools without workers ----------------------------------------------------------------------------------------


def test_a_key_of_a_pool_without_workers_lives_elsewhere_and_comes_back() -> None:
    gone: set[str] = set()
    core = core_of(to={"a": 50, "b": 50}, deserted=gone)
    home = core.enter(Asked("user-7"))
    assert home is not None
    gone.add(home)
    assert core.enter(Asked("user-7")) == ({"a", "b"} - {home}).pop()
    gone.clear()
    assert core.enter(Asked("user-7")) == home


def test_when_no_pool_has_workers_the_draw_is_as_ever_so_that_somebody_waits_for_them() -> None:
    core = core_of(to={"a": 50, "b": 50}, deserted={"a", "b"})
    assert {core.enter(Asked()) for _ in range(50)} == {"a", "b"}
    assert not core.others("a")


# -- limits -------------------------------------------------------------------------------------------------------


def test_above_its_limit_other_pools_take_a_pools_requests() -> None:
    core = core_of(to={"a": 99, "b": 1}, limits={"a": 3})
    drawn = Counter(core.enter(Asked()) for _ in range(100))
    assert drawn["a"] == 3 and drawn["b"] == 97


def test_one_that_was_here_before_goes_ahead_of_those_that_came_later() -> None:
    core = core_of(to={"a": 1}, limits={"a": 1})
    old = Asked(number=1)
    core._numbers = itertools.count(2)
    assert core.enter(Asked()) == "a"
    young = Asked()
    assert core.enter(young) is None
    assert core.enter(old) is None
    assert core.leave("a") == [(old, "a")]


def test_keys_of_a_full_pool_wait_for_it_and_hold_up_nobody_else() -> None:
    core = core_of(to={"a": 1, "b": 1}, limits={"a": 1})
    of_a = next(key for key in KEYS if home_pool([("a", 1.0), ("b", 1.0)], key) == "a")
    of_b = next(key for key in KEYS if home_pool([("a", 1.0), ("b", 1.0)], key) == "b")
    assert core.enter(Asked(of_a)) == "a"
    waits = Asked(of_a)
    assert core.enter(waits) is None
    assert core.enter(Asked(of_b)) == "b"
    assert core.enter(Asked()) == "b"
    assert core.leave("a") == [(waits, "a")]


ROUTES = [
    {"to": {"a": 1, "b": 2}, "limits": {"a": 2, "b": 1}},
    {"to": {"a": 5}, "limits": {"a": 1}},
    {"to": {"b": 5, "c": 5}, "limits": {"c": 3}},
    {"to": {"a": 1, "b": 1, "c": 0}, "limits": {"a": 1, "b": 1}, "by_key": False},
    {},
]


class Machine(RuleBasedStateMachine):
    """Anything in any order: what entered leaves once, limits hold, whoever may go in does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.core = core_of(**ROUTES[0])
        self.where: dict[Asked, str] = {}
        self.waiting: dict[Asked, None] = {}

    def admitted(self, effects: list[tuple[Asked, str]]) -> None:
        numbers = [request.number for request, _ in effects if request.key is None]
        assert numbers == sorted(numbers)
        for request, pool in effects:
            del self.waiting[request]
            self.where[request] = pool

    @rule(key=st.one_of(st.none(), st.sampled_from(KEYS[:20])))
    def enter(self, key: str | None) -> None:
        request = Asked(key)
        pool = self.core.enter(request)
        if pool is None:
            self.waiting[request] = None
        else:
            limit = self.core.record.limits.get(pool)
            assert limit is None or self.core.inside[pool] <= limit
            self.where[request] = pool

    @rule(chance=st.floats(0, 0.999))
    def leave(self, chance: float) -> None:
        if self.where:
            request = list(self.where)[int(chance * len(self.where))]
            self.admitted(self.core.leave(self.where.pop(request)))  # type: ignore[arg-type]

    @rule(chance=st.floats(0, 0.999))
    def withdraw(self, chance: float) -> None:
        if self.waiting:
            request = list(self.waiting)[int(chance * len(self.waiting))]
            del self.waiting[request]
            assert self.core.withdraw(request)
            self.admitted(self.core.pump())  # type: ignore[arg-type]

    @rule(route=st.sampled_from(ROUTES))
    def change(self, route: dict[str, object]) -> None:
        self.admitted(self.core.changed(RouteRecord.model_validate(route)))  # type: ignore[arg-type]

    @invariant()
    def balanced(self) -> None:
        self.core.check()
        assert Counter(self.where.values()) == Counter(self.core.inside)
        assert len(self.core.line) == len(self.waiting)


TestMachine = pytest.mark.filterwarnings("ignore")(Machine.TestCase)
TestMachine.settings = settings(max_examples=repetitions(8, whole=30), stateful_step_count=60)
