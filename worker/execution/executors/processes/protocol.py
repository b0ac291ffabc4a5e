"""The protocol between a worker and its child processes, over a socket pair.

A message is its length in four bytes and then its body: pickle towards the child (arguments as they came from the wire,
including numbers that msgpack cannot encode), msgpack towards the worker (only plain wire values come back).
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from .....schemas.wire import codec

_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 16


class ToWorker(IntEnum):
    """First element of a message from the child."""

    READY = 0
    """`[0]`: everything is imported and the lifespans are open."""
    DONE = 1
    """`[1, value, items | nil, [code, message, details, may_have_started] | nil]`"""
    ITEM = 2
    """`[2, sequence, value]`"""
    LOG = 3
    """`[3, fields of a log record]`"""
    MODELS = 4
    """`[4, [ids]]`: what is loaded now."""
    BROKEN = 5
    """`[5, text]`: it cannot serve; it exits next."""
    GANG = 6
    """`[6, number, GangCall, value, root]`: the running task calls its gang; answered by GangAnswer."""
    PROGRESS = 7
    """`[7, value]`: progress of the running task."""


class GangCall(StrEnum):
    """Calls that a task can make on its gang."""

    BARRIER = "barrier"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The first message to a child."""

    pool: str
    functions: tuple[tuple[str, str], ...]
    """Module and qualified name of every task that runs in children."""
    max_collected_bytes: int
    log_level: int
    limits: tuple[float, float, float]
    """The fields of HookLimits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """Run one task. A child runs one at a time."""

    method: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    json: bool
    context: dict[str, Any]
    """TaskContext's fields except the clock and the deadline; `gang` is a GangContext or None."""
    remaining_s: float | None
    """Until the deadline, for `current_task().remaining_s()`; the worker kills the child when it has passed."""
    streams: bool
    window: int


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """The reader has room for this many more items."""

    items: int


@dataclass(frozen=True, slots=True)
class Close:
    """Leave the lifespans and exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangAnswer:
    """The outcome of the task's call on its gang."""

    number: int
    value: Any = None
    error: tuple[str, str, dict[str, Any] | None, bool] | None = None
    """As GanglineError travels: code, message, details, may_have_started."""


ToChild = Open | StartTask | GrantCredit | Close | GangAnswer


def pack_for_child(message: ToChild) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def pack_for_worker(kind: ToWorker, *places: Any) -> bytes:
    body = codec.pack((kind.value, *places))
    return _LENGTH.pack(len(body)) + body


class Splitter:
    """Splits a byte stream into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete now."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]


def messages_for_child(sock: socket.socket) -> Iterator[ToChild]:
    """Every message as it arrives. Blocks; ends when the worker is gone."""
    splitter = Splitter()
    while True:
        try:
            data = sock.recv(_READ_BYTES)
        except OSError:
            return
        if not data:
            return
        for body in splitter.feed(data):
            # From a worker to its own child, over a socket pair.
            yield pickle.loads(body)  # nosec B301
