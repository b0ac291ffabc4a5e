"""What a publication says about being stored, whatever the server answers and in whichever order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping

import pytest

from gangline.bus.jetstream.api import StorageShortage
from gangline.bus.jetstream.publisher import Publisher
from gangline.bus.port.bus import Message, NoResponders, PublishRefused, StorageUnavailable
from gangline.schemas.wire import headers

from ...scale import repetitions
from ...support.rows import in_rows

IN_PROCESS = {"error": {"code": 400, "err_code": 10158, "description": "duplicate message id is in process"}}
BAD_SCHEDULE = {"error": {"code": 400, "err_code": 10189, "description": "message schedule pattern is invalid"}}
NO_LEADER = {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}


class Server:
    """A stream in a cluster. What it was sent may be under way between its members for a while; then it refuses the
    same id, and in the end stores the message or loses it."""

    timeout_s = 5.0
    connected = True
    exists = True
    only_read = False

    def __init__(self, chance: random.Random, *, refuses: bool) -> None:
        self.api = self
        self.shortage = StorageShortage()
        self.chance = chance
        self.refuses = refuses
        self.stored = False
        self.under_way = False
        self._replies = 0

    # -- as the bus -----------------------------------------------------------------------------------------------

    def start_request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> tuple[str, asyncio.Future[Message]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        answer = self._answer()
        if answer is not None:
            loop.call_later(self.chance.uniform(0, 1), self._deliver, future, answer)
        self._replies += 1
        return str(self._replies), future

    def forget_request(self, reply: str) -> None:
        pass

    async def ensure(self) -> None:
        pass

    async def restore(self, timeout_s: float) -> bool:
        return False

    # -- inside ---------------------------------------------------------------------------------------------------

    def _answer(self) -> dict[str, object] | Exception | None:
        how = self.chance.random()
        if how < 0.15:
            return NoResponders("nobody")
        if how < 0.25:
            return NO_LEADER
        if self.stored:
            return {"stream": "S", "seq": 1, "duplicate": True}
        if self.under_way:
            return IN_PROCESS
        if self.refuses:
            return BAD_SCHEDULE
        if how < 0.5:
            self.under_way = True  # lost between its members for now: no answer
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 20), self._decide)
            return None
        if how < 0.6:
            return None  # never received
        self.stored = True
        return {"stream": "S", "seq": 1}

    def _decide(self) -> None:
        self.under_way = False
        self.stored = self.chance.random() < 0.5

    @staticmethod
    def _deliver(future: asyncio.Future[Message], answer: dict[str, object] | Exception) -> None:
        if future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(Message("reply", json.dumps(answer).encode()))


def _try(server: Server) -> Callable[[], asyncio.Future[object]]:
    publisher = Publisher(server, "S", server, ("t.>",))  # type: ignore[arg-type]
    return lambda: asyncio.ensure_future(publisher.publish("t.x", b"", {"Nats-Msg-Id": "1"}, None))


@in_rows("seed", range(repetitions(20, whole=300)))
async def test_who_is_told_that_nothing_was_stored_is_told_the_truth(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(chance, refuses=chance.random() < 0.3)
    attempt = _try(server)
    doubt = False
    for _ in range(4):
        began_stored = server.stored or server.under_way
        try:
            await attempt()
            assert server.stored
            return
        except PublishRefused:
            assert server.refuses and not server.stored, "the server may store it, and never said that it would not"
            return
        except StorageUnavailable as error:
            doubt = doubt or error.may_have_started
            if not error.may_have_started and not began_stored:
                await asyncio.sleep(30)
                assert not server.stored, "its publisher was told that nothing was stored"
    await asyncio.sleep(30)
    assert doubt or not server.stored


class _Answers:
    """A stream that gives these answers, one to each publication; None: no answer, and the stream is found to be gone
    and made again."""

    timeout_s = 30.0
    connected = True
    exists = True
    only_read = False

    def __init__(self, *answers: dict[str, object] | Exception | None) -> None:
        self.api = self
        self.shortage = StorageShortage()
        self._answers = [*answers]
        self.published: list[Mapping[str, str]] = []

    def start_request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> tuple[str, asyncio.Future[Message]]:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.published.append(headers or {})
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(Message("reply", json.dumps(answer).encode()))
        return "1", future

    def forget_request(self, reply: str) -> None:
        pass

    async def ensure(self) -> None:
        pass

    async def restore(self, timeout_s: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (None, False),
        (IN_PROCESS, False),
        (NoResponders("nobody"), True),  # it cannot have been stored
    ],
    ids=["no answer, and the stream is gone", "in process", "no responders"],
)
async def test_a_message_that_may_have_been_stored_is_not_called_the_first_when_it_is_sent_again(
    before: dict[str, object] | Exception | None, told: bool
) -> None:
    """It may have been stored, have run and been removed; with the mark, nobody would look for its result."""
    server = _Answers(before, {"stream": "S", "seq": 1})
    publisher = Publisher(server, "S", server, ("t.>",))  # type: ignore[arg-type]
    fields = {"Nats-Msg-Id": "1", headers.FIRST: "true"}
    assert (await publisher.publish("t.x", b"", fields, None)).sequence == 1
    assert [headers.FIRST in each for each in server.published] == [True, told]
    assert [each["Nats-Msg-Id"] for each in server.published] == ["1", "1"]
