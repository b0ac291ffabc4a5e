"""How a worker shows itself in the ledger, and leaves."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from gangline.bus.port.bus import Message
from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskFlag

from ..waiting import PATIENCE_S, until, until_nobody_responds
from .conftest import Launch, Refusal, Router, Subject, task

pytestmark = [pytest.mark.server, pytest.mark.processes]


async def test_it_registers_what_it_serves(subject: Subject):
    registration = await subject.registration()
    assert (registration.pool, registration.worker, registration.slots) == ("shop", "w1", 2)
    assert registration.state == "serving"
    assert set(registration.methods) == {"count", "pause", "fail", "upto"}
    assert registration.methods["count"].idempotent and not registration.methods["pause"].idempotent
    assert registration.methods["upto"].streams
    assert registration.epoch > 1_700_000_000_000 and registration.instance


async def test_its_heartbeat_goes_on_and_tells_the_load(subject: Subject, router: Router):
    router.send(task(1, "pause", 600.0))

    async def busy() -> bool:
        return (await subject.heartbeat()).running == 1

    await until(busy, pause_s=0.1)
    beat = await subject.heartbeat()
    assert (beat.total, beat.draining) == (2, False)
    assert beat.epoch == (await subject.registration()).epoch


async def test_its_heartbeat_expires_when_it_is_killed(subject: Subject):
    subject.process.kill()

    async def gone() -> bool:
        return await subject.ledger.get(subject.names.alive_key(subject.id)) is None

    await until(gone, pause_s=0.1)


async def test_a_second_process_with_its_id_is_refused(subject: Subject, launch: Launch, tmp_path):
    with (tmp_path / "printed").open("w") as printed:
        second = launch("w1", stdout=printed)
        assert await asyncio.to_thread(second.wait, PATIENCE_S) != 0
    assert "another id" in (tmp_path / "printed").read_text()
    assert (await subject.request("stats"))["worker"] == "w1"


async def test_it_drains_at_sigterm_finishes_and_takes_its_keys_away(subject: Subject, router: Router):
    router.send(task(1, "upto", 2, flags=TaskFlag.STREAM, window=1))  # it ends when it was given credit
    await router.answer(1, AnswerOp.ITEM)
    subject.process.send_signal(signal.SIGTERM)
    await until(subject.draining)
    assert (await router.ask(task(2, "count", "a b")))[2] == "draining"
    router.send((RequestOp.CREDIT, 1, 1))
    assert (await router.answer(1, AnswerOp.ITEM))[3] == 1
    assert await router.answer(1) == [AnswerOp.END, 1, 2]
    assert await subject.exit_code() == 0
    assert await subject.ledger.get(subject.names.registration_key(subject.id)) is None
    assert await subject.ledger.get(subject.names.alive_key(subject.id)) is None


async def test_an_operator_drains_it_and_a_task_over_the_grace_is_cancelled(subject: Subject, router: Router):
    router.send(task(1, "pause", 60.0))
    await until(subject.running)
    assert (await subject.request("drain", {"grace_s": 0.2}))["draining"] is True
    assert (await router.answer(1))[2] == "task_cancelled"
    assert await subject.exit_code() == 0
    await until_nobody_responds(lambda: subject.request("stats", timeout_s=1))


async def test_it_is_a_nats_service(subject: Subject):
    found: list[dict[str, str]] = []  # the server is shared: other tests' workers may answer as well
    inbox = f"{subject.bus.inbox}.services"

    def heard(message: Message) -> None:
        if message.data:  # else nobody listens yet
            found.append(json.loads(message.data)["metadata"])

    await subject.bus.subscribe(inbox, heard)

    async def answered() -> bool:
        subject.bus.publish("$SRV.INFO.gangline-worker", b"", reply=inbox)
        await subject.bus.flush()
        return any((each.get("pool"), each.get("worker")) == ("shop", "w1") for each in found)

    await until(answered)


async def test_it_can_be_resized_live(subject: Subject):
    assert (await subject.request("resize", {"slots": 1}))["slots"] == 1
    router = await subject.router()
    router.send(task(1, "pause", 60.0))
    assert (await router.ask(task(2, "count", "a")))[2] == "full"
    await subject.request("resize", {"slots": 2})
    assert (await router.ask(task(3, "count", "a b")))[2] == 2
    with pytest.raises(Refusal) as caught:
        await subject.request("resize", {"slots": -1})
    assert caught.value.code == "invalid_request"
