"""Frames: the messages between routers and workers, many in one envelope.

Calls made in one turn of the event loop to one worker share a message, and so do answers to one caller. A message is
one msgpack array, an *envelope*. A frame is an array with fixed positions; the first is its operation. This module does
not use pydantic: `decode_request` and `decode_answer` check every position of every received frame once.

Request envelope `[version, epoch, sender, frames]`, published to `<ns>.worker.<pool>.<worker>.frames` with a reply
subject that tells the sender which worker answered. `epoch` is the worker's epoch as the sender knows it. A worker in
another epoch starts and grants nothing from that envelope and answers REJECTED "stale" (RELEASE, CANCEL, CHECK, ACK
and a TASK that only attaches are safe in any epoch and are accepted). `sender` is unguessable and unique for each
router; ids are unique together with it.

=========  ==============================================================================================
TASK       `[1, id, method, args, kwargs, deadline_ms, token, trace, flags, meta]`
RESERVE    `[2, id, slots, ttl_ms, claim_ms, flags, deadline_ms, meta]`
RENEW      `[3, id, token, ttl_ms]`
RELEASE    `[4, reserve_id | nil, token | nil]`, never answered; does nothing if unknown
CANCEL     `[5, id]`, the task's own answer is the reply
CHECK      `[6, id, [task ids]]`
CREDIT     `[7, id, items]`, the worker may send this many more items of a stream
BEGIN      `[8, id]`, starts a task that was sent with `hold`
ACK        `[9, endpoint, job, sequence, rank, attempt]`, never answered: the outcome of that attempt is stored
STORED     `[10, id, count]`, the first `count` items of a durable task are stored; it is credited with them
=========  ==============================================================================================

AnswerOp envelope `[version, epoch, load, frames]`; `load` is `[running, reserved, total, flags]` when it was sent. An
envelope without frames is an invitation: there is room now for a sender that was just refused (REJECTED "full").

=========  ==============================================================================================
OK         `[1, id, result]`
ERROR      `[2, id, code, message, details | nil, may_have_started]`
GRANTED    `[3, id, token, fence, ttl_ms]`
REJECTED   `[4, id, reason]`, nothing was started or reserved; see Reason
RENEWED    `[5, id, ttl_ms]`
CHECKED    `[6, id, [states]]`, in the order asked; see TaskState
ITEM       `[7, id, sequence, value]`, from 0
END        `[8, id, count]`, the stream is complete
HELD       `[9, id]`, the task has its slots and waits for BEGIN
=========  ==============================================================================================

`deadline_ms` is the caller's remaining time when the envelope was sent (the clocks of two machines need not agree);
nil: no deadline. `meta` of a TASK may have `attempt` (default: 1), `key`, `model`, `shadow` (true: a copy of a request
that another pool answers), and for a stream `window`: how many items may be sent ahead of the CREDIT for them (default:
the worker's setting).

`meta` of a RESERVE may have `owner`, shown to people, and `seat`, the token of a gang's seat. With `seat`, only idle
slots of that seat are granted (REJECTED "full" if it has too few). It is a lease like any other, except that its tasks
run as the gang's member, and that it ends with the seat at the latest.

A task on a gang's seat, or on such a lease, may have a `run`, and a `generation`: it waits until the worker knows that
generation. With `hold` it takes its slots and waits for BEGIN, so that a call on all ranks starts on all or on none;
without BEGIN within two seconds it ends unstarted (ERROR task_cancelled).

An attempt of a durable task has `job`, `endpoint` and `attempt`. It may have `sequence`, which tells the job from an
earlier one with that id, and `pool`, the standing set that it was sent to. On all ranks of a gang it has `rank` and
`ranks`, and is an execution of its own on each rank. While the job runs on a worker, and afterwards for as long as the
answer is kept, a further TASK for it attaches (unless it is a later attempt than a failed one): nothing starts, it
takes no slot and no token, and gets the same answer under its own id. With STREAM it gets the items from index `items`
of its meta (default: from the first one), except those that were credited before; from then on only its CREDIT counts.

With `acks` (true) in its meta the sender promises an ACK once the job's outcome is stored. Until then, within limits,
the worker keeps the answer for whoever asks, and waits for the ACK before it exits. ACK is only for workers whose
registration has `acks` (true): for others it is an unknown operation. It names the job as `meta` does, with 0 for a
missing sequence or rank. An ACK for an earlier attempt than the last, or for an unknown job, does nothing.

STORED is for workers whose registration has `stored` (true): the worker forgets these items. Others get CREDIT, which
a message that arrives twice counts twice, and so an item might be forgotten that nobody has stored.

Ids are integers. A sender never uses one twice, and each is greater than those before: a worker keeps answers only for
a while, and treats every id up to the newest forgotten one as seen (ERROR result_lost).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag, StrEnum
from typing import Any, Final, NamedTuple

from ..errors.base import MalformedMessage, PayloadTooLarge
from ..limits import MAX_CHECKED, MAX_SLOTS, MAX_TOKEN_CHARS, WIRE_VERSION
from ..text import brief
from . import codec

Frame = list[Any] | tuple[Any, ...]
"""One frame; its operation is the first element."""


class RequestOp(IntEnum):
    """Operations of frames from router to worker."""

    TASK = 1
    RESERVE = 2
    RENEW = 3
    RELEASE = 4
    CANCEL = 5
    CHECK = 6
    CREDIT = 7
    BEGIN = 8
    ACK = 9
    STORED = 10


class AnswerOp(IntEnum):
    """Operations of frames from worker to router."""

    OK = 1
    ERROR = 2
    GRANTED = 3
    REJECTED = 4
    RENEWED = 5
    CHECKED = 6
    ITEM = 7
    END = 8
    HELD = 9


class TaskFlag(IntFlag):
    """`flags` of TASK."""

    STREAM = 1
    """The caller reads items one by one; without this flag, the answer of a streaming task is the list of its items."""
    JSON = 2
    """The arguments were sent as JSON: text given for a bytes parameter is base64."""
    ATTACH = 4
    """Only report the outcome of the job in `meta`. If the job is not known here, nothing starts, and the answer is
    REJECTED "unknown_job"."""


class ReserveFlag(IntFlag):
    """`flags` of RESERVE."""

    SINGLE_USE = 1
    """The token admits one task and ends with it; without this flag, it admits as many at once as it has slots."""
    SYNC = 2
    """Write the ledger before answering; the fence is then the ledger's revision."""


