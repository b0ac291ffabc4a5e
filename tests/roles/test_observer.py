"""An observer on a real server: every command that reads works, and the server refuses every action."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from gangline.board.feed import BoardFeed, following
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, NotPermitted
from gangline.cli.app import gangline
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gangs.gang import Gang
from gangline.dispatcher.leases.lease import Lease
from gangline.schemas.names import GangOperation, Names, Operation, QueueOperation, public_id
from gangline.schemas.records.workers import LeaseRecord

from ..bus.conftest import collect
from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, SERVERS, Site, cut

pytestmark = pytest.mark.server
USERS = (*SERVERS, "eye=observer", "billing=producer:images", "busy=router+producer")
NAMES = Names()


@dataclass
class Busy:
    """A system in which there is something to see."""

    site: Site
    lease: Lease
    gang: Gang
    job: str
    later: str
    """A job that the server holds back."""
    dead: str

    @property
    def secrets(self) -> set[str]:
        return {self.lease.token, *(member.token for member in self.gang.members)}

    def run(self, *arguments: str, user: str = "eye") -> Result:
        """A command as that user."""
        how = ("--server", self.site.server.url, "--user", user, "--password", PASSWORD)
        return CliRunner().invoke(gangline, [*arguments, *how, "--inbox-prefix", f"_INBOX.{user}"])


@asynccontextmanager
async def busy_system(site: Site) -> AsyncIterator[Busy]:
    await site.everything()
    client: Client = await site.client("busy")
    operator = await site.client("operator")
    await operator.set_route("pictures", {"to": {"images": 1}})
    done = await client.submit("images.double", 4)
    await done.result(PATIENCE_S)
    later = await client.options(delay_s=3600).submit("images.double", 1)
    failing = await client.options(max_attempts=1).submit("images.fail")
    await until(operator.dead_letters)
    async with (
        client.lease("images", slots=1, ttl_s=60, ledger="sync") as lease,
        client.gang(pool="images", size=2, ttl_s=60) as gang,
    ):
        busy = Busy(site, lease, gang, done.id, later.id, failing.id)
        resized = await asyncio.to_thread(busy.run, "resize", "images.w2", "4", user="operator")
        assert resized.exit_code == 0, resized.output
        yield busy


READING = [
    ("workers", "images.w1"),
    ("workers --json", '"pool": "images"'),
    ("leases", "LEASE_ID"),
    ("leases --gangs --json", "LEASE_ID"),
    ("stats images.w1", "serving"),
    ("gang ls", "GANG"),
    ("gang ls --json", "GANG"),
    ("gang show GANG", "GANG"),
    ("gangset ls", "no sets"),
    ("why GANG", "GANG"),
    ("queue ls", "images"),
    ("queue ls --json", '"endpoint": "images"'),
    ("status JOB", "done"),
    ("result JOB", "8"),
    ("why JOB", "done"),
    ("dead ls", "DEAD"),
    ("dead show DEAD", "DEAD"),
    ("route ls", "pictures"),
    ("audit", "resize"),
    ("health --worker images.w1", "images w1"),
]


async def test_every_command_that_reads_works_for_an_observer_and_shows_no_token(site_of):
    async with busy_system(site_of(cut(*USERS))) as busy:
        names = {"GANG": busy.gang.id, "JOB": busy.job, "DEAD": busy.dead, "LEASE_ID": public_id(busy.lease.token)}

        def filled(text: str) -> str:
            for name, value in names.items():
                text = text.replace(name, value)
            return text

        for line, expected in READING:
            done = await asyncio.to_thread(busy.run, *filled(line).split())
            assert (line, done.exit_code) == (line, 0), done.output + done.stderr
            assert filled(expected) in done.output, (line, done.output)
            assert not [secret for secret in busy.secrets if secret in done.output], line
        # Dead letters are read one by one after the server has refused a consumer.
        assert {
            line for line in await busy.site.refused() if "CONSUMER." not in line or "GANGLINE_DEAD" not in line
        } == set()


ACTIONS = [
    "call images.double [1]", "submit images.double [1]", "cancel LATER", "drain images.w1", "resize images.w1 9",
    "gang rm GANG --force", "route set images --to images=1", "route rm pictures", "dead replay DEAD", "dead rm DEAD",
]  # fmt: skip


async def test_the_server_refuses_every_command_that_acts(site_of):
    async with busy_system(site_of(cut(*USERS))) as busy:
        client = await busy.site.client("operator")
        workers = await client.workers()
        for line in ACTIONS:
            words = line.replace("LATER", busy.later).replace("GANG", busy.gang.id).replace("DEAD", busy.dead).split()
            done = await asyncio.to_thread(busy.run, *words)
            assert done.exit_code not in (0, 2), (line, done.output)
            assert "the nats-server forbids this user to" in done.stderr, (line, done.stderr)
        eye = await busy.site.client("eye")
        with pytest.raises(NotPermitted):
            async with eye.gang(pool="images", size=1):
                pass
        with pytest.raises(NotPermitted):
            async with eye.lease("images"):
                pass
        after = await client.workers()
        assert [worker.registration for worker in after] == [worker.registration for worker in workers]
        assert list(await client.routes()) == ["pictures"]
        assert [letter.job for letter in await client.dead_letters()] == [busy.dead]
        assert await busy.gang.run("double", n=1) == [2, 2]


READ = {
    *(f"gangline.gang.{each}" for each in (GangOperation.GET, GangOperation.LIST, GangOperation.WHY)),
    *(f"gangline.queue.images.{each}" for each in (QueueOperation.GET, QueueOperation.STATS, QueueOperation.WHY)),
    "gangline.worker.images.w1.stats",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.KV_GANGLINE_LEDGER",
    "$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER",
    "$SRV.INFO.gangline-worker",
}
TARGETS = {
    *(f"gangline.worker.images.w2.{each}" for each in Operation),
    *(f"gangline.gang.{each}" for each in GangOperation),
    *(f"gangline.queue.images.{each}" for each in QueueOperation),
    "$JS.API.STREAM.PURGE.GANGLINE_TASKS",
    "$JS.API.STREAM.DELETE.GANGLINE_DEAD",
    "$JS.API.STREAM.CREATE.OTHER",
}


async def test_answers_that_an_observer_sends_elsewhere_do_nothing(site_of):
    """The server does not check reply subjects, so an observer can have an answer sent anywhere. None is taken for
    a request: nothing is drained, released, run or deleted."""
    async with busy_system(site_of(cut(*USERS))) as busy:
        eye: NatsBus = await busy.site.bus("eye")
        operator = await busy.site.client("operator")
        arrived = collect()
        watcher = await busy.site.bus("operator")
        await watcher.subscribe("gangline.worker.images.w2.drain", arrived)
        await watcher.flush()
        questions = {
            "gangline.gang.get": {"id": busy.gang.id},
            "gangline.gang.why": {"id": busy.gang.id},
            "gangline.queue.images.get": {"job": busy.job},
            "gangline.queue.images.why": {"job": busy.job},
            "$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER": {"last_by_subj": f"$KV.GANGLINE_LEDGER.gang.{busy.gang.id}"},
        }
        for subject, target in itertools.product(sorted(READ), sorted(TARGETS)):
            for body in {b"", b"{}", json.dumps(questions.get(subject, {})).encode()}:
                eye.publish(subject, body, reply=target)
        await eye.flush()
        await arrived.count(1)  # JetStream's answers do arrive
        stats = await operator.stats("images.w2")
        assert not stats.load.draining and stats.load.total == 4
        assert await busy.gang.run("double", n=1) == [2, 2]
        assert await busy.lease.call("double", n=4) == 8
        streams = json.loads((await watcher.request("$JS.API.STREAM.NAMES", timeout_s=PATIENCE_S)).data)["streams"]
        assert "GANGLINE_DEAD" in streams and "OTHER" not in streams
        assert [letter.job for letter in await operator.dead_letters()] == [busy.dead]


async def test_an_observer_sees_keys_come_and_go_without_a_consumer(site_of):
    site: Site = site_of(cut("operator", "eye=observer"))
    operator, eye = await site.bus("operator"), await site.client("eye")
    ledger = await operator.bucket(NAMES.ledger_bucket, BucketSettings())
    record = LeaseRecord(
        pool="p", worker="w", epoch=1, token="~a", slots=1, fence=1, single_use=False, granted_at=1.0, expires_at=2.0
    )

    async def lease(id: str, slots: int) -> None:
        told = record.model_copy(update={"token": f"~{id}", "slots": slots})
        await ledger.put(f"lease.p.w.{id}", told.model_dump_json().encode())

    def told() -> dict[str, object]:
        return {id: row["slots"] for id, row in feed.board.rows["leases"].items()}

    await lease("before", 1)
    feed = BoardFeed(eye, ("ledger",), keys=NAMES.leases_of("p"), take_s=0)
    async with following(feed):
        assert told() == {"~before": 1}
        await lease("later", 2)
        await until(lambda: told() == {"~before": 1, "~later": 2})
        await lease("later", 3)
        await until(lambda: told() == {"~before": 1, "~later": 3})
        await ledger.delete("lease.p.w.later")
        await until(lambda: told() == {"~before": 1})
    kept = await (await site.bus("eye")).bucket(NAMES.ledger_bucket, BucketSettings())
    with pytest.raises(NotPermitted):
        await kept.put("gang.mine", b"")
