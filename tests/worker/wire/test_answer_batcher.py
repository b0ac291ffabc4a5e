"""The outbox, by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.bus.port.bus import Bus
from gangline.schemas.errors.base import Disconnected, InvalidName, PayloadTooLarge
from gangline.schemas.wire import frames
from gangline.schemas.wire.frames import ENVELOPE_BYTES, AnswerOp, Load
from gangline.telemetry.logs import logger_for
from gangline.worker.wire.answer_batcher import AnswerBatcher

from ...scale import repetitions


class Wire:
    """As much of a bus as an outbox needs."""

    def __init__(self, max_payload: int = 1000) -> None:
        self.max_payload = max_payload
        self.error: Exception | None = None
        self.sent: list[tuple[str, bytes]] = []

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if self.error is not None:
            raise self.error
        if len(data) > self.max_payload:
            raise PayloadTooLarge(f"{len(data)} bytes")
        self.sent.append((subject, data))

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def frames(self) -> list[list[object]]:
        return [list(frame) for _, data in self.sent for frame in frames.decode_answer(data).frames]


def answer_batcher(wire: Wire, keep_bytes: int = 10_000) -> AnswerBatcher:
    return AnswerBatcher(cast(Bus, wire), lambda: (7, Load(1, 2, 4)), keep_bytes=keep_bytes, log=logger_for("test"))


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def box(wire: Wire) -> AnswerBatcher:
    return answer_batcher(wire)


def ok(number: int, size: int = 0) -> bytes:
    return frames.encode_frame((AnswerOp.OK, number, b"x" * size))


async def test_a_muted_outbox_says_nothing_more(wire: Wire, box: AnswerBatcher):
    box.put("a", ok(1))
    box.mute()
    box.put("a", ok(2))
    await asyncio.sleep(0)
    assert wire.sent == []
    assert repr(box) == "AnswerBatcher(messages=0, frames=0, dropped=0, kept_bytes=0)"


@given(sizes=st.lists(st.integers(0, 900), max_size=40))
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
async def test_whatever_the_sizes_nothing_is_lost_or_too_large(sizes):
    wire = Wire()
    box = answer_batcher(wire)
    for number, size in enumerate(sizes):
        box.put("a", ok(number, size))
    await asyncio.sleep(0)
    assert [frame[1] for frame in wire.frames()] == list(range(len(sizes)))


@given(count=st.sampled_from([0, 1, 15, 16, 300, 65_535, 65_536]), epoch=st.integers(0, 2**62))
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
def test_joined_frames_are_the_same_bytes_as_an_encoded_envelope(count, epoch):
    one = (AnswerOp.RENEWED, 5, 1000)
    load = Load(1_000_000, 0, 1_000_000, 1)
    joined = frames.join_answer(epoch, load, [frames.encode_frame(one)] * count)
    assert joined == frames.encode_answer(epoch, load, [one] * count)
    assert len(joined) - count * len(frames.encode_frame(one)) <= ENVELOPE_BYTES


async def test_a_reply_subject_that_cannot_be_used_costs_the_others_nothing():
    class Picky(Wire):
        def publish(
            self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
        ) -> None:
            if "*" in subject and self.error is None:
                raise InvalidName(f"{subject} has a wildcard")
            super().publish(subject, data, reply=reply, headers=headers)

    wire = Picky()
    box = answer_batcher(wire)
    box.put("evil.*", ok(1))
    box.put("a", ok(2))
    await asyncio.sleep(0)
    assert [subject for subject, _ in wire.sent] == ["a"]
    assert box.dropped == 1 and box.empty
    wire.error = Disconnected("down")
    box.put("evil.*", ok(3))
    box.put("a", ok(4))
    box.flush()
    wire.error = None
    box.resume()
    assert [subject for subject, _ in wire.sent] == ["a", "a"] and box.empty


async def test_what_comes_after_a_loss_waits_for_what_was_kept(wire: Wire, box: AnswerBatcher):
    wire.error = Disconnected("down")
    box.put("a", ok(1))
    box.flush()
    wire.error = None  # back, and the news of it are still on their way
    box.put("a", ok(2))
    box.put("b", ok(3))
    box.flush()
    assert wire.sent == []
    box.resume()
    box.put("a", ok(4))
    box.flush()
    assert [frame[1] for frame in wire.frames()] == [1, 2, 3, 4] and box.empty


async def test_an_answer_that_a_later_server_does_not_take_is_an_error_and_not_silence() -> None:
    """The connection was lost, and the server that is there now allows smaller messages."""
    wire = Wire(max_payload=5000)
    box = answer_batcher(wire)
    wire.error = Disconnected("no connection")
    for frame in (ok(6), ok(7, 3000), frames.encode_frame((AnswerOp.ITEM, 8, 0, b"x" * 3000))):
        box.put("a", frame)
    box.flush()
    wire.error, wire.max_payload = None, 1000
    box.resume()
    box.put("a", ok(7, 3000))  # asked for once more
    box.flush()
    assert wire.frames()[0] == [AnswerOp.OK, 6, b""]
    assert [answer[:3] for answer in wire.frames()[1:]] == [[AnswerOp.ERROR, 7, "invalid_result"]] * 2
    assert box.statistics()["dropped"] == 1, "a gap in a stream is noticed by its reader"