class LoadFlag(IntFlag):
    """Last element of a load."""

    DRAINING = 1


class Reason(StrEnum):
    """Why nothing was granted and nothing started."""

    FULL = "full"
    DRAINING = "draining"
    STALE = "stale"
    """The envelope is for another epoch."""
    EXPIRED = "expired"
    """The deadline had passed on arrival, or the request had been released before it arrived."""
    LIMITED = "limited"
    """The limits that the task declares allow no more executions on this worker now."""
    UNKNOWN_JOB = "unknown_job"
    """An ATTACH for a job that is not known here."""


class TaskState(IntEnum):
    """What a worker knows about a task id in a CHECK."""

    UNKNOWN = 0
    """Never seen, and refused from now on: it is safe to send the task elsewhere."""
    RUNNING = 1
    ANSWERED = 2
    """Finished; the answer is sent again with this one."""
    FORGOTTEN = 3
    """Finished or seen, but the answer is no longer kept: ResultLost."""


_DRAINING: Final = int(LoadFlag.DRAINING)
"""A plain integer: reading a flag of an enum costs more than reading the rest of a load."""


class Load(NamedTuple):
    """A worker's slots at one instant. Drains and routing use `running + reserved`."""

    running: int
    reserved: int
    total: int
    flags: int = 0

    @property
    def ongoing(self) -> int:
        return self.running + self.reserved

    @property
    def free(self) -> int:
        return max(0, self.total - self.running - self.reserved)

    @property
    def draining(self) -> bool:
        return self.flags & _DRAINING != 0


class RequestEnvelope(NamedTuple):
    epoch: int
    sender: str
    frames: list[Frame]


class AnswerEnvelope(NamedTuple):
    epoch: int
    load: Load
    frames: list[Frame]


def encode_request(epoch: int, sender: str, frames: list[Frame]) -> bytes:
    return codec.pack((WIRE_VERSION, epoch, sender, frames))


def encode_answer(epoch: int, load: Load, frames: list[Frame]) -> bytes:
    return codec.pack((WIRE_VERSION, epoch, load, frames))


