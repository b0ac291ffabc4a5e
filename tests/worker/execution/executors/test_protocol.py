"""Messages between a worker and its children survive every way of cutting the byte stream."""

from __future__ import annotations

import socket
import threading
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.schemas.wire import codec
from gangline.worker.execution.executors.processes.child_main import _Child
from gangline.worker.execution.executors.processes.protocol import (
    Close,
    GrantCredit,
    Splitter,
    StartTask,
    ToChild,
    ToWorker,
    messages_for_child,
    pack_for_child,
    pack_for_worker,
)

from ....scale import repetitions

_places = st.lists(st.none() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary(max_size=300), max_size=4)


@given(messages=st.lists(_places, max_size=6), cuts=st.lists(st.integers(1, 200), min_size=1))
@settings(max_examples=repetitions(2, whole=settings().max_examples // 2))
def test_bodies_come_out_whole_however_the_bytes_arrive(messages, cuts):
    data = b"".join(pack_for_worker(ToWorker.ITEM, *places) for places in messages)
    splitter = Splitter()
    received: list[object] = []
    while data:
        for cut in cuts:
            received.extend(codec.unpack(body) for body in splitter.feed(data[:cut]))
            data = data[cut:]
    assert received == [[ToWorker.ITEM.value, *places] for places in messages]


def test_a_child_reads_orders_until_the_worker_is_gone():
    ours, theirs = socket.socketpair()
    start = StartTask(
        method="m",
        args=[1 << 70, b"\x00" * 300_000],
        kwargs=None,
        json=True,
        context={"id": "1"},
        remaining_s=None,
        streams=False,
        window=1,
    )
    orders: list[ToChild] = [start, GrantCredit(3), Close()]

    def send() -> None:
        for order in orders:
            ours.sendall(pack_for_child(order))
        ours.close()

    sender = threading.Thread(target=send)
    sender.start()
    assert list(messages_for_child(theirs)) == orders
    sender.join()
    theirs.close()
    assert list(messages_for_child(theirs)) == []


def test_what_is_logged_while_something_is_sent_does_not_lock_the_child_up() -> None:
    """The garbage collector may run there, and what it collects may have something to say, as asyncio's tasks do."""

    class Collecting:
        sent = 0

        def sendall(self, _message: bytes) -> None:
            self.sent += 1
            if self.sent == 1:
                child.log({"msg": "Task was destroyed but it is pending!"})

    sock = Collecting()
    child = _Child(cast(socket.socket, sock))
    sender = threading.Thread(target=child.report, args=(1,), daemon=True)
    sender.start()
    sender.join(5)
    child._loop.close()
    assert sock.sent == 2
