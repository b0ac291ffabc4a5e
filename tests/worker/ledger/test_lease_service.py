"""Leases that are written to the ledger before they are answered, when storage fails."""

from __future__ import annotations

from gangline.schemas.errors.base import ClosedError, Unavailable
from gangline.schemas.wire.frames import AnswerOp, ReserveFlag

from ...support.rows import in_rows
from ...support.worker.rig import Rig, on_rig, reserve


@in_rows("error", [Unavailable("away"), ClosedError("closed"), ValueError("a bug")])
@on_rig()
async def test_a_lease_that_cannot_be_recorded_is_answered_and_holds_no_slot(rig: Rig, error: Exception, monkeypatch):
    async def fails(token: str) -> int:
        raise error

    monkeypatch.setattr(rig.worker._worker_server.ledger, "write_now", fails)
    answer = await rig.hand.ask(*reserve(1, flags=int(ReserveFlag.SYNC)))
    assert answer[:2] == [AnswerOp.ERROR, 1]
    assert rig.worker.core.load[:2] == (0, 0)
    reply, headers = await rig.hand.request("reserve", {"slots": 1, "ttl_s": 5, "ledger": "sync"})
    assert "Nats-Service-Error" in headers and reply["code"] == answer[2]
    assert rig.worker.core.load[:2] == (0, 0)