def encode_frame(frame: Frame) -> bytes:
    """Encode one frame, to be joined with others by `join_answer` later. This shows its size on the wire early.

    Raises:
        InvalidRequest: something in it cannot be serialized.
    """
    return codec.pack(frame)


def join_answer(epoch: int, load: Load, frames: Sequence[bytes]) -> bytes:
    """The answer envelope of frames encoded by `encode_frame`; the same bytes as `encode_answer`."""
    # Encoded as a pair, less the pair's own first byte.
    return b"".join((_HEAD, codec.pack((epoch, load))[1:], _array_header(len(frames)), *frames))


def join_request(epoch: int, sender: str, frames: Sequence[bytes]) -> bytes:
    """The request envelope of frames encoded by `encode_frame`; the same bytes as `encode_request`."""
    return b"".join((_HEAD, codec.pack((epoch, sender))[1:], _array_header(len(frames)), *frames))


_HEAD: Final = b"\x94" + codec.pack(WIRE_VERSION)
"""An array of four, and its first element."""


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


REQUEST_ENVELOPE_BYTES: Final = 128
"""Maximum number of bytes that `join_request` adds to its frames."""
ENVELOPE_BYTES: Final = 64
"""Maximum number of bytes that `join_answer` adds to its frames."""


def decode_request(data: bytes) -> RequestEnvelope:
    """Read and check a request envelope.

    Raises:
        MalformedMessage: names the first invalid position; see `salvage_request` for the other frames.
        PayloadTooLarge: more lists and maps than an envelope may have. Likewise.
    """
    version, epoch, sender, frames = _envelope(data, budget=codec.most_containers)
    if not isinstance(sender, str) or not 0 < len(sender) <= MAX_TOKEN_CHARS:
        raise MalformedMessage("sender must be a short text")
    checked = 0
    for frame in frames:
        if type(frame) is list and (
            (len(frame) == _TASK_PLACES and _is_plain_task(frame))
            or (len(frame) == _RESERVE_PLACES and _is_plain_reserve(frame))
        ):
            continue
        _check(frame, _REQUEST_PLACES)
        if frame[0] == RequestOp.CHECK:
            checked += len(frame[2])
    if checked > MAX_CHECKED:
        raise MalformedMessage(f"{checked} task ids to CHECK: at most {MAX_CHECKED} in one message")
    return RequestEnvelope(epoch, sender, frames)


def decode_answer(data: bytes) -> AnswerEnvelope:
    """Read and check an answer envelope.

    Raises:
        MalformedMessage: names the first invalid position.
    """
    version, epoch, load, frames = _envelope(data)
    if not (isinstance(load, list) and len(load) == 4 and all(type(x) is int and x >= 0 for x in load)):
        raise MalformedMessage("load must be [running, reserved, total, flags]")
    for frame in frames:
        # The fast path for OK frames, which are the most common.
        if (
            type(frame) is not list
            or len(frame) != 3
            or frame[0] is not _OK
            or type(frame[1]) is not int
            or not 0 <= frame[1] < _MAX_ID
        ) and not _is_plain_grant(frame):
            _check(frame, _ANSWER_PLACES)
    return AnswerEnvelope(epoch, Load(*load), frames)


class UnreadableFrame(NamedTuple):
    """A frame of an envelope that cannot be read as a whole."""

    operation: int
    id: int
    """Both are 0 if not even they can be read."""
    error: MalformedMessage | PayloadTooLarge


def salvage_request(data: bytes) -> tuple[RequestEnvelope, list[UnreadableFrame]]:
    """Read a request envelope that `decode_request` refuses, frame by frame: one that cannot be read must not take the
    others with it.

    Returns:
        The envelope with the frames that can be read, and the others.

    Raises:
        MalformedMessage, PayloadTooLarge: it is not an envelope of frames.
    """
    readable, unread = _salvaged(data, _REQUEST_PLACES)
    return decode_request(readable), unread


def salvage_answer(data: bytes) -> tuple[AnswerEnvelope, list[UnreadableFrame]]:
    """The same for an answer envelope."""
    readable, unread = _salvaged(data, _ANSWER_PLACES)
    return decode_answer(readable), unread


