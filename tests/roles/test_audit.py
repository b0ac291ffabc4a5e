"""The audit trail on a server with users: each operator writes in its own name, and nobody changes what is written."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NotPermitted
from gangline.cli.app import gangline
from gangline.dispatcher.client.audit import AuditTrail
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.schemas.names import Names

from ..waiting import until
from .conftest import PASSWORD, SERVERS, Site, cut

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


async def test_who_may_not_act_does_not_wait_for_a_trail_that_nobody_has_made(site_of):
    site: Site = site_of(cut("alice=operator", "eye=observer"))
    with pytest.raises(NotPermitted, match="drain"):
        async with trail_of(await site.bus("eye")).noted("drain", "images.w1"):
            raise NotPermitted("drain")
    refused = {line.partition("Publish Violation")[2] for line in await site.refused()}
    assert refused == {' - Subject "gangline-audit.eye"'}
    async with trail_of(await site.bus("alice")).noted("drain", "images.w1"):
        pass
    assert len(await trail_of(await site.bus("eye")).entries()) == 2


async def test_the_server_says_which_operator_cancelled_a_task_and_a_producer_records_nothing(site_of, caplog):
    site: Site = site_of(cut(*SERVERS, "alice=operator", "billing=producer"))
    billing = await site.client("billing")
    await site.dispatcher()
    worker = await site.worker("w1")

    def cancel(user: str, job: str, *more: str) -> str:
        how = ["--server", site.server.url, "--user", user, "--password", PASSWORD, "--inbox-prefix", f"_INBOX.{user}"]
        done = CliRunner().invoke(gangline, ["cancel", job, *more, *how])
        assert done.exit_code == 0, done.output
        return done.output

    async def trail() -> list[tuple[str, str, str, str, str]]:
        entries = await trail_of(await site.bus("alice")).entries()
        return [
            (entry.user, entry.record.action, entry.record.target, entry.record.reason, entry.record.stage.value)
            for entry in entries
        ]

    first, second, third = [await billing.submit("images.wait") for _ in range(3)]
    await until(
        lambda: worker.statistics().load.running == 3
    )  # a dispatcher has the queue: without one, only operators may cancel
    await asyncio.to_thread(cancel, "alice", first.id, "--reason", "runs away")
    recorded = [("alice", "cancel", first.id, "runs away", stage) for stage in ("begun", "done")]
    assert await trail() == recorded
    await asyncio.to_thread(cancel, "billing", second.id)
    assert await site.refused() == [], "a producer that gives no reason does not even try to record it"
    await asyncio.to_thread(cancel, "billing", third.id, "--reason", "mine")
    assert f"cancel {third.id} was not recorded" in caplog.text
    assert await trail() == recorded
    assert [(await each.status()).state.value for each in (first, second, third)] == ["cancelled"] * 3
