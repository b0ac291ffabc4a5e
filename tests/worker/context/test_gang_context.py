"""What a member knows of its gang, without a worker around it."""

from __future__ import annotations

import pickle

import pytest

from gangline.schemas.messages.gangs import FormRequest
from gangline.schemas.records.gangs import Rendezvous, Seat
from gangline.worker.context.task_context import GangContext, TaskContext, facts_of


def form(**more: object) -> FormRequest:
    seats = [
        {"rank": 1, "pool": "train", "worker": "b", "token": "t1", "epoch": 1, "zone": "z2", "labels": {"gpu": "h100"}},
        {"rank": 0, "pool": "train", "worker": "a", "token": "t0", "epoch": 1, "slots": 2, "address": "10.0.0.1:9"},
        {"rank": 0, "part": 1, "pool": "licences", "worker": "l", "token": "t2", "epoch": 1},
    ]
    return FormRequest(
        gang="g",
        generation=3,
        fence=42,
        size=2,
        seats=tuple(Seat.model_validate(seat) for seat in seats),
        rendezvous=Rendezvous(host="10.0.0.1", port=29500),
        ttl_s=10,
        grace_s=1,
        owner="ann",
    )


def test_members_stand_by_rank_and_what_is_held_beside_them_is_no_member():
    gang = GangContext(facts_of(form(), 1, 5))
    assert (gang.id, gang.generation, gang.rank, gang.world_size, gang.fence, gang.run) == ("g", 3, 1, 2, 42, 5)
    members = [(member.rank, member.worker, member.slots) for member in gang.members]
    assert members == [(0, "train.a", 2), (1, "train.b", 1)]
    assert gang.members[0].address == "10.0.0.1:9"
    assert gang.me.labels == {"gpu": "h100"} and gang.me.zone == "z2"
    assert gang.rendezvous is not None and gang.rendezvous.port == 29500
    assert gang.rendezvous == ("10.0.0.1", 29500) and gang.owner == "ann"
    assert repr(gang) == "GangContext('g', generation=3, rank=1 of 2)"


def test_a_copy_for_a_child_process_has_all_facts_and_no_link():
    gang = pickle.loads(pickle.dumps(GangContext(facts_of(form(), 0))))
    assert gang.members == GangContext(facts_of(form(), 0)).members
    with pytest.raises(LookupError, match="not made by a running worker"):
        gang.fail("why not")


async def test_without_a_worker_there_is_nobody_to_meet():
    gang = GangContext(facts_of(form(), 0))
    with pytest.raises(LookupError, match="reaches no gang"):
        await gang.barrier()
    with pytest.raises(LookupError, match="reaches no gang"):
        gang.barrier_blocking()


async def test_a_task_outside_of_gangs_says_so():
    context = TaskContext()
    assert not context.in_gang
    with pytest.raises(LookupError, match="does not run in a gang"):
        _ = context.gang
