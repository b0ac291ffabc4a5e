"""Each place of each frame, with everything that must not stand in it."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gangline.schemas.errors.base import MalformedMessage
from gangline.schemas.limits import MAX_CHECKED, MAX_SLOTS, MAX_TOKEN_CHARS, WIRE_VERSION
from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.frames import AnswerOp, Load, LoadFlag, RequestOp

from ...scale import repetitions
from ...support.rows import case

LOAD = Load(running=1, reserved=2, total=4)

GOOD_REQUESTS: dict[RequestOp, list] = {
    RequestOp.TASK: [1, 7, "thumbnail", ["a.png"], {"width": 3}, 5000, "tok", "00-ab-cd-01", 0, {"key": "u"}],
    RequestOp.RESERVE: [2, 7, 1, 15_000, 2_000, 1, 5000, {"owner": "me"}],
    RequestOp.RENEW: [3, 7, "tok", 15_000],
    RequestOp.RELEASE: [4, 7, "tok"],
    RequestOp.CANCEL: [5, 7],
    RequestOp.CHECK: [6, 7, [1, 2, 3]],
    RequestOp.CREDIT: [7, 7, 64],
    RequestOp.BEGIN: [8, 7],
    RequestOp.ACK: [9, "thumbs", "j1", 12, 0, 1],
    RequestOp.STORED: [10, 7, 64],
}
GOOD_ANSWERS: dict[AnswerOp, list] = {
    AnswerOp.OK: [1, 7, {"any": ["thing", None]}],
    AnswerOp.ERROR: [2, 7, "task_failed", "bad", {"type": "ValueError"}, True],
    AnswerOp.GRANTED: [3, 7, "tok", 12, 15_000],
    AnswerOp.REJECTED: [4, 7, "full"],
    AnswerOp.RENEWED: [5, 7, 15_000],
    AnswerOp.CHECKED: [6, 7, [0, 1, 2]],
    AnswerOp.ITEM: [7, 7, 0, b"item"],
    AnswerOp.END: [8, 7, 12],
    AnswerOp.HELD: [9, 7],
}

# What must not stand in a place of each kind.
NO_INT = [None, "1", 1.0, True, [], {}, -1]
NO_ID = [*NO_INT, 1 << 63]
NO_MS = [*NO_INT, 0, 1 << 40]
NO_DEADLINE = ["1", 1.0, True, [], {}, 1 << 40, -(1 << 40)]
NO_TEXT = [None, 1, b"x", [], {}, True]
NO_TOKEN = [*NO_TEXT, "", "x" * (MAX_TOKEN_CHARS + 1)]
NO_TOKEN_OR_NIL = NO_TOKEN[1:]
NO_LIST_OR_NIL = [1, "x", {}, True]
NO_MAP_OR_NIL = [1, "x", [], True, {1: 2}, {b"k": 1}]

WRONG_REQUESTS = {
    RequestOp.TASK: [
        *(NO_ID, NO_TEXT, NO_LIST_OR_NIL, NO_MAP_OR_NIL, NO_DEADLINE),
        *(NO_TOKEN_OR_NIL, NO_TEXT[1:], NO_INT, NO_MAP_OR_NIL),
    ],
    RequestOp.RESERVE: [NO_ID, [*NO_INT, 0, MAX_SLOTS + 1], NO_MS, NO_MS, NO_INT, NO_DEADLINE, NO_MAP_OR_NIL],
    RequestOp.RENEW: [NO_ID, NO_TOKEN, NO_MS],
    RequestOp.RELEASE: [NO_ID[1:], NO_TOKEN_OR_NIL],
    RequestOp.CANCEL: [NO_ID],
    RequestOp.CHECK: [NO_ID, [None, 1, "x", {}, [1, -1], [None], [True]]],
    RequestOp.CREDIT: [NO_ID, NO_INT],
    RequestOp.BEGIN: [NO_ID],
    RequestOp.ACK: [NO_TEXT, NO_TEXT, NO_INT, NO_INT, NO_INT],
    RequestOp.STORED: [NO_ID, NO_INT],
}
WRONG_ANSWERS = {
    AnswerOp.OK: [NO_ID, []],
    AnswerOp.ERROR: [NO_ID, NO_TEXT, NO_TEXT, NO_MAP_OR_NIL, [None, 0, 1, "true"]],
    AnswerOp.GRANTED: [NO_ID, NO_TOKEN, NO_INT, NO_MS],
    AnswerOp.REJECTED: [NO_ID, NO_TEXT],
    AnswerOp.RENEWED: [NO_ID, NO_MS],
    AnswerOp.CHECKED: [NO_ID, [None, 1, "x", {}, [-1]]],
    AnswerOp.ITEM: [NO_ID, NO_INT, []],
    AnswerOp.END: [NO_ID, NO_INT],
    AnswerOp.HELD: [NO_ID],
}


def _cases(good, wrong):
    for operation, frame in good.items():
        assert len(wrong[operation]) == len(frame) - 1
        for place, values in enumerate(wrong[operation], start=1):
            yield frame, place, values


def request_of(frame) -> bytes:
    return codec.pack((WIRE_VERSION, 5, "router", [frame]))


def answer_of(frame) -> bytes:
    return codec.pack((WIRE_VERSION, 5, LOAD, [frame]))


def test_a_request_envelope_comes_back_as_it_was():
    sent = list(GOOD_REQUESTS.values())
    assert frames.decode_request(frames.encode_request(5, "router", sent)) == (5, "router", sent)


def test_an_answer_envelope_comes_back_as_it_was():
    sent = list(GOOD_ANSWERS.values())
    got = frames.decode_answer(frames.encode_answer(5, LOAD, sent))
    assert got == (5, LOAD, sent)
    assert got.load.ongoing == 3


def test_every_operation_has_a_good_frame_here():
    assert set(GOOD_REQUESTS) == set(RequestOp)
    assert set(GOOD_ANSWERS) == set(AnswerOp)


@pytest.mark.parametrize(
    "frame",
    [
        [1, 0, "m", None, None, None, None, None, 0, None],
        [1, (1 << 63) - 1, "m", [], {}, -50, None, None, 3, {}],
        [2, 1, MAX_SLOTS, 1, 1, 3, None, None],
        [4, None, None],
        [6, 1, []],
    ],
)
def test_places_that_may_be_nil_or_at_their_bound_are_taken(frame):
    assert frames.decode_request(request_of(frame)).frames == [frame]


def test_a_load_tells_what_is_free_and_never_less_than_nothing():
    assert Load(1, 2, 4).free == 1
    assert Load(3, 2, 4).free == 0
    assert not Load(0, 0, 4).draining
    assert Load(0, 0, 4, LoadFlag.DRAINING).draining


BOTH = (
    (frames.decode_request, request_of, GOOD_REQUESTS, WRONG_REQUESTS),
    (frames.decode_answer, answer_of, GOOD_ANSWERS, WRONG_ANSWERS),
)


@pytest.mark.parametrize(("decode", "envelope", "good", "wrong"), BOTH, ids=["requests", "answers"])
def test_a_wrong_place_and_one_too_many_or_too_few_are_refused(decode, envelope, good, wrong):
    for frame, place, values in _cases(good, wrong):
        for value in values:
            with case(frame, place, value), pytest.raises(MalformedMessage, match=f"frame {frame[0]}: "):
                decode(envelope([*frame[:place], value, *frame[place + 1 :]]))
    for frame in good.values():
        for other in (frame[:-1], [*frame, None]):
            with case(frame), pytest.raises(MalformedMessage, match=f"has {len(other)} places, not {len(frame)}"):
                decode(envelope(other))


def test_what_is_no_frame_or_of_no_known_operation_is_refused():
    for frame in [None, 1, "x", {}, [], [0, 1], [99, 1], [True, 7], ["1", 7], [1.0, 7], [[], 7]]:
        with case(frame):
            with pytest.raises(MalformedMessage, match="frame|operation"):
                frames.decode_request(request_of(frame))
            with pytest.raises(MalformedMessage, match="frame|operation"):
                frames.decode_answer(answer_of(frame))


ENVELOPES = [None, 1, "x", {}, [], [WIRE_VERSION, 5, "s"], [WIRE_VERSION, 5, "s", [], None]]


@pytest.mark.parametrize("value", ENVELOPES, ids=str)
def test_what_is_no_envelope_is_refused(value):
    for decode in (frames.decode_request, frames.decode_answer):
        with pytest.raises(MalformedMessage, match="array of four"):
            decode(codec.pack(value))


@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, "1", True, 1.0, None, [1]], ids=repr)
def test_another_version_is_refused_with_what_to_do(version):
    for third in ("s", LOAD):
        for decode in (frames.decode_request, frames.decode_answer):
            with pytest.raises(MalformedMessage, match="upgrade one side"):
                decode(codec.pack((version, 5, third, [])))


@pytest.mark.parametrize("epoch", [-1, None, "5", 5.0, True], ids=repr)
def test_an_epoch_is_a_whole_number(epoch):
    for decode, third in ((frames.decode_request, "s"), (frames.decode_answer, LOAD)):
        with pytest.raises(MalformedMessage, match="epoch"):
            decode(codec.pack((WIRE_VERSION, epoch, third, [])))


def test_the_other_places_of_an_envelope_are_checked():
    senders = [None, 1, "", b"x", "x" * (MAX_TOKEN_CHARS + 1)]
    loads = [None, 1, [], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, -3, 0], [1, 2, True, 0], "abcd"]
    cases = [
        *((frames.decode_request, sender, [], "sender") for sender in senders),
        *((frames.decode_answer, load, [], "load") for load in loads),
        *((frames.decode_request, "s", value, "frames must be an array") for value in (None, {}, "x", 1)),
    ]
    for decode, third, fourth, why in cases:
        with case(third, fourth), pytest.raises(MalformedMessage, match=why):
            decode(codec.pack((WIRE_VERSION, 5, third, fourth)))


DEEP = b"\x91" * 900 + b"\x90"


@pytest.mark.parametrize(
    "data",
    [
        b"\x94" + DEEP + b"\x05\xa1s\x90",
        b"\x94\x01" + DEEP + b"\xa1s\x90",
        b"\x94\x01\x05" + DEEP + b"\x90",
        b"\x94\x01\x05\xa1s\x91" + DEEP,
        b"\x94\x01\x05\xa1s\x91\x91" + DEEP,
        b"\x94\x01\x05\xa1s\x91\x92\x05" + DEEP,
    ],
    ids=["version", "epoch", "sender", "frame", "operation", "place"],
)
def test_deep_nesting_where_something_flat_belongs_is_a_short_complaint(data):
    for decode in (frames.decode_request, frames.decode_answer):
        with pytest.raises(MalformedMessage) as caught:
            decode(data)
        assert len(str(caught.value)) < 200


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x94\x01\x05\xa1s")
def test_any_bytes_are_an_envelope_or_a_malformed_message(data):
    for decode in (frames.decode_request, frames.decode_answer):
        try:
            decode(data)
        except MalformedMessage:
            pass


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=15,
)


@given(st.integers(0, 9), st.lists(json_like, max_size=10))
@settings(max_examples=repetitions(10, whole=settings().max_examples))
def test_frames_of_any_shape_are_taken_or_refused_as_a_whole(operation, places):
    data = msgpack.packb([WIRE_VERSION, 5, "s", [[operation, *places]]])
    try:
        got = frames.decode_request(data)
    except MalformedMessage:
        return
    assert got.frames == [[operation, *places]]


def test_one_message_asks_for_a_bounded_number_of_tasks():
    most = list(range(MAX_CHECKED))
    assert frames.decode_request(frames.encode_request(1, "s", [(RequestOp.CHECK, 1, most)]))
    with pytest.raises(MalformedMessage, match=f"{MAX_CHECKED + 1} task ids to CHECK: at most {MAX_CHECKED}"):
        frames.decode_request(frames.encode_request(1, "s", [(RequestOp.CHECK, 1, most), (RequestOp.CHECK, 2, [1])]))
