"""What an owner knows of its gang, by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline import errors
from gangline.dispatcher.gangs.owner_core import (
    ANSWER_S,
    GenerationFormed,
    GenerationLost,
    OwnerCore,
    OwnershipEnded,
    RanksLost,
    RenewOwnership,
)
from gangline.runtime.timers import margin_s
from gangline.schemas.messages.gangs import GangEvent, GangEventKind, GangReply
from gangline.schemas.names import public_id
from gangline.schemas.records.gangs import GangState, Seat

from ...support.rows import in_rows

SEAT = Seat(rank=0, pool="train", worker="w1", token="t", epoch=1)


def reply(generation: int, state: GangState = GangState.FORMED, **facts: object) -> GangReply:
    seats = (SEAT,) if state in (GangState.FORMED, GangState.RETIRING, GangState.TEARING_DOWN) else ()
    fields = {"seats": seats, "size": 1, "ttl_s": 15.0, "step": str(state), **facts}
    return GangReply(id="g", state=state, generation=generation, **fields)  # type: ignore[arg-type]


def event(kind: GangEventKind, generation: int, **facts: object) -> GangEvent:
    return GangEvent(kind=kind, gang="g", generation=generation, size=1, **facts)  # type: ignore[arg-type]


def formed(ttl_s: float = 15.0) -> OwnerCore:
    core = OwnerCore("g", ttl_s)
    assert core.answered(reply(1), 10.0, 10.5) == [GenerationFormed(reply=reply(1))]
    return core


def test_a_generation_whose_tokens_are_not_known_yet_is_asked_for_again():
    core = OwnerCore("g", 15.0)
    sealed = SEAT.model_copy(update={"token": public_id("t")})
    assert core.answered(reply(1, seats=(sealed,)), 10.0, 10.5) == []
    assert core.formed is None and core.renew_at == 10.5 + ANSWER_S
    assert core.answered(reply(1), 10.6, 10.7) == [GenerationFormed(reply=reply(1))]
    assert core.answered(reply(1, seats=(sealed,)), 11.0, 11.1) == [] and core.formed == reply(1)


# -- trust --------------------------------------------------------------------------------------------------------


@in_rows("ttl_s", [1.0, 2.0, 15.0, 3600.0])
def test_trust_ends_before_the_coordinator_can_end_the_gang(ttl_s):
    core = formed(ttl_s)
    until = 10.0 + ttl_s - margin_s(ttl_s)
    assert 10.0 < until < 10.0 + ttl_s
    assert core.trouble(until - 0.001) is None
    assert isinstance(core.trouble(until), errors.LeaseExpired)


def test_trust_is_measured_from_before_the_question_and_never_shrinks():
    core = formed()
    core.answered(reply(1), 15.0, 24.0)
    later = core.trusted_until
    assert later == 15.0 + 15.0 - margin_s(15.0)
    core.answered(reply(1), 12.0, 24.5)  # an older question, answered later
    assert core.trusted_until == later


def test_it_renews_three_times_in_its_time_to_live_and_sooner_when_nobody_answered():
    core = formed()
    assert core.renew_at == 15.0
    assert core.tick(15.0) == [RenewOwnership()]
    assert core.renew_at == 15.0 + 15.0 / 12
    assert core.refused(errors.NoCoordinator(), 15.1) == []
    assert core.renew_at == 15.1 + 15.0 / 12
    core.answered(reply(1), 17.0, 17.1)
    assert core.renew_at == 22.0


def test_trust_comes_back_with_a_late_answer():
    core = formed()
    assert core.trouble(30.0) is not None
    core.answered(reply(1), 30.0, 30.1)
    assert core.trouble(30.2) is None


# -- generations --------------------------------------------------------------------------------------------------


def test_the_answer_to_the_acquire_may_be_a_little_behind_the_event_that_says_the_same():
    core = OwnerCore("g", 15.0)
    assert core.told(event(GangEventKind.FORMED, 1), 10.0) == []
    assert core.renew_at == 10.1, "then it is asked for: it may be lost"
    assert core.answered(reply(1), 9.9, 10.01) == [GenerationFormed(reply=reply(1))]
    assert core.renew_at == 14.9
    lost = OwnerCore("g", 15.0)
    lost.told(event(GangEventKind.FORMED, 1), 10.0)
    assert lost.tick(10.1) == [RenewOwnership()]


def test_a_teardown_for_good_names_the_rank_at_fault_or_says_that_it_ended():
    [went] = formed().told(event(GangEventKind.TORN_DOWN, 1, rank=2, reason="failed", ends=True), 11.0)
    assert isinstance(went, GenerationLost) and type(went.error) is errors.GangFailed and went.error.rank == 2
    [went] = formed().told(event(GangEventKind.TORN_DOWN, 1, reason="owner_lost", ends=True), 11.0)
    assert isinstance(went, GenerationLost) and isinstance(went.error, errors.GangEnded)


def test_the_end_takes_the_members_first_and_stays():
    core = formed()
    went, over = core.told(event(GangEventKind.ENDED, 1, reason="released", ends=True), 11.0)
    assert isinstance(went, GenerationLost) and isinstance(over, OwnershipEnded)
    assert core.answered(reply(2), 12.0, 12.0) == [] and core.tick(12.0) == []
    assert core.told(event(GangEventKind.FORMED, 2), 12.0) == []
    assert core.renew_at is None
    assert core.trouble(12.0) is over.error
    assert core.close(errors.ClosedError()) == []


def test_answers_say_what_lost_events_would_have_said():
    core = formed()
    [went] = core.answered(reply(1, GangState.TEARING_DOWN, rank=1, reason="worker_lost"), 11.0, 11.0)
    assert isinstance(went, GenerationLost) and isinstance(went.error, errors.GangRestarted) and went.error.rank == 1
    core = formed()
    [went] = core.answered(reply(2, GangState.QUEUED), 11.0, 11.0)
    assert isinstance(went, GenerationLost)
    core = formed()
    went, over = core.answered(reply(1, GangState.ENDED, rank=0, reason="failed"), 11.0, 11.0)
    assert isinstance(over, OwnershipEnded) and type(over.error) is errors.GangFailed


def test_lost_ranks_are_told_once_by_the_event_or_by_the_next_answer():
    core = formed()
    lost, asked = core.told(event(GangEventKind.MEMBER_LOST, 1, rank=2, lost=(2,), reason="worker_lost: w2"), 11.0)
    assert isinstance(lost, RanksLost) and lost.ranks == (2,) and isinstance(asked, RenewOwnership)
    assert isinstance(lost.error, errors.GangRestarted) and "rank 2 of gang g was lost" in lost.error.message
    assert "torn down" not in lost.error.message
    assert core.answered(reply(1, lost=(2,)), 11.0, 11.1) == []
    [more] = core.answered(reply(1, lost=(2, 0)), 12.0, 12.1)
    assert isinstance(more, RanksLost) and more.ranks == (0,) and list(core.lost) == [2, 0]
    assert core.told(event(GangEventKind.MEMBER_LOST, 2, rank=1), 12.2) == [RenewOwnership()], (
        "of a generation yet to come"
    )
    [came] = core.answered(reply(2), 13.0, 13.1)
    assert isinstance(came, GenerationFormed) and not core.lost


def test_what_became_of_a_generation_that_nobody_said_went_is_not_guessed():
    seats = tuple(Seat(rank=rank, pool="p", worker=f"w{rank}", token=f"t{rank}", epoch=1) for rank in range(2))
    for stays, said in ((seats[:1], "lost the member"), ((), "was torn down")):
        core = OwnerCore("g", 15.0)
        core.answered(reply(1, seats=seats), 10.0, 10.5)
        new = tuple(seat.model_copy(update={"token": f"{seat.token}-2"}) for seat in seats[len(stays) :])
        [came] = core.answered(reply(2, seats=(*stays, *new)), 11.0, 11.1)
        assert isinstance(came, GenerationFormed) and came.instead is not None
        assert came.instead.message == f"generation 1 of gang g {said}: generation 2 has formed since"


def test_what_is_told_of_the_past_changes_nothing():
    core = formed()
    core.answered(reply(3), 11.0, 11.0)
    for kind in (GangEventKind.TORN_DOWN, GangEventKind.FORMED):
        assert core.told(event(kind, 2), 12.0) == []
    assert core.told(event(GangEventKind.RESTARTING, 3), 12.0) == [], "it tells that generation 2 is over"
    assert core.answered(reply(2), 12.0, 12.0) == []
    [_] = core.told(event(GangEventKind.TORN_DOWN, 3), 13.0)
    assert core.answered(reply(3), 12.5, 13.5) == [], "an answer from before the teardown"
    assert core.told(event(GangEventKind.TORN_DOWN, 3), 14.0) == []


@in_rows("error", [errors.GangEnded("over"), errors.UnknownGang("who?"), errors.NotOwner("no")])
def test_some_refusals_are_final_but_not_before_the_first_members_came(error):
    core = OwnerCore("g", 15.0)
    assert core.refused(error, 10.0) == [] and core.over is None
    core = formed()
    went, over = core.refused(error, 11.0)
    assert isinstance(went, GenerationLost) and over == OwnershipEnded(error=error)


kinds = st.sampled_from(list(GangEventKind))
told = st.tuples(st.just("told"), kinds, st.integers(1, 4), st.booleans())
answered = st.tuples(st.just("answered"), st.sampled_from(list(GangState)), st.integers(1, 4), st.just(False))


@given(st.lists(told | answered, max_size=30))
def test_generations_come_and_go_in_order_whatever_is_told(history):
    core = OwnerCore("g", 15.0)
    now, living, newest, over = 0.0, 0, 0, False
    for kind, what, generation, ends in history:
        now += 1
        if kind == "told":
            effects = core.told(event(what, generation, ends=ends), now)
        else:
            effects = core.answered(reply(generation, what), now, now)
        for effect in effects:
            assert not over
            if isinstance(effect, GenerationFormed):
                assert effect.reply.generation > newest
                assert (effect.instead is not None) == bool(living)
                living = newest = effect.reply.generation
            elif isinstance(effect, GenerationLost):
                assert effect.generation == living
                living = 0
            elif isinstance(effect, OwnershipEnded):
                assert not living
                over = True
        assert (core.formed.generation if core.formed is not None else 0) == living
        assert (core.over is not None) == over
