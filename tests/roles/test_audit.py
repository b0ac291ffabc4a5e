"""The audit trail on a server with users: each operator writes in its own name, and nobody changes what is written."""

from __future__ import annotations

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NotPermitted
from gangline.dispatcher.client.audit import AuditTrail
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.schemas.names import Names

from .conftest import Site, cut

pytestmark = pytest.mark.server


def streams_of(bus: NatsBus) -> TaskStreams:
    return TaskStreams(bus, Names())


def trail_of(bus: NatsBus) -> AuditTrail:
    return AuditTrail(bus, Names(), streams_of(bus))


async def test_operators_read_what_all_did_and_write_in_their_own_names(site_of):
    site: Site = site_of(cut("alice=operator", "bob=operator", "router"))
    alice, bob = await site.bus("alice"), await site.bus("bob")
    for bus, target in ((alice, "images.w1"), (bob, "images.w2")):
        async with trail_of(bus).noted("drain", target, "new kernel"):
            pass
    entries = await trail_of(alice).entries()
    assert [(entry.user, entry.record.target) for entry in entries] == [("alice", "images.w1")] * 2 + [
        ("bob", "images.w2")
    ] * 2
    assert len(await trail_of(bob).entries(user="alice")) == 2
    assert await site.refused() == []
    stream = await streams_of(bob).audit()
    with pytest.raises(NotPermitted):
        await stream.publish(Names().audit("alice"), b"{}")
    with pytest.raises(NotPermitted):
        await stream.purge(Names().audit("alice"))
    with pytest.raises(NotPermitted):
        await stream.delete(1)
    with pytest.raises(NotPermitted):
        await trail_of(await site.bus("router")).entries()
    assert len(await trail_of(alice).entries()) == 4
