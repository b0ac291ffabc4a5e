"""Planted bugs in what grants, stops and restarts gangs: laws L7 to L9, and L5 for owners. See mutants."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from gangline.bus.key_value import bucket as bucket_module
from gangline.coordinator.core import commit_pipeline as granting_module
from gangline.coordinator.core import owner_requests as owners_module
from gangline.coordinator.core import scheduler as forming_module
from gangline.coordinator.core.commit_pipeline import GrantPipeline
from gangline.coordinator.core.members import Teardown
from gangline.coordinator.core.owner_requests import OwnerRequests
from gangline.coordinator.core.scheduler import GangScheduler
from gangline.coordinator.core.standing_sets import StandingSets
from gangline.coordinator.election.leader_record import LeaderKey
from gangline.coordinator.ledger.storage import GangLedgerWriter
from gangline.coordinator.model import commits as commits_module
from gangline.coordinator.model import effects as do
from gangline.coordinator.model.commits import CommitQueue
from gangline.coordinator.model.events import HoldAnswered
from gangline.coordinator.model.gang import GangStep, ManagedGang
from gangline.coordinator.scheduling import placement as placement_module
from gangline.coordinator.server import effect_executor as effects_module
from gangline.dispatcher.gangs import owner_core as owner_module
from gangline.dispatcher.gangs.owner import GangOwner
from gangline.schemas.names import MARK, Names
from gangline.schemas.records.gangs import GangSetStatus, GangState, LeaderRecord
from gangline.testing.sim.plan.gang_draw import draw_gang_plan
from gangline.testing.sim.plan.gang_plan import BadStart, Breaking, GangKind
from gangline.testing.sim.plan.histories import draw_repairs_plan, draw_roll_plan
from gangline.testing.sim.plan.plan import OF_OWNERS, POOLS, Accident, Moment, Plan
from gangline.testing.sim.plan.variants import with_aims
from gangline.worker.gangs.member_tasks import MemberTasks
from gangline.worker.gangs.reconciler import form_request_of
from gangline.worker.slots import gang_core as seats_module

from .mutants import has, mutant

gang_mutant = functools.partial(mutant, draw=draw_gang_plan)


def _breaks(how: Breaking) -> Any:
    """Plans in which a rank of a run does so."""

    def needs(plan: Plan) -> bool:
        assert plan.gangs is not None
        return any(step.kind is GangKind.RUN and step.breaking is how for step in plan.gangs.steps)

    return needs


def _hardly_stops(plan: Plan) -> bool:
    """Plans in which a rank without a grace time ignores its first cancellation."""
    assert plan.gangs is not None
    runs = (step for step in plan.gangs.steps if step.kind is GangKind.RUN and step.breaking is Breaking.STUBBORN)
    return any(step.grace_s == 0 for step in runs)


def _rivals(plan: Plan) -> bool:
    """Plans with several candidates."""
    return plan.gangs is not None and len(plan.gangs.coordinators) > 2


def _cuts_owners_off(plan: Plan) -> bool:
    """Plans in which a client with gangs of its own cannot renew for a while."""
    assert plan.gangs is not None
    cut = [e for e in plan.events if e.accident is Accident.PARTITION and e.target in plan.clients and e.for_s > 1.5]
    held = [step for step in plan.gangs.steps if step.kind in (GangKind.HOLD, GangKind.RUN) and step.ttl_s < 2]
    return any(event.target == step.client and abs(event.at_s - step.at_s) < 1 for event in cut for step in held)


# -- L7: gang atomicity ---------------------------------------------------------------------------------------------


@gang_mutant("L7", around=(GrantPipeline, "writes"))
def members_are_told_while_the_commit_is_on_its_way(original: Any, self: GrantPipeline, gang: ManagedGang) -> Any:
    found = original(self, gang)
    if found is not None and gang.attempt is not None:
        request = form_request_of(found[-1].record, 0)
        self._state.out += [do.SendForm(worker=worker, request=request) for worker in gang.attempt.wanted]
    return found


@gang_mutant("L7", around=(GrantPipeline, "writes"))
def an_owner_is_answered_while_the_commit_is_on_its_way(original: Any, self: GrantPipeline, gang: ManagedGang) -> Any:
    found, attempt = original(self, gang), gang.attempt
    if found is not None and attempt is not None and gang.waiters:
        secret = attempt.tokens
        seats = [seat.model_copy(update={"token": secret.get(seat.token, seat.token)}) for seat in attempt.seats]
        formed = {"state": GangState.FORMED, "step": "formed", "seats": tuple(seats), "fence": 1}
        reply = gang.describe(to_owner=True).model_copy(update=formed)
        self._state.out += [do.AnswerRequest(reply_to=waiter, reply=reply) for waiter in gang.waiters]
        gang.waiters.clear()
    return found


@gang_mutant("L7", around=(GangScheduler, "answered"))
def a_batch_does_not_wait_for_the_holds_of_all_workers(original: Any, self: GangScheduler, event: HoldAnswered) -> None:
    gang = self._state.gangs.get(event.gang)
    attempt = gang.attempt if gang is not None else None
    if attempt is not None and event.accepted and event.attempt == attempt.number:
        for worker in attempt.wanted.keys() - attempt.answers.keys() - {event.worker}:
            facts = self._state.inventory.workers[worker].facts
            tokens = tuple(f"{MARK}{seat.rank}.{event.tokens[0]}" for seat in attempt.wanted[worker])
            known = {"epoch": facts.epoch, "reg_revision": facts.revision, "load": None}
            original(self, replace(event, worker=worker, tokens=tokens, secrets=(), **known))
    original(self, event)


@gang_mutant("L7", around=(GangLedgerWriter, "_commit"))
async def what_belongs_together_is_written_one_by_one(original: Any, self: GangLedgerWriter, effect: do.Commit) -> None:
    for write in effect.writes:
        await original(self, replace(effect, writes=(write,)))


@gang_mutant("L7", around=(granting_module, "grants"))
def the_last_member_is_forgotten(original: Any, *args: Any) -> Any:
    found = original(*args)
    return found[:-1] if len(found) > 1 else found


@gang_mutant("L7", needs=has(Accident.WORKER_CRASH), seeds=400, around=(granting_module, "grants"))
def a_commit_does_not_ask_whether_the_workers_still_hold(original: Any, *args: Any) -> Any:
    return [replace(write, condition_key=None, revision=None) for write in original(*args)]


def _ranges(plan: Plan) -> bool:
    """Plans with gangs that have a range of sizes."""
    assert plan.gangs is not None
    return any(step.bundles[0].max_count is not None for step in plan.gangs.steps)


@gang_mutant("L7", needs=_ranges, instead_of=(forming_module, "place_most"))
def a_gang_takes_more_than_the_largest_size_that_it_asked_for(spec: Any, *args: Any, **rest: Any) -> Any:
    return placement_module.place(spec.sized(spec.sizes[1] + 1), *args, **rest)


@gang_mutant("L7", needs=_ranges)
def the_record_of_a_gang_has_the_size_of_the_generation_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits_module, "spec_of", lambda gang, seats: gang.spec)


# -- L8: gang fate --------------------------------------------------------------------------------------------------


@gang_mutant("L8", needs=_breaks(Breaking.FAIL))
def members_are_not_stopped_with_their_gang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberTasks, "_runs_on", lambda self, seats: [])


@gang_mutant("L8", needs=_breaks(Breaking.STUBBORN))
def who_does_not_stop_when_told_is_let_be(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberTasks, "insist", lambda self, leaving: 0)


@gang_mutant("L8", needs=_hardly_stops, seeds=60)
def who_has_no_grace_time_is_cancelled_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seats_module, "FIRST_CANCEL_S", 0.0)


@gang_mutant("L8", around=(Teardown, "stopped"))
def a_restart_has_the_number_of_what_it_replaces(original: Any, self: Teardown, gang: ManagedGang) -> None:
    generation = gang.generation
    original(self, gang)
    gang.generation = generation


# -- L9: one coordinator --------------------------------------------------------------------------------------------


@gang_mutant("L9", instead_of=(CommitQueue, "fenced"))
def batches_rely_on_their_writer_to_know_that_it_leads(
    self: CommitQueue, key: str, record: Any, *, ttl_s: float | None = None
) -> do.LedgerWrite:
    return do.LedgerWrite(key=key, record=record, ttl_s=ttl_s)


@gang_mutant("L9", needs=_rivals, seeds=100, instead_of=(LeaderKey, "claim"))
async def whoever_claims_to_lead_leads(self: LeaderKey, record: LeaderRecord, revision: int) -> int:
    return await self._kv.put(Names.leader_key, record.model_dump_json().encode())


@gang_mutant("L9", around=(Teardown, "close"))
def members_are_stopped_before_the_ledger_says_so(
    original: Any, self: Teardown, gang: ManagedGang, *args: Any, **rest: Any
) -> None:
    original(self, gang, *args, **rest)
    for worker in gang.seats_by_worker:
        self._send(gang, worker)


# -- fences -----------------------------------------------------------------------------------------------------------


@gang_mutant("fence", needs=has(Accident.SERVER_RESTART))
def a_new_ledger_counts_from_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bucket_module, "first_revision", lambda wall, seen=0: 1)


# -- L5: owners -----------------------------------------------------------------------------------------------------


@gang_mutant("L5", needs=_cuts_owners_off, seeds=150)
def an_owner_trusts_its_gang_a_second_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner_module, "margin_s", lambda ttl_s: -1.0)


# -- what others read ------------------------------------------------------------------------------------------------


@gang_mutant("secret")
def the_ledger_has_the_tokens_of_seats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(effects_module, "public_id", lambda token: token)


@gang_mutant("secret")
def the_ledger_has_the_tokens_of_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners_module, "public_id", lambda token: token)
    patch.setattr(owners_module, "is_token_of", lambda token, id: token == id)


# -- rolls of standing sets -------------------------------------------------------------------------------------------


def _rolls_badly(plan: Plan) -> bool:
    """Plans in which members of one version of a set with several gangs do not start."""
    assert plan.gangs is not None
    sets = [json.loads(step.record) for step in plan.gangs.sets if step.record is not None]
    several = any(each["gangs"] > 1 and each["gang"]["pool"] == POOLS[-1] for each in sets)
    return several and plan.gangs.starts.bad is not BadStart.NOTHING


@gang_mutant("roll", needs=_rolls_badly, seeds=150)
def old_gangs_go_when_new_ones_have_formed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StandingSets, "_steady", lambda self, gang, of_set: gang.step is GangStep.FORMED)
    patch.setattr(StandingSets, "_last_that_serves", lambda self, gang, live: False)


@mutant("roll", draw=draw_roll_plan, around=(StandingSets, "remember"))
def a_new_leader_counts_a_failure_that_is_being_repaired_again(
    original: Any, self: StandingSets, name: str, status: GangSetStatus
) -> None:
    original(self, name, status.model_copy(update={"repairing": 0}))


# -- repairs ----------------------------------------------------------------------------------------------------------


@mutant("L8", draw=draw_repairs_plan)
def a_loss_that_is_being_replaced_counts_at_once_in_the_ledger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManagedGang, "recorded_failures", property(lambda self: self.failures))


@mutant("L5", draw=draw_repairs_plan, instead_of=(OwnerRequests, "_renewed"))
def an_owner_that_is_heard_again_while_a_commit_is_in_flight_is_given_up(
    self: OwnerRequests, gang: ManagedGang
) -> None:
    self._state.agenda.set(("owner", gang.id), self._state.now + gang.spec.ttl_s)


# -- owners that die or are cut off at a step of their request --------------------------------------------------------


def _draw_aimed(seed: int) -> Plan:
    return with_aims(draw_gang_plan(seed))


def _kills_owners(plan: Plan) -> bool:
    """Plans in which an owner is killed while its gang is being granted."""
    return any(
        aim.accident is Accident.CLIENT_CRASH and aim.moment in OF_OWNERS and aim.moment is not Moment.FORMED
        for aim in plan.aims
    )


@mutant("L12", needs=_kills_owners, seeds=60, draw=_draw_aimed, around=(GrantPipeline, "committed"))
def an_owner_is_missed_only_once_it_has_renewed(
    original: Any, self: GrantPipeline, gang: ManagedGang, revision: int
) -> None:
    original(self, gang, revision)
    self._state.agenda.cancel(("owner", gang.id))


def _late_runs(plan: Plan) -> bool:
    """Plans in which an owner is cut off while a member of its gang is replaced."""
    return any(aim.moment is Moment.TO_RUN for aim in plan.aims)


@mutant("outcome", needs=_late_runs, seeds=400, draw=_draw_aimed)
def runs_are_counted_anew_in_each_generation(patch: pytest.MonkeyPatch) -> None:
    counts: WeakKeyDictionary[GangOwner, Counter[int]] = WeakKeyDictionary()

    def next_run(self: GangOwner) -> int:
        assert self.formation is not None
        runs = counts.setdefault(self, Counter())
        runs[self.formation.generation] += 1
        return runs[self.formation.generation]

    patch.setattr(GangOwner, "next_run", next_run)
