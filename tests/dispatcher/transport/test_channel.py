"""A channel: what shares a message, and what it asks when the server says that nobody listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.dispatcher.transport.channel import ChannelOwner, WorkerChannel
from gangline.schemas.errors.base import Disconnected
from gangline.schemas.wire.frames import decode_request


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


def test_a_frame_that_was_taken_back_leaves_no_room_for_more_lists_than_a_worker_takes() -> None:
    sent: list[bytes] = []
    bus = SimpleNamespace(max_payload=1 << 20, publish=lambda _subject, data, reply: sent.append(data))
    loop = SimpleNamespace(time=lambda: 1.0)
    owner = SimpleNamespace(bus=bus, sender="s", in_flight=1_000_000, loop=loop, call_soon=lambda _: None)
    worker = SimpleNamespace(id="images.w1", epoch=5)
    channel = WorkerChannel(cast("ChannelOwner", owner), cast("Any", worker), 1, "token", "to", "answers")
    picture = cast("Any", SimpleNamespace(id=1, outbound=None))
    channel.send([1, 1, "show", [b"x" * 90_000], None, None, None, None, 0, None], picture)
    assert channel.unsend(picture)
    for number in range(100):
        channel.send([1, 2 + number, "show", [[[]] * 1000], None, None, None, None, 0, None])
    channel.flush()
    assert sum(len(decode_request(data).frames) for data in sent) == 100
