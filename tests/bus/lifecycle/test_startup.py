"""A start that waits for storage: how often it tries, and when it gives up."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.lifecycle import RETRY_S, StartPatience
from gangline.bus.port.bus import NotPermitted, StorageUnavailable
from gangline.telemetry.logs import logger_for

LOG = logger_for("test")


class Storage:
    """Answers `until_s` after it was made; who asks before waits for `answers_s` in vain."""

    def __init__(self, until_s: float, answers_s: float = 5.0) -> None:
        self.tries: list[float] = []
        self._began = asyncio.get_running_loop().time()
        self._until_s = until_s
        self._answers_s = answers_s

    async def ask(self) -> str:
        now = asyncio.get_running_loop().time() - self._began
        self.tries.append(now)
        if now < self._until_s:
            await asyncio.sleep(self._answers_s)
            raise StorageUnavailable("JetStream did not answer in time")
        return "answer"


async def test_a_start_goes_on_as_soon_as_storage_answers():
    storage = Storage(7.0)
    assert await StartPatience(15.0, LOG)(storage.ask) == "answer"
    assert storage.tries == [0.0, 5.0 + RETRY_S, 10.0 + 2 * RETRY_S]


async def test_a_try_that_asked_while_nobody_led_is_not_the_last():
    storage = Storage(11.0)
    patiently = StartPatience(15.0, LOG)
    await asyncio.sleep(10.9)  # what earlier steps have taken
    assert await patiently(storage.ask) == "answer"
    assert len(storage.tries) == 2


@pytest.mark.parametrize(("timeout_s", "tries"), [(0.0, 1), (4.0, 2), (15.0, 4)])
async def test_a_start_gives_up_after_one_try_that_began_when_its_time_was_over(timeout_s, tries):
    storage = Storage(1000.0)
    with pytest.raises(StorageUnavailable):
        await StartPatience(timeout_s, LOG)(storage.ask)
    assert len(storage.tries) == tries


async def test_what_no_wait_can_mend_comes_at_once():
    async def forbidden() -> None:
        tries.append(1)
        raise NotPermitted("no")

    tries: list[int] = []
    with pytest.raises(NotPermitted):
        await StartPatience(15.0, LOG)(forbidden)
    assert tries == [1]
