"""A channel: what shares a message, and what it asks when the server says that nobody listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.dispatcher.transport.channel import ChannelOwner, WorkerChannel
from gangline.schemas.errors.base import Disconnected


class Line:
    """A connection that is lost, and comes back."""

    def __init__(self) -> None:
        self.lost = True
        self.replies: list[str] = []

    def publish(self, subject: str, data: bytes, *, reply: str) -> None:
        if self.lost:
            raise Disconnected("gone for a moment")
        self.replies.append(reply)


def test_a_doubt_that_cannot_be_sent_keeps_no_later_one_from_being_sent() -> None:
    line = Line()
    owner, worker = SimpleNamespace(bus=line, sender="s"), SimpleNamespace(id="images.w1", epoch=5)
    channel = WorkerChannel(cast("ChannelOwner", owner), cast("Any", worker), 1, "token", "to", "answers")
    channel.messages = 3
    check = cast("Any", SimpleNamespace(id=7, outbound=None))
    with pytest.raises(Disconnected):
        channel.doubt(check, [1])
    assert (channel.checks, channel.doubted_to) == (0, 0), "nothing is asked, so nothing settles it"
    line.lost = False
    channel.doubt(check, [1])
    assert (channel.checks, channel.doubted_to) == (1, 3)
    assert line.replies == ["answers.1"]
