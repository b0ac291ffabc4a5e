"""worker, workers, leases, stats, resize, drain: real processes on a real server."""

from __future__ import annotations

import json
import signal

import pytest

from gangline.bus.embedded.cluster import free_ports
from gangline.schemas.messages.operations import ReleaseReply, ReleaseRequest, ReserveReply, ReserveRequest
from gangline.schemas.names import Names, Operation, WorkerId, public_id

from ..waiting import until
from .conftest import request

pytestmark = [pytest.mark.server, pytest.mark.processes]


def serve(commands, name="w1", *options):
    return commands.started("worker", "words:pool", "--id", name, *options)


async def ask(nats_url, namespace, operation, asked):
    subject = Names(namespace).worker(WorkerId("words", "w1"), operation)
    return (await request(nats_url, subject, asked.model_dump_json(exclude_none=True).encode())).data


async def reserve(nats_url, namespace, **fields):
    answer = await ask(nats_url, namespace, Operation.RESERVE, ReserveRequest(**fields))
    return ReserveReply.model_validate_json(answer)


async def release(nats_url, namespace, token):
    answer = await ask(nats_url, namespace, Operation.RELEASE, ReleaseRequest(token=token))
    assert ReleaseReply.model_validate_json(answer).released


def test_a_worker_is_seen_with_what_it_serves_and_where(commands):
    serve(commands, "w1", "--slots", "3", "--node", "n1", "--zone", "z1", "--label", "gpu=a100")
    (row,) = commands.json("workers")
    assert (row["pool"], row["worker"], row["state"], row["slots"]) == ("words", "w1", "serving", 3)
    assert (row["node"], row["zone"]) == ("n1", "z1")
    assert row["labels"] == {"tier": "a", "gpu": "a100"}
    assert row["load"] == {"running": 0, "reserved": 0, "total": 3}
    assert set(row["methods"]) == {"count", "shout", "each", "hold", "shrug", "fail"}
    table = commands.run("workers").stdout
    assert "words.w1" in table and "··· 0+0/3" in table and "z1/n1" in table and "gpu=a100" in table
    assert commands.json("workers", "other") == []


def test_no_workers_is_an_empty_list_and_a_hint(commands):
    assert commands.json("workers") == []
    done = commands.run("workers")
    assert (done.returncode, done.stdout) == (0, "")
    assert "gangline worker MODULE:POOL" in done.stderr


async def test_a_lease_is_seen_in_leases_and_stats_and_a_table(commands, nats_url, namespace):
    serve(commands)
    granted = await reserve(nats_url, namespace, slots=2, ttl_s=600, owner="me")
    await until(lambda: commands.json("leases"), "the lease stands in the ledger, which is written after the grant")
    (lease,) = commands.json("leases")
    assert (lease["token"], lease["slots"], lease["owner"]) == (public_id(granted.token), 2, "me")
    assert 0 < lease["expires_in_s"] <= 601
    stats = commands.json("stats", "words.w1")
    assert stats["load"]["reserved"] == 2
    assert [lease["token"] for lease in stats["leases"]] == [public_id(granted.token)]
    table = commands.run("leases").stdout
    assert public_id(granted.token) in table and granted.token not in table
    shown = commands.run("stats", "words.w1").stdout
    assert "□□·· 0+2/4" in shown and public_id(granted.token) in shown and granted.token not in shown
    assert commands.json("leases", "other") == []


async def test_watched_leases_print_a_line_as_they_come_and_go(commands, nats_url, namespace):
    serve(commands)
    watch = commands.start("leases", "--watch", "--json")
    granted = await reserve(nats_url, namespace, ttl_s=600, owner="me")
    came = json.loads(watch.await_output(r"^\{.*granted.*\}$"))
    assert (came["event"], came["lease"]["token"]) == ("granted", public_id(granted.token))
    await release(nats_url, namespace, granted.token)
    went = json.loads(watch.await_output(r"^\{.*gone.*\}$"))
    assert went["lease"]["token"] == public_id(granted.token)
    watch.signal(signal.SIGINT)
    assert watch.wait() == 130
    plain = commands.start("leases", "--watch")
    again = await reserve(nats_url, namespace, ttl_s=600, owner="me")
    plain.await_output(rf"granted  words\.w1  1 slot  {public_id(again.token)}  me")


def test_watched_workers_print_a_line_as_they_come_change_and_go(commands):
    watch, plain = commands.start("workers", "words", "--watch", "--json"), commands.start("workers", "-w", "--tasks")
    worker = serve(commands)
    came = json.loads(watch.await_output(r"^\{.*added.*\}$"))
    assert (came["event"], came["worker"]["worker"], came["worker"]["slots"]) == ("added", "w1", 4)
    plain.await_output(r"added    words\.count  SLOTS 1  WORKERS 1$")
    commands.run("resize", "words.w1", "7")
    watch.await_output(r'^\{.*changed.*"total": 7.*\}$')
    worker.signal(signal.SIGTERM)
    watch.await_output(r'^\{.*gone.*"w1".*\}$')
    watch.signal(signal.SIGINT)
    assert watch.wait() == 130


def test_resize_changes_the_slots_of_a_running_worker(commands):
    serve(commands)
    assert commands.json("resize", "words.w1", "7")["load"]["total"] == 7
    assert commands.run("resize", "words.w1", "0").stdout == "words.w1 has 0 slots, 0 free\n"
    assert commands.json("stats", "words.w1")["load"]["total"] == 0


