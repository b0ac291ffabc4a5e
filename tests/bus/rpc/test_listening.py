"""One handler on several subjects, all or none."""

from __future__ import annotations

import pytest

from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.bus.port.bus import NoResponders, NotPermitted
from gangline.bus.rpc.responder import listen


async def test_a_message_to_any_of_the_subjects_is_handled_until_the_end():
    hub, seen = MemoryServer(), []
    bus = hub.connect()
    listening = await listen(bus, ("a.*", "b"), lambda message: seen.append(message.subject))
    for subject in ("a.1", "b", "c"):
        bus.publish(subject)
    await bus.flush()
    assert seen == ["a.1", "b"]
    for _ in range(2):
        await listening.unsubscribe()
    with pytest.raises(NoResponders):
        await bus.request("b", timeout_s=1)
    assert hub.listeners("a.1") == []


async def test_a_message_goes_to_one_of_a_queue_group():
    hub, seen = MemoryServer(), []
    for name in "de":
        await listen(hub.connect(), ("a", "b"), lambda message, name=name: seen.append(name), queue="q")
    sender = hub.connect()
    for _ in range(20):
        sender.publish("b")
    await sender.flush()
    assert len(seen) == 20
    assert hub.listeners("b") == ["memory", "memory"]


async def test_nothing_is_left_of_what_is_refused_in_part(monkeypatch):
    hub = MemoryServer()
    bus, subscribe = hub.connect(), MemoryBus.subscribe

    async def refuse_b(self, subject, handler, *, queue=""):
        if subject == "b":
            raise NotPermitted("not b")
        return await subscribe(self, subject, handler, queue=queue)

    monkeypatch.setattr(MemoryBus, "subscribe", refuse_b)
    with pytest.raises(NotPermitted):
        await listen(bus, ("a", "b"), lambda message: None)
    assert hub.listeners("a") == []
