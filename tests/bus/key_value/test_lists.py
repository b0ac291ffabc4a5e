"""Lists of a bucket whose server ends them in some way. What a real server lists is in `test_port_buckets.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gangline.bus.key_value.snapshot import snapshot
from gangline.bus.port.bus import ConnectionEvent, Handler, Message, StorageUnavailable
from gangline.schemas.errors.base import GanglineError


class Server:
    """A bucket and its bus: answers a list with these messages."""

    name = "bucket"
    stream = "KV_bucket"
    prefix = "$KV.bucket."
    timeout_s = 5.0

    def __init__(self, answers: list[Message]) -> None:
        self.bus = self.api = self
        self.answers = answers
        self.take: Handler

    def open_stream(self, take: Handler, subject: str, on_refused: Callable[[GanglineError], None]) -> str:
        self.take = take
        return "reply"

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        return lambda: None

    def publish(self, subject: str, data: bytes, *, reply: str) -> None:
        for answer in self.answers:
            self.take(answer)

    def close_stream(self, reply: str) -> None:
        pass


def key(name: str, revision: int) -> Message:
    headers = {"Nats-Subject": f"$KV.bucket.{name}", "Nats-Sequence": str(revision)}
    return Message("reply", b"value", headers=headers)


def end(status: str, description: str) -> Message:
    return Message("reply", b"", headers={"Status": status, "Description": description})


async def test_a_list_that_the_server_breaks_off_is_not_taken_for_a_whole_one() -> None:
    server = Server([key("a", 1), end("404", "Message Not Found")])
    with pytest.raises(StorageUnavailable, match="404 Message Not Found.*try again") as caught:
        await snapshot(server, (">",))  # type: ignore[arg-type]
    assert not caught.value.may_have_started


async def test_a_list_without_results_is_an_empty_one() -> None:
    assert await snapshot(Server([end("404", "No Results")]), (">",)) == []  # type: ignore[arg-type]


async def test_a_list_ends_when_nothing_is_pending() -> None:
    whole = Message("reply", b"", headers={"Status": "204", "Description": "EOB", "Nats-Num-Pending": "0"})
    assert [entry.key for entry in await snapshot(Server([key("a", 1), whole]), (">",))] == ["a"]  # type: ignore[arg-type]