def _salvaged(data: bytes, places: dict[int, _Places]) -> tuple[bytes, list[UnreadableFrame]]:
    head, parts = codec.split_envelope(data)
    readable: list[bytes] = []
    unread: list[UnreadableFrame] = []
    budget = codec.most_containers
    for part in parts:
        try:
            if budget <= 0:
                raise codec.too_many_containers()
            _check(codec.unpack(part, budget=budget), places)
        except (MalformedMessage, PayloadTooLarge) as error:
            unread.append(UnreadableFrame(*codec.first_integers(part), error))
        else:
            readable.append(part)
        budget -= codec.most_lists(part)
    return b"".join((head, _array_header(len(readable)), *readable)), unread


def _envelope(data: bytes, *, budget: int | None = None) -> list[Any]:
    value = codec.unpack(data, budget=budget)
    if not isinstance(value, list) or len(value) != 4:
        raise MalformedMessage("an envelope is an array of four")
    if type(value[0]) is not int or value[0] != WIRE_VERSION:
        raise MalformedMessage(
            f"wire version {brief(value[0])} is not supported, only {WIRE_VERSION}: upgrade one side"
        )
    if type(value[1]) is not int or value[1] < 0:
        raise MalformedMessage("epoch must be a whole number")
    if not isinstance(value[3], list):
        raise MalformedMessage("frames must be an array")
    return value


# What is valid at each position after the operation: a tuple of types, or a predicate.


def _id(x: Any) -> bool:
    return type(x) is int and 0 <= x < _MAX_ID


def _ms(x: Any) -> bool:
    return type(x) is int and 0 < x < _MAX_MS


def _deadline(x: Any) -> bool:
    return x is None or (type(x) is int and -_MAX_MS < x < _MAX_MS)


def _slots(x: Any) -> bool:
    return type(x) is int and 0 < x <= MAX_SLOTS


def _text(x: Any) -> bool:
    return isinstance(x, str)


def _token(x: Any) -> bool:
    return isinstance(x, str) and 0 < len(x) <= MAX_TOKEN_CHARS


def _maybe_token(x: Any) -> bool:
    return x is None or _token(x)


def _maybe_id(x: Any) -> bool:
    return x is None or _id(x)


def _list(x: Any) -> bool:
    return x is None or isinstance(x, list)


def _map(x: Any) -> bool:
    if x is None:
        return True
    if not isinstance(x, dict):
        return False
    for key in x:  # noqa: SIM110 - a generator costs more than most maps
        if not isinstance(key, str):
            return False
    return True


def _trace(x: Any) -> bool:
    return x is None or isinstance(x, str)


def _int(x: Any) -> bool:
    return type(x) is int and x >= 0


def _ints(x: Any) -> bool:
    return isinstance(x, list) and all(_int(y) for y in x)


def _bool(x: Any) -> bool:
    return isinstance(x, bool)


def _any(x: Any) -> bool:
    return True


_Places = tuple[tuple[str, Any], ...]

_REQUEST_PLACES: dict[int, _Places] = {
    RequestOp.TASK: (
        ("id", _id),
        ("method", _text),
        ("args", _list),
        ("kwargs", _map),
        ("deadline_ms", _deadline),
        ("token", _maybe_token),
        ("trace", _trace),
        ("flags", _int),
        ("meta", _map),
    ),
    RequestOp.RESERVE: (
        ("id", _id),
        ("slots", _slots),
        ("ttl_ms", _ms),
        ("claim_ms", _ms),
        ("flags", _int),
        ("deadline_ms", _deadline),
        ("meta", _map),
    ),
    RequestOp.RENEW: (("id", _id), ("token", _token), ("ttl_ms", _ms)),
    RequestOp.RELEASE: (("reserve_id", _maybe_id), ("token", _maybe_token)),
    RequestOp.CANCEL: (("id", _id),),
    RequestOp.CHECK: (("id", _id), ("task_ids", _ints)),
    RequestOp.CREDIT: (("id", _id), ("items", _int)),
    RequestOp.BEGIN: (("id", _id),),
    RequestOp.ACK: (("endpoint", _text), ("job", _text), ("sequence", _int), ("rank", _int), ("attempt", _int)),
    RequestOp.STORED: (("id", _id), ("count", _int)),
}

