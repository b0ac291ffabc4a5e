"""What the console answers and streams, on a real server; and the files that it serves."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from gangline.board.board_core import Delta, Rows, apply
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.options import ConnectionOptions
from gangline.console.app import STATIC
from gangline.console.letters import cause, groups
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.dead_letters import DeadLetter
from gangline.schemas.names import Names
from gangline.schemas.records.jobs import JobFailure
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ..waiting import until
from .conftest import event

POOL = Pool("words", slots=4)


@POOL.task
async def wait() -> None:
    await asyncio.Event().wait()


@POOL.task
async def fail(number: int) -> None:
    raise ValueError(f"cannot read line {number} of 'secret.txt'")


@pytest.fixture
def options(nats_url, namespace):
    return ConnectionOptions(server=nats_url, namespace=namespace)


@asynccontextmanager
async def system(nats_url, namespace, *, dispatcher=False):
    """A worker and a client, each with a connection of its own."""
    names, settings = Names(namespace), ConnectionSettings(urls=(nats_url,))
    buses = [await connect_bus(settings, name=name) for name in ("w1", "client", "dispatcher")]
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Worker(POOL, bus=buses[0], names=names, settings=WorkerSettings(id="w1")))
            if dispatcher:
                await stack.enter_async_context(Dispatcher(buses[2], names=names))
            yield await stack.enter_async_context(Client(buses[1], names=names, name="tests"))
    finally:
        for bus in buses:
            await bus.close()


def take(shown: Rows, told: dict[str, str]) -> Delta:
    delta = Delta(**json.loads(told["data"]))
    apply(shown, delta)
    return delta


@pytest.mark.server
async def test_a_stream_begins_with_all_rows_and_goes_on_with_what_changes(served, options, nats_url, namespace):
    async with system(nats_url, namespace) as client, served.open(options) as visitor:
        await visitor.sign_in(served.link())
        shown: Rows = {}
        async with visitor.stream() as stream:
            first = await event(stream)
            assert first["event"] == "board" and take(shown, first).whole
            assert shown["workers"]["words.w1"]["state"] == "serving"
            async with client.lease("words", slots=3):
                while not shown["leases"]:
                    told = await event(stream)
                    assert told["event"] == "delta"
                    delta = take(shown, told)
                    assert told["id"].endswith(f"-{delta.revision}")
                assert shown["slots"]["words.w1"]["leased"] == 3
            while shown["leases"]:
                told = await event(stream)
                take(shown, told)
        # Somebody who comes back gets what was missed, and a stranger's id gets everything.
        async with client.lease("words"):

            async def leased():
                return (await visitor.get("/api/board")).json["rows"]["leases"]

            await until(leased)
            async with visitor.stream(last_event_id=told["id"]) as stream:
                again = await event(stream)
                assert again["event"] == "delta"
                take(shown, again)
            async with visitor.stream(f"/api/stream?after={told['id']}") as stream:
                assert (await event(stream))["event"] == "delta"
            for strange in ("ffffffff-3", "nonsense", f"{told['id']}9999"):
                async with visitor.stream(last_event_id=strange) as stream:
                    assert (await event(stream))["event"] == "board"


@pytest.mark.server
async def test_dead_letters_are_grouped_by_cause_and_exactly_those_are_replayed(served, options, nats_url, namespace):
    async with system(nats_url, namespace, dispatcher=True) as client:
        jobs = [await client.options(max_attempts=1).submit("words.fail", number) for number in range(3)]
        other = await client.options(max_attempts=1).submit("words.nothing")
        client.router.bus.publish(f"{namespace}.task.words.nothing", b"{}")  # its id is a number
        async with served.open(options, operator=options, actions="replay,drop") as visitor:
            await visitor.sign_in(served.link())

            async def dead():
                found = (await visitor.get("/api/dead")).json
                return found if found["count"] == 5 else None

            await until(dead)
            many, one = (await dead())["groups"]
            assert (many["target"], many["reason"], many["count"]) == ("words.fail", "failed", 3)
            assert many["cause"] == "ValueError: cannot read line # of '…'" or "cannot read line #" in many["cause"]
            [number] = set(one["jobs"]) - {other.id}
            assert set(many["jobs"]) == {job.id for job in jobs} and number.isdecimal()
            letter = (await visitor.get(f"/api/letter?job={jobs[0].id}")).json
            assert "Traceback" in letter["error"]["traceback"] and "arguments" not in letter
            assert (await visitor.get(f"/api/job?id={jobs[0].id}")).json["state"] == "dead"
            done = await visitor.act("drop", jobs=[other.id, number, "words.nobody"])
            assert done.json["done"] == 2 and list(done.json["failed"]) == ["words.nobody"]
            entry = (await visitor.get("/api/audit")).json["entries"][-1]
            told = f"{other.id} words.nothing {number} words.nobody"
            assert (entry["action"], entry["target"], entry["stage"]) == ("dead rm", told, "done")
            assert (await visitor.act("drop", jobs=[])).status == 400
            done = await visitor.act("replay", jobs=many["jobs"])
            assert done.json == {"done": 3, "failed": {}}


@pytest.mark.server
async def test_jobs_that_only_wait_are_found_by_the_beginning_of_their_id(served, options, nats_url, namespace):
    async with system(nats_url, namespace, dispatcher=True) as client, served.open(options) as visitor:
        await visitor.sign_in(served.link())
        await client.set_route("later", {"to": {"words": 1}, "queue": {"paused": True}})
        waiting = await client.submit("later.wait")
        running = await client.submit("words.wait")

        async def listed():
            jobs = (await visitor.get("/api/jobs")).json["jobs"]
            return {job["job"]: job["state"] for job in jobs} == {waiting.id: "queued", running.id: "running"}

        await until(listed)
        assert [job["job"] for job in (await visitor.get("/api/jobs?state=queued")).json["jobs"]] == [waiting.id]
        assert [job["job"] for job in (await visitor.get("/api/jobs?endpoint=words")).json["jobs"]] == [running.id]
        assert (await visitor.get("/api/jobs?state=lazy")).status == 400
        assert (await visitor.get(f"/api/find?id={waiting.id[:-3]}")).json == {"id": waiting.id}
        assert (await visitor.get("/api/find?id=later.nothing")).status == 404
        odd = await visitor.get("/api/why?gang=a%20b")
        assert odd.status == 400 and odd.json["message"].startswith("id: ")
        assert (await visitor.get("/api/audit?user=*")).json["error"] == "invalid_name"
        await running.cancel()


@pytest.mark.server
async def test_schedules_are_paused_resumed_and_removed_and_that_is_recorded(served, options, nats_url, namespace):
    async with (
        system(nats_url, namespace, dispatcher=True) as client,
        served.open(options, operator=options, actions="schedule") as visitor,
    ):
        await visitor.sign_in(served.link())
        await client.options(cron="0 0 3 1 1 *", idempotency_key="yearly").submit("words.fail", 7)

        async def listed():
            return (await visitor.get("/api/schedules")).json["schedules"]

        await until(listed)
        (row,) = await listed()
        assert (row["name"], row["target"], row["cron"], row["paused_at"]) == (
            "yearly",
            "words.fail",
            "0 0 3 1 1 *",
            None,
        )
        assert row["next_at"] and "arguments" not in row
        assert (await visitor.act("schedule", target=row["id"], change="pause")).json["paused"]
        assert (await client.schedule("yearly")).paused
        assert not (await visitor.act("schedule", target=row["id"], change="resume")).json["paused"]
        assert (await visitor.act("schedule", target=row["id"])).status == 400
        assert (await visitor.act("schedule", target=row["id"], change="rm")).status == 200
        assert await client.schedules() == []
        actions = {entry["action"] for entry in (await visitor.get("/api/audit")).json["entries"]}
        assert actions >= {"schedules pause", "schedules resume", "schedules rm"}


@pytest.mark.server
async def test_a_browser_is_told_at_once_when_the_connection_to_nats_ends(served, nats_server, namespace):
    options = ConnectionOptions(server=nats_server.url, namespace=namespace)
    async with system(nats_server.url, namespace), served.open(options) as visitor:
        await visitor.sign_in(served.link())
        async with visitor.stream() as stream:
            await stream.readuntil(b"event: ping\ndata: 1\n\n")
            await asyncio.to_thread(nats_server.kill)
            await stream.readuntil(b"event: ping\ndata: 0\n\n")
            await asyncio.to_thread(nats_server.start)
            await stream.readuntil(b"event: ping\ndata: 1\n\n")


@pytest.mark.server
async def test_payloads_are_shown_only_if_allowed(served, options, nats_url, namespace):
    async with system(nats_url, namespace, dispatcher=True) as client:
        job = await client.options(max_attempts=1).submit("words.fail", 7)
        async with served.open(options, show_payloads=True) as visitor:
            await visitor.sign_in(served.link())

            async def dead():
                return (await visitor.get("/api/dead")).json["count"] == 1

            await until(dead)
            assert (await visitor.get(f"/api/letter?job={job.id}")).json["arguments"] == [7]


@pytest.mark.server
async def test_a_route_is_set_only_if_it_is_still_the_one_that_was_shown(served, options, nats_url, namespace):
    async with (
        system(nats_url, namespace) as client,
        served.open(options, operator=options, actions="route") as visitor,
    ):
        await visitor.sign_in(served.link())
        route = {"to": {"words": 1.0}, "queue": {"max_running": 2}}
        assert (await visitor.act("route", target="words", route=route, was=None)).json == {"route": route}
        await client.set_route("words", {"to": {"words": 2}})
        stale = await visitor.act("route", target="words", route=None, was=route)
        assert stale.status == 400 and "changed meanwhile" in stale.json["message"]
        wrong = await visitor.act("route", target="words", route={"too": 1}, was={"to": {"words": 2.0}})
        assert wrong.json["error"] == "invalid_route"
        assert (await visitor.act("route", target="words", route=None, was={"to": {"words": 2.0}})).status == 200
        none = await visitor.act("route", target="words", route=None, was=None)
        assert (none.status, none.json["message"]) == (404, "words has no route: it is the pool of its name")
        assert (await visitor.get("/api/audit")).json["entries"][-1]["action"] == "route rm"


@pytest.mark.server
async def test_questions_that_make_no_sense_get_an_error_that_says_so(served, options):
    async with served.open(options, operator=options, actions="all") as visitor:
        await visitor.sign_in(served.link())
        for path, status in (
            ("/api/worker", 400),
            ("/api/worker?name=nobody", 400),
            ("/api/worker?name=no.body", 503),
            ("/api/job?id=%20", 400),
            ("/api/letter?job=words.x", 404),
            ("/api/nothing", 404),
            ("/nothing", 404),
        ):
            assert (await visitor.get(path)).status == status, path
        for body in ({"reason": ""}, {"reason": "  ", "target": "a.b"}, {"reason": "x", "colour": "red"}):
            assert (await visitor.act("drain", **body)).status == 400
        fields = {"content_type": "application/json", "sec_fetch_site": "same-origin"}
        for raw in (b"", b"{", b"[]", b"\xff"):
            assert (await visitor.ask("POST", "/api/act/drain", raw, **fields)).status == 400
        assert (await visitor.act("explode", target="x")).status == 400


# -- files ------------------------------------------------------------------------------------------------------------

VENDORED = {
    # htm 3.1.1, preact/standalone.module.js: Preact 10 with its hooks, and htm
    "htm-preact.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
}


def test_vendored_scripts_are_those_of_the_registry_with_their_licences():
    vendor = STATIC / "vendor"
    scripts = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in vendor.glob("*.js")}
    assert scripts == VENDORED
    assert "Permission is hereby granted" in (vendor / "LICENSE-preact.txt").read_text()
    assert "Apache License" in (vendor / "LICENSE-htm.txt").read_text()


def test_scripts_and_styles_are_small_and_ask_nobody_else():
    files = [file for file in STATIC.rglob("*") if file.suffix in (".js", ".css", ".html", ".svg")]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < 80_000
    for file in files:
        if file.parent.name != "vendor":
            text = file.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text and "https://" not in text and "//cdn" not in text, file


# -- groups -----------------------------------------------------------------------------------------------------------


def letter(job: str, message: str, *, reason: str = "failed", at: float = 0.0) -> DeadLetter:
    error = JobFailure(code="task_failed", message=message, details={"type": "ValueError"})
    return DeadLetter(
        job=job,
        endpoint="a",
        method="b",
        reason=reason,
        attempts=1,
        error=error,
        dead_at=at,
        sequence=1,
        subject="s",
        data=b"",
        headers={},
    )


def test_errors_that_differ_in_numbers_names_and_addresses_have_one_cause():
    texts = ["no file 'a.txt' at 0x7f01", "no file 'b.txt' at 0x9", "no file 'c' at 0xff\nmore"]
    assert {cause(letter("j", text).error) for text in texts} == {"ValueError: no file '…' at 0x…"}
    assert cause(None) == ""


def test_groups_have_exactly_their_members_oldest_first_and_the_largest_group_comes_first():
    letters = [letter("j1", "x 1", at=3), letter("j2", "x 2", at=1), letter("j3", "y"), letter("j4", "x 1", reason="z")]
    first, *rest = groups(letters)
    assert first["jobs"] == first["titles"] == ["j2", "j1"] and (first["first_at"], first["last_at"]) == (1, 3)
    assert [group["jobs"] for group in rest] in ([["j3"], ["j4"]], [["j4"], ["j3"]])
    assert len({str(group["id"]) for group in (first, *rest)}) == 3
    run = replace(letter("17", "x"), headers={"Gangline-Schedule": "a.nightly"})
    assert [(group["jobs"], group["titles"]) for group in groups([run])] == [(["17"], ["a.nightly-17"])]


@pytest.mark.server
async def test_the_times_of_a_gang_that_is_not_known_are_empty(served, options, nats_url, namespace):
    async with system(nats_url, namespace), served.open(options) as visitor:
        await visitor.sign_in(served.link())
        told = (await visitor.get("/api/gang?id=nothing")).json
        assert told == {"generation": 0, "ranks": [], "slowest": None, "slowest_of_run": None, "run": 0, "told": []}
        assert (await visitor.get("/api/gang")).status == 400


@pytest.mark.server
async def test_a_job_that_waits_for_slots_is_told_when_it_can_start(served, options, nats_url, namespace):
    async with (
        system(nats_url, namespace, dispatcher=True) as client,
        client.lease("words", slots=4, ttl_s=60),
        served.open(options) as visitor,
    ):
        await visitor.sign_in(served.link())
        job = await client.submit("words.wait")

        async def told() -> bool:
            found = (await visitor.get(f"/api/when?job={job.id}")).json
            return found.get("no_later_than_s") is not None and any("lease" in each["text"] for each in found["told"])

        await until(told)
