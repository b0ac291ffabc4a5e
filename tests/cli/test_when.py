"""when, why and drain of many, on a real server with the processes that users start."""

from __future__ import annotations

import json

import pytest

from gangline.schemas.names import Names, WorkerId, public_id
from gangline.schemas.records.workers import LEASE_SLACK_S

from .conftest import request, until

pytestmark = [pytest.mark.server, pytest.mark.processes]


def serve(commands, *names: str, node: str = "n1") -> None:
    for name in names:
        commands.started("worker", "words:pool", "--id", name, "--node", node)


async def ask(nats_url: str, subject: str, **body: object) -> dict[str, object]:
    found: dict[str, object] = json.loads((await request(nats_url, subject, json.dumps(body).encode())).data)
    return found


async def test_when_a_gang_can_start_follows_from_the_leases_it_waits_for(commands, nats_url, namespace):
    commands.start("coordinator").await_output(r"coordinator\.leads")
    serve(commands, "w1")
    gangs, reserve = Names(namespace).gang, Names(namespace).worker(WorkerId("words", "w1"), "reserve")
    short = await ask(nats_url, reserve, slots=2, ttl_s=300, owner="etl")
    await ask(nats_url, reserve, slots=1, ttl_s=900, owner="video")
    first = await ask(nats_url, gangs("acquire"), pool="words", size=3, wait=False, ttl_s=3600, priority=5)
    second = await ask(nats_url, gangs("acquire"), pool="words", size=4, wait=False, ttl_s=3600)
    until(
        lambda: commands.json("when", first["id"]).get("no_later_than_s") is not None,
        "the coordinator knows the leases from the ledger",
    )
    found = commands.json("when", first["id"])
    assert found["place"] == 0 and 200 < found["no_later_than_s"] <= 300 + LEASE_SLACK_S
    (reason,) = found["because"]
    assert reason["worker"] == "words.w1" and public_id(short["token"]) in reason["holder"] and not reason["estimated"]
    shown = commands.run("when", first["id"]).stdout
    assert "the head of the queue" in shown and "if nobody renews" in shown and "(etl) ends in" in shown
    assert short["token"] not in shown
    behind = commands.json("when", second["id"])
    assert behind["no_later_than_s"] is None and behind["about_s"] is None, "the first takes the slots before it"
    assert behind["not_before_about_s"] is not None and found["not_before_about_s"] is None
    assert "not before about" in commands.run("when", second["id"]).stdout
    assert f"behind gang {first['id']}: priority 5" in commands.run("when", second["id"]).stdout
    why = commands.json("why", second["id"])
    assert [(other["id"], other["priority"], other["size"]) for other in why["ahead"]] == [(first["id"], 5, 3)]
    assert f"behind gang {first['id']}: priority 5, size 3, waits for" in commands.run("why", second["id"]).stdout


def test_when_a_task_can_start_is_known_where_it_waits_for_time(commands):
    commands.started("dispatcher")
    serve(commands, "w1")
    job = commands.json("submit", "words.count", '{"text": "a"}', "--delay", "1h")
    id = job["job"] if isinstance(job, dict) else job
    found = commands.json("when", id)
    assert found["state"] == "scheduled" and 3000 < found["not_before_s"] <= 3600
    assert commands.run("when", "nothing").returncode != 0


def test_all_workers_of_a_node_or_a_pool_are_drained(commands):
    serve(commands, "w1", "w2", node="n1")
    serve(commands, "w3", node="n2")
    asked = commands.run("drain", "--node", "n1", stdin="n\n")
    assert asked.returncode != 0 and "drain 2 workers on node 'n1': words.w1, words.w2?" in asked.stderr
    assert len(commands.json("workers")) == 3
    done = commands.run("drain", "--node", "n1", "--yes", "--reason", "new kernel")
    assert (done.returncode, done.stdout) == (0, "words.w1 leaves\nwords.w2 leaves\n")
    until(lambda: [row["worker"] for row in commands.json("workers")] == ["w3"], "two have left")
    assert [entry["target"] for entry in commands.json("audit") if entry["stage"] == "done"] == ["words.w1", "words.w2"]
    assert commands.run("drain", "--pool", "words", "--yes").stdout == "words.w3 leaves\n"
    nobody = commands.run("drain", "--pool", "words", "--node", "n9", "--yes")
    assert nobody.returncode == 3 and "no workers of pool 'words' on node 'n9'" in nobody.stderr


@pytest.mark.parametrize("arguments", [(), ("words.w1", "--pool", "words"), ("w1",)])
def test_what_is_to_be_drained_is_named_in_one_way(invoke, arguments):
    assert invoke("drain", *arguments).exit_code == 2