def test_drain_lets_the_process_end_with_exit_code_0(commands):
    worker = serve(commands)
    assert commands.run("drain", "words.w1", "--reason", "new kernel").stdout == "words.w1 leaves\n"
    assert worker.wait() == 0
    assert commands.json("workers") == []
    records = commands.json("audit")
    assert [record["stage"] for record in records] == ["begun", "done"] and len({each["id"] for each in records}) == 1
    done = records[-1]
    assert (done["user"], done["action"], done["target"], done["reason"]) == (
        "anybody",
        "drain",
        "words.w1",
        "new kernel",
    )
    assert "new kernel" in commands.run("audit", "--by", "anybody").stdout
    assert commands.json("audit", "--by", "alice") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_a_worker(commands, number):
    worker = serve(commands)
    worker.signal(number)
    assert worker.wait() == 0
    worker.await_output(r"worker\.left")
    assert commands.json("workers") == []


async def test_a_draining_worker_honours_its_lease_and_a_second_signal_stops_it(commands, nats_url, namespace):
    worker = serve(commands, "w1", "--drain-grace", "600")
    await reserve(nats_url, namespace, ttl_s=600)
    worker.signal(signal.SIGTERM)
    worker.await_output(r"worker\.drain")
    assert [row["state"] for row in commands.json("workers")] == ["draining"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert commands.json("leases") == []


def test_a_worker_that_is_not_there_is_exit_code_3(commands):
    for arguments in (["stats", "words.w9"], ["drain", "words.w9"], ["resize", "words.w9", "1"]):
        done = commands.run(*arguments)
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("gangline: there is no worker 'words.w9': 'gangline workers'")


def test_a_misspelt_pool_or_worker_is_told_which_was_perhaps_meant(commands):
    serve(commands, "w1")
    for arguments in (
        ("call", "wrods.count", "text=a", "--timeout", "1"),
        ("stubs", "wrods"),
        ("drain", "--pool", "wrods", "--yes"),
    ):
        done = commands.run(*arguments)
        assert done.returncode == 3 and done.stderr.endswith("(did you mean 'words'?)\n"), done.stderr
    assert commands.run("stats", "wrods.w1").stderr.endswith("(did you mean 'words.w1'?)\n")
    listed = commands.run("workers", "wrods")
    assert (listed.returncode, listed.stdout) == (0, "") and "did you mean pool 'words'?" in listed.stderr
    assert "did you mean" not in commands.run("workers", "images").stderr


async def test_the_journal_has_a_line_for_each_event_and_is_appended_to(commands, nats_url, namespace):
    worker = serve(commands, "w1", "--journal", "journal.jsonl")
    granted = await reserve(nats_url, namespace)
    worker.signal(signal.SIGKILL)
    worker.wait()
    path = commands.folder / "journal.jsonl"
    first = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line.get("token")) for line in first] == [("grant", public_id(granted.token))]
    again = serve(commands, "w2", "--journal", "journal.jsonl")
    again.signal(signal.SIGTERM)
    again.wait()
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["grant", "drain", "leave"]


def test_a_journal_that_cannot_be_written_is_an_error_before_serving(commands):
    done = commands.run("worker", "words:pool", "--journal", "/nowhere/j.jsonl")
    assert done.returncode == 2
    assert done.stderr == "gangline: journal /nowhere/j.jsonl cannot be written: No such file or directory\n"


def test_a_second_worker_with_a_living_id_ends_with_one_line_that_says_what_to_do(commands):
    serve(commands, "w1")
    second = commands.run("worker", "words:pool", "--id", "w1")
    assert (second.returncode, second.stderr.count("\n")) == (3, 1), second.stderr
    assert "words.w1 is alive elsewhere" in second.stderr and "give this one another id" in second.stderr


def test_logs_are_json_lines_with_actions_when_asked_for(commands):
    # Without a history, about which a worker has something to say if it lives for more than a second.
    worker = commands.started("worker", "words:pool", "--log-format", "json", GANGLINE_HISTORY="off")
    worker.signal(signal.SIGTERM)
    worker.wait()
    lines = [json.loads(line) for line in worker.output.splitlines()]
    assert [line["action"] for line in lines] == ["worker.started", "worker.drain", "worker.left"]
    assert all(line["worker"] and line["pool"] == "words" for line in lines)


def test_prometheus_reads_a_workers_gauges(commands):
    import urllib.request

    (port,) = free_ports(1)
    worker = commands.start(
        "worker",
        "words:pool",
        "--id",
        "w1",
        OTEL_METRICS_EXPORTER="prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(port),
    )
    worker.await_output(r"worker\.started")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "gangline_worker_slots_total{" in text and 'worker="w1"' in text


def test_a_bad_storage_variable_is_wrong_usage_that_names_it(commands):
    for arguments in (["worker", "words:pool"], ["workers"], ["gateway"]):
        done = commands.run(*arguments, GANGLINE_REPLICAS="many")
        assert done.returncode == 2
        assert done.stderr.startswith("gangline: GANGLINE_REPLICAS is 'many'")


def test_a_missing_exporter_or_unknown_one_stops_a_worker_before_it_serves(commands):
    done = commands.run("worker", "words:pool", OTEL_TRACES_EXPORTER="zipkin")
    assert done.returncode == 2
    assert done.stderr.startswith("gangline: OTEL_TRACES_EXPORTER=zipkin is not supported")


def test_stubs_and_asyncapi_describe_the_tasks_of_a_running_pool(commands):
    serve(commands)
    stubs = commands.run("stubs", "words").stdout
    compile(stubs, "words_client.py", "exec")
    assert '@gangline.remote("words.count")' in stubs
    document = json.loads(commands.run("asyncapi", "words", "--title", "Shop").stdout)
    assert document["info"]["title"] == "Shop"
    assert "words.count.call" in document["channels"]
    done = commands.run("stubs", "other")
    assert (done.returncode, done.stdout) == (3, "")
    assert "pool 'other' has no workers" in done.stderr
