"""What a member knows of its gang, without a worker around it."""

from __future__ import annotations

import pickle

import pytest

from gangline.schemas.messages.gangs import FormRequest
from gangline.schemas.records.gangs import Rendezvous, Seat
from gangline.worker.context.task_context import GangContext, facts_of


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
