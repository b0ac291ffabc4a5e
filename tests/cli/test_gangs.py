"""coordinator, gang, gangset, why: real processes on a real server."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import signal

import pytest

from gangline import connect as connect_client
from gangline.bus.nats_bus import connect
from gangline.bus.rpc.responder import listen
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import GangOperation, Names, public_id

from ..bus.conftest import collect
from ..support.rows import case
from .conftest import until

pytestmark = [pytest.mark.server, pytest.mark.processes]

SET = """
name: llama
gangs: 2
gang: {pool: words, size: 2, slots: 1, strategy: spread}
retire_s: 0.1
"""


@pytest.fixture
def running(commands):
    """A coordinator and two workers of four slots."""
    coordinator = commands.start("coordinator")
    workers = [commands.start("worker", "words:pool", "--id", name, "--node", name) for name in ("w1", "w2")]
    coordinator.await_output(r"coordinator\.leads")
    for worker in workers:
        worker.await_output(r"worker\.started")
    return coordinator, workers


def test_a_gang_is_acquired_shown_listed_and_released(commands, running):
    events = commands.start("gang", "events")
    events.await_output("listening to")
    watch = commands.start("gang", "ls", "--watch")
    gang = commands.json("gang", "acquire", "words", "4", "--strategy", "spread", "--ttl", "60", "--owner", "me")
    assert (gang["state"], gang["size"], gang["owner"]) == ("formed", 4, "me")
    assert {seat["worker"] for seat in gang["seats"]} == {"w1", "w2"}

    (row,) = commands.json("gang", "ls")
    assert (row["id"], row["owner_token"]) == (gang["id"], None)
    watch.await_output(rf"(added  |changed)  {gang['id']}  STATE formed.*  SIZE 4  .*WORKERS words\.w1 words\.w2")
    table = commands.run("gang", "ls").stdout
    assert gang["id"] in table and "formed" in table and "words.w1 words.w2" in table
    shown = commands.run("gang", "show", gang["id"]).stdout
    assert "generation 1" in shown and "rendezvous" in shown
    tokens = [seat["token"] for seat in gang["seats"]]
    told = [[seat["token"] for seat in commands.json(*words)["seats"]] for words in (("gang", "show", gang["id"]),)]
    assert told == [[public_id(token) for token in tokens]] == [[seat["token"] for seat in row["seats"]]]
    assert all(public_id(token) in shown and token not in shown for token in tokens)
    mine = commands.json("gang", "show", gang["id"], "--owner-token", gang["owner_token"])
    assert [seat["token"] for seat in mine["seats"]] == tokens
    refused = commands.run("gang", "show", gang["id"], "--owner-token", "mine")
    assert (refused.returncode, "belongs to another owner" in refused.stderr) == (1, True)
    assert commands.json("why", gang["id"])["step"] == "formed"

    assert commands.json("gang", "show", gang["id"][:7])["id"] == gang["id"]
    assert commands.json("why", gang["id"][:7])["id"] == gang["id"]
    assert "is not known" in commands.run("gang", "show", gang["id"][:2]).stderr
    refused = commands.run("gang", "rm", gang["id"], "--owner-token", "mine")
    assert (refused.returncode, "belongs to somebody else" in refused.stderr) == (1, True)
    ended = commands.json("gang", "rm", gang["id"], "--owner-token", gang["owner_token"])
    assert ended["state"] == "ended"
    assert commands.json("gang", "ls") == []
    assert commands.run("gang", "ls").stderr.strip() == "no gangs"
    events.await_output(rf"torn_down +{gang['id']} +generation 1 +released")
    until(
        lambda: [row["load"]["reserved"] + row["load"]["running"] for row in commands.json("workers")] == [0, 0],
        "the heartbeats never say that all slots are back",
    )


async def test_a_kept_gang_is_renewed_until_interrupted_and_then_released(commands, running, nats_url, namespace):
    kept = commands.start("gang", "acquire", "words", "2", "--ttl", "6", "--keep")
    gang = kept.await_output(r"gang g[\w-]+ is formed").split()[1]
    kept.await_output("kept; ctrl-c")
    bus = await connect(ConnectionSettings(urls=(nats_url,)), name="test")
    try:
        renewals = collect()
        await listen(bus, Names(namespace).both(Names(namespace).gang(GangOperation.RENEW)), renewals)
        await renewals.count(1)
    finally:
        await bus.close()
    assert commands.json("gang", "show", gang)["state"] == "formed"
    kept.signal(signal.SIGINT)
    assert kept.wait() == 0
    assert commands.json("gang", "show", gang)["reason"] == "released"


@pytest.mark.long
def test_a_request_that_is_interrupted_while_it_waits_is_withdrawn(commands, running):
    first = commands.json("gang", "acquire", "words", "8", "--ttl", "60")
    waiting = commands.start("gang", "acquire", "words", "1", "--ttl", "600")
    until(lambda: [row["state"] for row in commands.json("gang", "ls")] == ["formed", "queued"], "it never waits")
    waiting.await_output(r"is not formed yet; Ctrl-C withdraws the request\ngang \S+ is queued, number 1 in the queue")
    waiting.signal(signal.SIGINT)
    assert waiting.wait() == 130
    until(lambda: [row["id"] for row in commands.json("gang", "ls")] == [first["id"]], "it still waits")


def test_a_range_of_sizes_is_filled_as_far_as_there_is_room(commands, running):
    gang = commands.json("gang", "acquire", "words", "2..20", "--ttl", "60")
    assert (gang["state"], gang["size"], gang["sizes"]) == ("formed", 8, [2, 20])
    assert "size 8 of 2..20" in commands.run("gang", "show", gang["id"]).stdout
    refused = commands.run("gang", "acquire", "words", "2-20")
    assert (refused.returncode, "2..8" in refused.stderr) == (2, True)


def test_an_operator_ends_a_gang_without_its_token(commands, running):
    gang = commands.json("gang", "acquire", "words", "2", "--ttl", "60")
    refused = commands.run("gang", "rm", gang["id"])
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    ended = commands.json("gang", "rm", gang["id"], "--force", "--reason", "maintenance")
    assert (ended["state"], ended["reason"]) == ("ended", "ended_by_operator: maintenance")


@pytest.mark.long
async def test_what_is_held_of_a_gang_of_a_set_is_listed_where_it_is_asked_for(commands, running, nats_url, namespace):
    (commands.folder / "set.yaml").write_text(SET)
    assert commands.run("gangset", "apply", "set.yaml").returncode == 0
    until(lambda: commands.json("gangset", "status", "llama").get("state") == "steady", "the set never is steady")
    async with connect_client(nats_url, namespace=namespace, name="holder") as client, client.lease("llama") as lease:
        assert await asyncio.to_thread(commands.json, "leases") == []
        (held,) = await asyncio.to_thread(commands.json, "leases", "--gangs")
        table = (await asyncio.to_thread(commands.run, "leases", "--gangs")).stdout
    where = f"{held['pool']}.{held['worker']}"
    assert (where, held["token"], held["slots"]) == (lease.worker, public_id(lease.token), 1)
    assert f"on gang {lease.gang}" in held["owner"] and public_id(lease.token) in table
    assert (commands.run("leases", "--gangs", "--watch")).returncode == 2


@pytest.mark.long
async def test_the_slowest_rank_of_a_gang_is_shown_while_it_runs_and_after_it_has_ended(
    commands, running, nats_url, namespace
):
    (commands.folder / "go").touch()
    async with connect_client(nats_url, namespace=namespace) as client:
        async with client.gang(pool="words", size=2, slots=3) as gang:
            held = asyncio.ensure_future(gang.call(1, "hold", go="later"))
            await gang.call(0, "count", "a b")
            await asyncio.to_thread(commands.await_file, "began")

            def slowest() -> object:
                return commands.json("gang", "show", gang.id)["times"]["slowest"]

            await asyncio.to_thread(until, lambda: slowest() == 1, "rank 1 is never the slowest")
            shown = (await asyncio.to_thread(commands.run, "gang", "show", gang.id)).stdout
            assert "1 slowest" in shown and f"slowest in this generation: rank 1 on {gang.members[1].worker}" in shown
            (commands.folder / "later").touch()
            assert await held == "held"
        times = {}

        def ended() -> bool:
            times.update(commands.json("gang", "show", gang.id)["times"])
            return times["slowest"] == 1

        await asyncio.to_thread(until, ended, "the history never has the times of the gang that has ended")
        assert times["generation"] == 1 and [rank["ended"] for rank in times["ranks"]] == [1, 1]
        recorded = await asyncio.to_thread(commands.json, "history", "--gang", gang.id)
        assert [len(one["details"]["times"]) for one in recorded if one["kind"] == "gang_ended"] == [2]


def test_a_set_is_applied_listed_scaled_and_deleted(commands, running):
    (commands.folder / "set.yaml").write_text(SET)
    done = commands.run("gangset", "apply", "set.yaml")
    assert (done.returncode, done.stdout.strip()) == (0, "llama created: 2 gangs of 2")
    assert commands.run("gangset", "apply", "set.yaml").stdout.strip() == "llama unchanged: 2 gangs of 2"

    def formed():
        (row,) = commands.json("gangset", "ls")
        return sum(gang["state"] == "formed" for gang in row["living"])

    until(lambda: formed() == 2, "two are not formed")
    assert re.search(r"llama +2/2 +2 +2 x 1 words +spread", commands.run("gangset", "ls").stdout)
    state = functools.partial(commands.json, "gangset", "status", "llama")
    until(lambda: state()["state"] == "steady", "it is not steady")
    told = commands.run("gangset", "status", "llama").stdout
    assert "llama is steady\n2 gangs wanted, 2 formed, 2 ready, 0 old" in told
    refused = commands.run("gangset", "rollback", "llama")
    assert (refused.returncode, "nothing to go back to" in refused.stderr) == (2, True)
    assert commands.json("gangset", "scale", "llama", "3") == {"name": "llama", "gangs": 3, "before": 2}
    until(lambda: formed() == 3, "three are not formed")
    assert len(commands.json("gang", "ls", "--set", "llama")) == 3
    as_json = json.dumps({"name": "llama", "gangs": 1, "gang": {"pool": "words", "size": 2}, "retire_s": 0.1})
    done = commands.run("gangset", "apply", "-", stdin=as_json)
    assert done.stdout.strip() == "llama changed: 1 gang of 2"
    until(lambda: len(commands.json("gangset", "ls")[0]["living"]) == 1, "did not shrink")
    until(lambda: state()["state"] == "steady", "it is not rolled")
    assert commands.run("gangset", "rollback", "llama").stdout.strip() == "llama rolled back: 1 gang of 2"
    assert commands.json("gangset", "ls")[0]["gang"]["strategy"] == "spread"
    assert commands.run("gangset", "rm", "llama").stdout.strip() == "llama is removed"
    until(lambda: commands.json("gang", "ls") == [], "gangs are left")
    assert commands.json("gangset", "ls") == []
    missing = commands.run("gangset", "scale", "llama", "1")
    assert (missing.returncode, "there is no set 'llama'" in missing.stderr) == (1, True)


def test_a_malformed_file_is_told_what_is_wrong_and_declares_nothing(commands, invoke, tmp_path):
    cases = [
        ("name: [", "set.yaml is not YAML: "),
        ("", "set.yaml declares nothing"),
        ("- 1", "set.yaml is not a map"),
        ("gangs: 1", "set.yaml has no name"),
        ("name: a b\ngangs: 1\ngang: {pool: p}", "may only have letters"),
        ("name: a\ngang: {pool: p}", "set a: gangs: missing"),
        ("name: a\ngangs: -1\ngang: {pool: p}", "gangs: Input should be greater than or equal to 0"),
        ("name: a\ngangs: 1\ngang: {pool: p, size: 0}", "gang.size: Input should be greater than or equal to 1"),
        ("name: a\ngangs: 1\ngang: {pool: p, sice: 2}", "no field 'gang.sice'"),
        ("name: a\ngangs: 1\ngang: {pool: p, strategy: near}", "gang.strategy: Input should be 'pack'"),
        ("name: a\ngangs: 1\ngang: {pool: p}\nrout: all", "no field 'rout'"),
        ("name: a\ngangs: 1\ngang: {pool: p}\n---\nname: a\ngangs: 1\ngang: {pool: p}", "declares a twice"),
        ("name: a\ngangs: 1\ngang: {pool: p}\n---\nname: b", "set.yaml, document 2, set b: gangs: missing"),
    ]
    for text, complaint in cases:
        with case(text, complaint):
            (tmp_path / "set.yaml").write_text(text)
            done = invoke("gangset", "apply", str(tmp_path / "set.yaml"), env={"NATS_URL": "nats://127.0.0.1:1"})
            assert done.exit_code == 2, done.output
            assert complaint in done.output
            assert done.output.count("\n") == 1


def test_without_a_coordinator_it_says_what_to_start(commands):
    for arguments in (("gang", "ls"), ("gang", "acquire", "words", "1"), ("why", "g1")):
        done = commands.run(*arguments)
        assert (done.returncode, "gangline coordinator" in done.stderr) == (3, True), done.stderr
        assert done.stderr.count("\n") == 1
    (commands.folder / "set.yaml").write_text(SET)
    done = commands.run("gangset", "apply", "set.yaml")
    assert done.returncode == 0 and "no coordinator leads" in done.stderr


@pytest.mark.long
def test_bad_requests_are_one_line_and_a_code(commands, running, invoke):
    cases = {
        ("gang", "acquire", "words", "0"): (2, "size: Input should be greater"),
        ("gang", "acquire", "words", "99"): (2, "not enough workers registered"),
        ("gang", "acquire", "nopool", "1"): (2, "nopool"),
        ("gang", "acquire", "wrods", "1"): (2, "did you mean 'words'?"),
        ("gang", "acquire", "words", "3", "--strategy", "strict_spread"): (2, "not enough workers registered"),
        ("gang", "acquire", "words", "many"): (2, "is not a size: give a number, or a range"),
        ("gang", "acquire", "words", "1", "--label", "x"): (2, "not KEY=VALUE"),
        ("gang", "show", "nobody"): (1, "not known"),
        ("gang", "rm", "nobody", "--owner-token", "x"): (1, "not known"),
        ("why", "nobody"): (1, "not known"),
        ("gang", "show", "a b"): (2, "id"),
        ("gang", "nosuch"): (2, "nosuch"),
    }
    for arguments, (code, text) in cases.items():
        done = invoke(*arguments, env=commands.environment)
        with case(arguments, done.stderr):
            assert (done.exit_code, text in done.stderr, done.stderr.count("\n")) == (code, True, 1)
    held = commands.json("gang", "acquire", "words", "8", "--ttl", "60")
    late = commands.run("gang", "acquire", "words", "1", "--deadline", "0.3")
    assert (late.returncode, "was not formed by its deadline" in late.stderr) == (3, True), late.stderr
    commands.run("gang", "rm", held["id"], "--owner-token", held["owner_token"])


@pytest.mark.long
def test_shards_are_started_by_name_and_pools_and_no_pool_is_kept_twice(commands):
    coordinator = commands.start("coordinator", "--shard", "east", "--pools", "words, other")
    coordinator.await_output(r"coordinator\.leads")
    commands.started("worker", "words:pool", "--id", "w1")
    gang = commands.json("gang", "acquire", "words", "2", "--ttl", "60")
    assert gang["state"] == "formed"
    taken = "shard east keeps other, words"
    cases = [(("--shard", "west", "--pools", "words"), taken), ((), taken), (("--shard", "west"), "at least one pool")]
    for arguments, text in cases:
        refused = commands.run("coordinator", *arguments)
        assert (refused.returncode, text in refused.stderr) == (2, True), refused.stderr
    unkept = commands.run("gang", "acquire", "elsewhere", "1")
    assert "no coordinator keeps pool 'elsewhere'" in unkept.stderr
