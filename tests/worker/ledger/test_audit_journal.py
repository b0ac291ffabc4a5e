"""The journal, as a checker reads it."""

from __future__ import annotations

from gangline.schemas.names import public_id
from gangline.schemas.wire.frames import RequestOp, ReserveFlag

from ...support.worker.rig import Rig, on_rig, reserve, task


@on_rig()
async def test_it_tells_every_change_of_slots_with_the_slots_at_that_instant(rig: Rig):
    token = await rig.hand.grant(1, flags=ReserveFlag.SINGLE_USE)
    rig.hand.send(task(2, "wait", token=token), task(3, "wait"), task(4, "wait"))
    await rig.hand.quiet()
    rig.gates.open.set()
    await rig.hand.answer(2)
    await rig.hand.answer(3)
    lease = await rig.hand.grant(5)
    rig.hand.send((int(RequestOp.RELEASE), None, lease))
    await rig.hand.grant(6, claim_ms=100)
    await rig.hand.quiet(0.2)
    rig.worker.resize(3)
    told = [(r["event"], r["running"], r["reserved"], r["total"]) for r in rig.journal]
    assert told == [
        ("grant", 0, 1, 2),
        ("use", 1, 0, 2),
        ("start", 1, 0, 2),
        ("start", 2, 0, 2),
        ("reject", 2, 0, 2),
        ("end", 1, 0, 2),
        ("end", 0, 0, 2),
        ("grant", 0, 1, 2),
        ("release", 0, 0, 2),
        ("grant", 0, 1, 2),
        ("expire", 0, 0, 2),
        ("resize", 0, 0, 3),
    ]


@on_rig()
async def test_each_record_names_worker_epoch_time_and_what_it_is_about(rig: Rig):
    granted = await rig.hand.ask(*reserve(1, slots=2, ttl_ms=9000))
    grant = rig.journal[0]
    assert (grant["worker"], grant["epoch"]) == ("images.w1", rig.worker.core.epoch)
    assert (grant["token"], grant["slots"], grant["single_use"], grant["ttl_s"]) == (
        public_id(granted[2]),
        2,
        False,
        9.0,
    )
    assert isinstance(grant["t"], float)
    await rig.hand.ask(*task(2, "double", [1], token=granted[2]))
    start, end = (record for record in rig.journal if record["event"] in ("start", "end"))
    assert start["id"] == end["id"] == "hand.2"
    assert (start["method"], start["token"], start["cost"]) == ("double", public_id(granted[2]), 1)
