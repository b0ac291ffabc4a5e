"""When a dispatcher takes a queue, and over whom."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.ownership import ownership_core as oc
from gangline.dispatcher.durable.ownership.ownership_core import GiveUp, Holding, OwnershipCore, PingPeer, Take
from gangline.runtime.timers import CLOCKS_DIFFER


class Life:
    """One core and its time. Connected since long before the beginning."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = OwnershipCore("me", ping_s=0.5, frozen_after_s=2.5, spread_s=0.02)
        self.core.start(0.0)

    def listed(self, *holdings: Holding) -> None:
        self.core.listed(holdings, self.now)

    def tick(self, after_s: float = 0.25, draw: float = 0.0) -> list[oc.Effect]:
        self.now += after_s
        return self.core.tick(self.now, draw)

    def takes(self, after_s: float = 0.25) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.endpoint, each.over) for each in self.tick(after_s) if isinstance(each, Take)]


@pytest.fixture
def life() -> Life:
    made = Life()
    made.core.found(frozenset({"images"}))
    return made


def held_by(dispatcher: str, endpoint: str = "images") -> Holding:
    return Holding(consumer=f"q-{endpoint}-{dispatcher}", endpoint=endpoint, dispatcher=dispatcher)


def test_a_queue_that_nobody_has_is_taken_once(life: Life) -> None:
    assert life.takes() == [], "nobody knows yet who has it"
    life.listed()
    assert life.takes() == [("images", ())]
    assert life.takes() == [], "the answer is not there yet"
    life.core.took("images", "c1")
    assert life.core.mine == {"images": "c1"} and life.takes() == []


def test_two_pings_that_nobody_heard_in_a_row_mean_that_the_holder_is_dead(life: Life) -> None:
    life.listed(held_by("other"))
    assert life.tick() == [PingPeer(dispatcher="other")]
    life.core.silent("other", life.now)
    assert life.takes() == []
    life.core.alive("other", life.now)
    life.core.silent("other", life.now)
    assert life.takes() == [], "they were not in a row"
    life.core.silent("other", life.now)
    assert life.takes() == [("images", ("q-images-other",))]


def test_silence_for_long_means_that_the_holder_is_frozen(life: Life) -> None:
    life.listed(held_by("other"))
    life.tick()
    assert life.takes(2.0) == []
    assert life.takes(0.3) == [("images", ("q-images-other",))]


def test_pings_go_out_no_more_often_than_agreed(life: Life) -> None:
    life.listed(held_by("other"))
    pings = sum(isinstance(each, PingPeer) for _ in range(20) for each in life.tick(0.1))
    assert pings == 4


def test_nobody_is_dead_for_us_who_have_only_just_reconnected(life: Life) -> None:
    life.listed(held_by("other"))
    life.core.connection_changed(False, life.now)
    assert life.tick(10.0) == []
    life.core.connection_changed(True, life.now)
    assert life.core.must_list
    life.listed(held_by("other"))
    for _ in range(3):
        life.core.silent("other", life.now)
        assert life.takes() == []
    life.now += 1.0
    life.core.silent("other", life.now)
    life.core.silent("other", life.now)
    assert life.takes() != []


def test_our_own_standstill_is_not_held_against_others(life: Life) -> None:
    life.listed(held_by("other"))
    life.tick()
    life.now += 30.0
    life.core.stalled(30.0)
    assert life.takes() == []


def test_a_consumer_of_ours_that_we_know_nothing_of_is_taken_over(life: Life) -> None:
    life.listed(held_by("me"))
    assert life.takes() == [("images", ("q-images-me",))]


def test_a_consumer_that_is_none_of_ours_is_left_alone_and_named(life: Life) -> None:
    life.listed(Holding(consumer="theirs", endpoint="images", dispatcher=""))
    assert life.takes(60.0) == [] and life.core.foreign == {"theirs"}


def test_after_a_failure_the_consumers_are_listed_before_the_next_try(life: Life) -> None:
    life.listed()
    assert life.takes() == [("images", ())]
    life.core.not_taken("images")
    assert life.core.must_list and life.takes() == []
    life.listed()
    assert life.takes() == [("images", ())]


def test_a_queue_that_was_handed_over_is_taken_without_waiting_for_pings(life: Life) -> None:
    life.listed(held_by("other"))
    assert life.takes() == []
    life.core.handed_over("other", {"images"})
    assert life.tick(0.001)[-1] == Take(endpoint="images", over=(), died=False)


def test_a_holder_that_never_gave_a_queue_up_may_believe_that_it_has_it_though_its_consumer_is_gone(life: Life) -> None:
    life.listed(held_by("other"))
    life.tick()
    life.listed()
    life.core.handed_over("third", {"images"})
    assert life.tick()[-1] == Take(endpoint="images", over=(), died=True)
    life.core.took("images", "c1")
    life.core.gone("images")
    life.listed()
    assert life.tick()[-1] == Take(endpoint="images", over=(), died=False), "it was ours, and we know that it is gone"


def test_who_takes_a_queue_waits_for_longer_than_any_holder_trusts_a_proof_by_a_clock_that_is_slower() -> None:
    trust = oc.Trust()
    assert trust.holds(1e9) and not trust.begun, "nothing is done before the first"
    trust.proven(100.0)
    slowest_s = oc.TRUST_S * (1 - CLOCKS_DIFFER)
    assert not trust.fades(100.0 + oc.RENEW_AFTER_S / 2)
    assert trust.holds(100.0 + 1.1 * oc.RENEW_AFTER_S) and trust.fades(100.0 + 1.1 * oc.RENEW_AFTER_S)
    assert not trust.holds(100.0 + slowest_s - 0.05 + 0.001), "it ends in time though we run a fifth too slowly"
    trust.proven(101.0)
    assert trust.holds(101.0) and not trust.fades(101.0)


def test_who_has_more_queues_waits_longer_before_it_takes_another(life: Life) -> None:
    life.core.found(frozenset({"images", *(f"e{number}" for number in range(5))}))
    life.listed()
    for number in range(5):
        life.core.took(f"e{number}", "c")
    assert life.takes(0.001) == []
    assert life.core.next_at == pytest.approx(life.now + 5 * 0.02)
    assert life.takes(0.11) == [("images", ())]


def test_whoever_has_hundreds_takes_those_of_a_dead_holder_without_waiting_long(life: Life) -> None:
    names = [f"e{number}" for number in range(300)]
    life.core.found(frozenset(names))
    life.listed(*(held_by("other", name) for name in names[150:]))
    for name in names[:150]:
        life.core.took(name, f"c-{name}")
    life.tick(2.6)
    taken = {each.endpoint for _ in range(5) for each in life.tick(0.1) if isinstance(each, Take)}
    assert taken == set(names[150:])


def test_whoever_has_most_gives_some_up_while_another_has_fewer_by_two(life: Life) -> None:
    life.listed()
    life.core.found(frozenset("abcde"))
    for name in "abcde":
        life.core.took(name, "c")
    assert life.tick() == []
    life.core.told("poor", 1, life.now)
    assert life.tick() == [GiveUp(count=2)]
    assert life.tick() == [], "others must take them first"
    life.now += 2.0
    life.core.told("poor", 1, life.now)
    life.core.told("rich", 9, life.now)
    assert life.tick() == [], "that is for the richest to do"
    life.core.told("rich", None, life.now)
    life.core.told("poor", 4, life.now)
    assert life.tick() == [], "a difference of one cannot be mended"
