"""A console that only shows, on a server with users: the server refuses to act for its user."""

from __future__ import annotations

import logging

import pytest

from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, NotPermitted
from gangline.cli.console.options import ConnectionOptions
from gangline.schemas.names import Names, Operation, WorkerId

from ..console.conftest import ServedConsole
from ..waiting import until, until_read
from .conftest import PASSWORD, SERVERS, cut

pytestmark = pytest.mark.server
NAMES = Names()
USERS = (*SERVERS, "eye=observer", "ann=operator")


def options(site, user):
    return ConnectionOptions(server=site.server.url, user=user, password=PASSWORD, inbox_prefix=f"_INBOX.{user}")


async def test_an_observer_sees_workers_come_change_and_go(site_of, capsys, caplog):
    site, served = site_of(cut(*USERS)), ServedConsole(capsys)
    await site.everything()
    async with served.open(options(site, "eye")) as visitor:
        await visitor.sign_in(served.link())

        async def rows(table):
            return (await visitor.get("/api/board")).json["rows"][table]

        assert {row["state"] for row in (await rows("workers")).values()} == {"serving"}
        client = await site.client("router")
        async with client.lease("images", slots=1):
            await until_read(lambda: rows("slots"), lambda found: sum(each["leased"] for each in found.values()) == 1)
        await until_read(lambda: rows("leases"), lambda found: not found)
        assert (await visitor.get("/api/worker?name=images.w1")).json["worker"] == "w1"
        operator = await site.client("operator")
        await operator.drain("images.w2")
        await until_read(lambda: rows("workers"), lambda found: "images.w2" not in found)
        for path in ("/api/jobs", "/api/schedules", "/api/dead", "/api/history"):
            answer = await visitor.get(path)
            assert answer.status == 200, (path, answer.body)
        audit = await visitor.get("/api/audit")
        assert audit.status == 200, audit.body
        await operator.set_route("later", {"to": {"images": 1}, "queue": {"paused": True}})
        await operator.submit("later.double", 1)

        async def listed():  # by the dispatcher, which says what runs
            page = (await visitor.get("/api/jobs")).json
            return len(page["jobs"]) == 1 and not page["unanswered"]

        await until(listed)
    # It tries to watch, and may not: nobody need look into that.
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_console_cannot_act_even_with_its_credentials_in_hand(site_of, capsys):
    """Whoever breaks into a console that only shows has the user `observer`."""
    site, served = site_of(cut(*USERS)), ServedConsole(capsys)
    await site.everything()
    connection = options(site, "eye")
    async with served.open(connection) as visitor:
        await visitor.sign_in(served.link())
        assert "images.w1" in (await visitor.get("/api/board")).json["rows"]["workers"]
    bus = await connect_bus(connection.settings(), name="intruder")
    worker = WorkerId("images", "w1")
    for operation in (Operation.DRAIN, Operation.RESIZE, Operation.RESERVE, Operation.DISPATCH, Operation.RELEASE):
        with pytest.raises(NotPermitted):
            for _ in range(3):  # the first one is lost silently
                bus.publish(NAMES.worker(worker, operation), b"{}")
                await bus.flush()
    ledger = await bus.bucket(NAMES.ledger_bucket, BucketSettings(), make=False)
    with pytest.raises(NotPermitted):
        await ledger.delete(NAMES.registration_key(worker))
    await bus.close()


async def test_with_a_user_of_its_own_for_actions_it_acts_and_the_audit_trail_says_who_and_why(site_of, capsys):
    site, served = site_of(cut(*USERS)), ServedConsole(capsys)
    await site.everything()
    async with served.open(options(site, "eye"), operator=options(site, "ann"), actions="resize") as visitor:
        await visitor.sign_in(served.link())
        answer = await visitor.act("resize", target="images.w1", slots=1, reason="too warm")
        assert answer.status == 200 and answer.json["slots"] == 1, answer.body
        entries = (await visitor.get("/api/audit")).json["entries"]
        assert [(entry["user"], entry["action"], entry["target"], entry["stage"]) for entry in entries] == [
            ("ann", "resize", "images.w1", "begun"),
            ("ann", "resize", "images.w1", "done"),
        ]
        assert "too warm" in entries[0]["reason"] and "console" in entries[0]["reason"]
