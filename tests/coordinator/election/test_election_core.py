from __future__ import annotations

import pytest

from gangline.coordinator.election import election_core as el
from gangline.schemas.errors.base import InvalidSettings
from gangline.schemas.records.gangs import LeaderRecord


def read(now: float, *, term: int = 0, instance: str = "x", revision: int = 0, alive: int | None = None, draw=0.5):
    leader = LeaderRecord(term=term, instance=instance) if term else None
    return el.LeaderRead(now=now, draw=draw, leader=leader, revision=revision, alive_term=alive)


def kinds(effects: list[el.ElectionEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def candidate(name: str = "me") -> tuple[el.ElectionCore, float]:
    """Saw a dead leader of term 1 at revision 7; its drawn wait ends at the time given."""
    election = el.ElectionCore(name)
    assert kinds(election.start()) == ["ReadLeader"]
    [wake] = election.handle(read(10.0, term=1, revision=7))
    assert isinstance(wake, el.ElectionWake)
    return election, wake.at


def leader(name: str = "me") -> el.ElectionCore:
    election, at = candidate(name)
    election.handle(el.ElectionTick(now=at))
    [claim, _] = election.handle(read(at, term=1, revision=7))
    assert claim == el.Claim(record=LeaderRecord(term=2, instance=name), revision=7)
    effects = election.handle(el.ClaimWon(now=at, revision=9))
    assert effects[:2] == [el.RenewLeadership(term=2, first=True, ttl_s=2.0), el.BecomeLeader(term=2, fence=9)]
    return election


def test_an_expiry_that_the_watch_missed_is_found():
    election = el.ElectionCore("me")
    [wake] = election.handle(read(10.0, term=1, revision=7, alive=1))
    assert kinds(election.handle(el.ElectionTick(now=wake.at)))[0] == "ReadLeader"


def test_a_candidate_waits_its_draw_and_looks_again_before_it_claims():
    election, at = candidate()
    assert at == pytest.approx(10.15)
    assert kinds(election.handle(el.ElectionTick(now=at))) == ["ReadLeader"]
    assert kinds(election.handle(read(at, term=1, revision=7))) == ["Claim", "ElectionWake"]


def test_the_first_term_of_a_ledger_is_beyond_all_those_of_one_that_was_lost():
    """Who has just started does not know them; and workers remember attempts and gangs that were named by them."""
    election = el.ElectionCore("me")
    [wake] = election.handle(el.LeaderRead(now=0.0, wall=1_790_000_000.5, leader=None, revision=0, alive_term=None))
    [claim, _] = election.handle(
        el.LeaderRead(now=wake.at, wall=1_790_000_000.7, leader=None, revision=0, alive_term=None)
    )
    assert claim.record.term == 1_790_000_001
    election, _ = candidate()
    assert election.term == 1
    election.handle(el.LeaderRead(now=20.0, wall=1_790_000_009.0, leader=None, revision=0, alive_term=None))
    assert election.term == 1_790_000_009, "it may have slept through terms of others"


def test_terms_go_on_where_they_were_when_the_bucket_was_lost():
    election, at = candidate()
    claim, _ = election.handle(read(at, revision=0))
    assert claim == el.Claim(record=LeaderRecord(term=2, instance="me"), revision=0)


def test_a_claim_whose_answer_was_lost_is_looked_up():
    election, at = candidate()
    election.handle(read(at, term=1, revision=7))
    assert kinds(election.handle(el.ClaimUnknown(now=at + 5))) == ["ReadLeader"]
    effects = election.handle(read(at + 5, term=2, instance="me", revision=11))
    assert el.BecomeLeader(term=2, fence=11) in effects


def test_a_claim_whose_answer_was_lost_may_have_been_lost_itself():
    election, at = candidate()
    election.handle(read(at, term=1, revision=7))
    election.handle(el.ClaimUnknown(now=at + 5))
    assert kinds(election.handle(read(at + 5, term=2, instance="other", revision=11, alive=2))) == ["ElectionWake"]
    assert election.role is el.ElectionRole.FOLLOWER


def test_the_loser_of_a_claim_waits_longer_before_the_next():
    election, at = candidate()
    election.handle(read(at, term=1, revision=7))
    assert kinds(election.handle(el.ClaimLost(now=at))) == ["ReadLeader"]
    [wake] = election.handle(read(at, term=2, instance="other", revision=8))
    assert isinstance(wake, el.ElectionWake)


def test_trust_is_measured_from_the_start_of_the_renewal():
    election = leader()
    now = election.trusted_until - 0.1
    election.handle(el.Renewed(now=now, started_at=now - 1.0))
    assert election.trusted_until == pytest.approx(now - 1.0 + 2.0 - 0.5)


def test_a_leader_renews_every_half_second_and_not_twice_at_once():
    election = leader()
    election.handle(el.Renewed(now=10.2, started_at=10.15))
    assert kinds(election.handle(el.ElectionTick(now=10.65))) == ["RenewLeadership", "ElectionWake"]
    assert kinds(election.handle(el.ElectionTick(now=10.7))) == ["ElectionWake"]


def test_a_failed_renewal_is_tried_again_while_there_is_time():
    election = leader()
    [wake] = election.handle(el.RenewFailed(now=10.5))
    assert kinds(election.handle(el.ElectionTick(now=wake.at))) == ["RenewLeadership", "ElectionWake"]


def test_a_frozen_leader_yields_at_the_first_event_whatever_it_is():
    election = leader()
    assert kinds(election.handle(el.Renewed(now=60.0, started_at=10.2)))[0] == "YieldLeadership"


@pytest.mark.parametrize("event", [el.Deposed(now=10.3), read(10.3, term=3, instance="other", revision=20, alive=3)])
def test_a_leader_that_sees_another_yields(event):
    election = leader()
    assert kinds(election.handle(event))[0] == "YieldLeadership"


def test_one_that_resigns_makes_way_at_once_and_is_done():
    election = leader()
    assert kinds(election.handle(el.Resigned(now=10.3))) == ["YieldLeadership", "ResignLeadership"]
    assert election.handle(el.ElectionTick(now=99.0)) == []


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(InvalidSettings):
        el.ElectionSettings(renew_s=1.6)
