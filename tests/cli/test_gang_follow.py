"""`gangline gang acquire --keep`: what it prints while it cannot renew."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gangline.cli.views.gang_follow import keep
from gangline.schemas.errors.base import Disconnected, GanglineError
from gangline.schemas.messages.gangs import GangReply
from gangline.schemas.names import GangOperation

GANG = GangReply.model_validate(
    {"id": "g1", "state": "formed", "step": "ready", "generation": 1, "size": 1, "ttl_s": 6.0, "owner_token": "t"}
)


class Coordinator:
    """Answers each renewal with the next of these."""

    def __init__(self, stop: asyncio.Event, *answers: GanglineError | None) -> None:
        self.stop = stop
        self.answers = list(answers)

    async def ask(self, operation: GangOperation, _request: Any, _timeout_s: float) -> GangReply:
        if operation is GangOperation.RELEASE:
            return GANG
        answer = self.answers.pop(0)
        if not self.answers:
            self.stop.set()
        if answer is not None:
            raise answer
        return GANG


async def test_who_cannot_renew_is_told_once_and_when_the_gang_is_over(capsys):
    stop, away = asyncio.Event(), Disconnected("no connection")
    await keep(cast("Any", Coordinator(stop, None, away, away, away, away, away, None, away)), GANG, stop)
    assert capsys.readouterr().err.splitlines() == [
        "not renewed: no connection",
        "not renewed for 6 s: the gang ends, if a coordinator leads",
        "not renewed: no connection",
    ]