_ANSWER_PLACES: dict[int, _Places] = {
    AnswerOp.OK: (("id", _id), ("result", _any)),
    AnswerOp.ERROR: (
        ("id", _id),
        ("code", _text),
        ("message", _text),
        ("details", _map),
        ("may_have_started", _bool),
    ),
    AnswerOp.GRANTED: (("id", _id), ("token", _token), ("fence", _int), ("ttl_ms", _ms)),
    AnswerOp.REJECTED: (("id", _id), ("reason", _text)),
    AnswerOp.RENEWED: (("id", _id), ("ttl_ms", _ms)),
    AnswerOp.CHECKED: (("id", _id), ("states", _ints)),
    AnswerOp.ITEM: (("id", _id), ("sequence", _int), ("value", _any)),
    AnswerOp.END: (("id", _id), ("count", _int)),
    AnswerOp.HELD: (("id", _id),),
}


def _is_plain_task(frame: Frame) -> bool:
    """Whether a frame of that length is a TASK of the common form; a fast yes for those, by the rules of
    `_REQUEST_PLACES`."""
    operation, id, method, args, kwargs, deadline_ms, token, trace, flags, meta = frame
    return (
        operation is _TASK
        and type(id) is int
        and 0 <= id < _MAX_ID
        and type(method) is str
        and (args is None or type(args) is list)
        and (kwargs is None or _map(kwargs))
        and (deadline_ms is None or (type(deadline_ms) is int and -_MAX_MS < deadline_ms < _MAX_MS))
        and (token is None or (type(token) is str and 0 < len(token) <= MAX_TOKEN_CHARS))
        and (trace is None or type(trace) is str)
        and type(flags) is int
        and flags >= 0
        and (meta is None or _map(meta))
    )


def _is_plain_reserve(frame: Frame) -> bool:
    """The same for RESERVE."""
    operation, id, slots, ttl_ms, claim_ms, flags, deadline_ms, meta = frame
    return (
        operation is _RESERVE
        and type(id) is int
        and 0 <= id < _MAX_ID
        and type(slots) is int
        and 0 < slots <= MAX_SLOTS
        and type(ttl_ms) is int
        and 0 < ttl_ms < _MAX_MS
        and type(claim_ms) is int
        and 0 < claim_ms < _MAX_MS
        and type(flags) is int
        and flags >= 0
        and (deadline_ms is None or (type(deadline_ms) is int and -_MAX_MS < deadline_ms < _MAX_MS))
        and (meta is None or _map(meta))
    )


def _is_plain_grant(frame: Any) -> bool:
    """The same for GRANTED."""
    if type(frame) is not list or len(frame) != 5 or frame[0] is not _GRANTED:
        return False
    _, id, token, fence, ttl_ms = frame
    return (
        type(id) is int
        and 0 <= id < _MAX_ID
        and type(token) is str
        and 0 < len(token) <= MAX_TOKEN_CHARS
        and type(fence) is int
        and fence >= 0
        and type(ttl_ms) is int
        and 0 < ttl_ms < _MAX_MS
    )


# Small integers are singletons in CPython. If they were not, this fast check would say no and the full one would
# decide.
_TASK: Final = int(RequestOp.TASK)
_TASK_PLACES: Final = len(_REQUEST_PLACES[RequestOp.TASK]) + 1
_RESERVE: Final = int(RequestOp.RESERVE)
_RESERVE_PLACES: Final = len(_REQUEST_PLACES[RequestOp.RESERVE]) + 1
_OK: Final = int(AnswerOp.OK)
_GRANTED: Final = int(AnswerOp.GRANTED)
_MAX_ID: Final = 1 << 63
_MAX_MS: Final = 1 << 40


def _check(frame: Any, places: dict[int, _Places]) -> None:
    if not isinstance(frame, list) or not frame:
        raise MalformedMessage("a frame is an array that starts with its operation")
    expected = places.get(frame[0]) if type(frame[0]) is int else None
    if expected is None:
        raise MalformedMessage(f"operation {brief(frame[0])} is not known")
    if len(frame) != len(expected) + 1:
        raise MalformedMessage(f"frame {frame[0]} has {len(frame)} places, not {len(expected) + 1}")
    for value, (name, fits) in zip(frame[1:], expected, strict=True):
        if not fits(value):
            raise MalformedMessage(f"frame {frame[0]}: {name} is {type(value).__name__} {brief(value)}")
