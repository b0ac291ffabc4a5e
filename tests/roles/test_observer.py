"""An observer on a real server: every command that reads works, and the server refuses every action."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner, Result

from gangline.board.feed import BoardFeed, following
from gangline.bus.port.bus import BucketSettings, NotPermitted
from gangline.cli.app import gangline
from gangline.schemas.names import Names, public_id
from gangline.schemas.records.workers import LeaseRecord

from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, SERVERS, Site, cut

pytestmark = pytest.mark.server
USERS = (*SERVERS, "eye=observer", "billing=producer:images", "busy=router+producer")
NAMES = Names()


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
    site: Site = site_of(cut(*USERS))

    def run(line: str, user: str = "eye") -> Result:
        how = ("--server", site.server.url, "--user", user, "--password", PASSWORD)
        return CliRunner().invoke(gangline, [*line.split(), *how, "--inbox-prefix", f"_INBOX.{user}"])

    await site.everything()
    client, operator = await site.client("busy"), await site.client("operator")
    await operator.set_route("pictures", {"to": {"images": 1}})
    done = await client.submit("images.double", 4)
    await done.result(PATIENCE_S)
    dead = await client.options(max_attempts=1).submit("images.fail")
    await until(operator.dead_letters)
    async with (
        client.lease("images", slots=1, ttl_s=60, ledger="sync") as lease,
        client.gang(pool="images", size=2, ttl_s=60) as gang,
    ):
        resized = await asyncio.to_thread(run, "resize images.w2 4", user="operator")
        assert resized.exit_code == 0, resized.output
        names = {"GANG": gang.id, "JOB": done.id, "DEAD": dead.id, "LEASE_ID": public_id(lease.token)}
        secrets = {lease.token, *(member.token for member in gang.members)}

        def filled(text: str) -> str:
            for name, value in names.items():
                text = text.replace(name, value)
            return text

        for line, expected in READING:
            told = await asyncio.to_thread(run, filled(line))
            assert (line, told.exit_code) == (line, 0), told.output + told.stderr
            assert filled(expected) in told.output, (line, told.output)
            assert not [secret for secret in secrets if secret in told.output], line
    # Dead letters are read one by one after the server has refused a consumer.
    assert {line for line in await site.refused() if "CONSUMER." not in line or "GANGLINE_DEAD" not in line} == set()


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
