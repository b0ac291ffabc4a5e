"""What one user did to others with requests that the server allows, tried again: nothing comes of it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from gangline.bus.jetstream.api import TOO_MANY_BATCHES
from gangline.bus.key_value.wire import stream_configuration
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, KvEntry, NotPermitted, Storage, StorageUnavailable
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import InvalidSettings, JobDead
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import configuration, parse_user
from gangline.worker.service import WorkerState

from ..bus.conftest import Collected, collect
from ..waiting import PATIENCE_S, until
from .conftest import Site, cut

pytestmark = pytest.mark.server

NAMES = Names()
ROLLUP_NOT_PERMITTED = 10111
SCHEDULES_DISABLED = 10188
DIRECT = "$JS.API.DIRECT.GET.KV_GANGLINE_RESULTS.$KV.GANGLINE_RESULTS.result.nosuchkey"


async def _hears(site: Site, subject: str) -> Collected[Any]:
    """What comes there."""
    watcher, heard = await site.bus("operator"), collect()
    await watcher.subscribe(subject, heard)
    await watcher.flush()
    return heard


@pytest.mark.parametrize(
    "target",
    ["$JS.API.STREAM.PURGE.GANGLINE_TASKS", "$JS.API.STREAM.DELETE.GANGLINE_TASKS", "gangline.worker.images.w2.drain"],
)
async def test_a_producer_cannot_have_storage_answer_to_the_api_or_to_a_worker(site_of, target):
    site: Site = site_of(cut("operator", "dispatcher", "billing=producer:invoices"))
    await site.dispatcher()
    operator, billing = await site.bus("operator"), await site.bus("billing")
    await operator.request("gangline.task.invoices.x", b"[]", timeout_s=PATIENCE_S)
    heard = await _hears(site, "gangline.worker.images.w2.drain")
    billing.publish(DIRECT, b"", reply=target)
    await billing.flush()
    await operator.flush()
    # Nor if it were allowed to ask: the stream does not answer such questions.
    operator.publish(DIRECT, b"", reply=target)
    await operator.flush()
    assert await _tasks(operator) == 1
    assert heard.items == []
    refused = await site.refused()
    assert len(refused) == 1
    assert "DIRECT.GET" in refused[0]


async def test_a_worker_cannot_have_its_own_record_sent_to_the_api_or_to_another_worker(site_of):
    site: Site = site_of(cut("operator", "one=worker:images.w1"))
    operator, one = await site.bus("operator"), await site.bus("one")
    await operator.bucket(NAMES.ledger_bucket, BucketSettings(storage=Storage.MEMORY))
    heard = await _hears(site, "gangline.worker.images.w2.teardown")
    own = "$KV.GANGLINE_LEDGER.alive.images.w1"
    evil = json.dumps({"name": "EVIL", "subjects": ["_INBOX.>"]}).encode()
    await one.request(own, evil, timeout_s=PATIENCE_S)
    question = json.dumps({"last_by_subj": own}).encode()
    for kind in ("DIRECT.GET", "STREAM.MSG.GET"):
        for target in ("$JS.API.STREAM.CREATE.EVIL", "gangline.worker.images.w2.teardown"):
            one.publish(f"$JS.API.{kind}.KV_GANGLINE_LEDGER", question, reply=target)
            operator.publish(f"$JS.API.{kind}.KV_GANGLINE_LEDGER", question, reply=target)
    await one.flush()
    await operator.flush()
    assert (await operator.api.call("STREAM.NAMES", what="look"))["streams"] == ["KV_GANGLINE_LEDGER"]
    # What comes is the answer of the API, which is no request of a worker.
    assert all(json.loads(message.data)["type"].startswith("io.nats.jetstream") for message in heard.items)


HIJACKED = [
    {"subjects": ["$KV.GANGLINE_LEDGER.>", "_INBOX.>"]},
    {"republish": {"src": "$KV.GANGLINE_LEDGER.>", "dest": "gangline.gang-talk.stolen.>"}},
    {"sources": [{"name": "OTHER"}]},
    {"max_age": 1_000_000_000, "duplicate_window": 1_000_000_000},
]


@pytest.mark.parametrize("evil", HIJACKED, ids=lambda evil: next(iter(evil)))
async def test_a_ledger_that_somebody_else_made_is_not_used(site: Site, evil, caplog):
    operator = await site.bus("operator")
    stream = f"KV_{NAMES.ledger_bucket}"
    made = {**stream_configuration(NAMES.ledger_bucket, BucketSettings(max_bytes=-1)), **evil}
    await operator.api.call(f"STREAM.CREATE.{stream}", made, what="make the ledger")
    site._ledger = True
    field = next(iter(evil))
    what = f"exists with.*{field}.*nats stream rm {stream}"
    for part in (site.coordinator, site.worker, lambda: _calls(site)):
        with pytest.raises(InvalidSettings, match=what):
            async with asyncio.timeout(PATIENCE_S):
                await part()
    await site.dispatcher()
    await until(
        lambda: any(record.levelname == "ERROR" and re.search(what, record.message) for record in caplog.records)
    )


async def _tasks(operator: NatsBus) -> int:
    return int((await operator.api.call("STREAM.INFO.GANGLINE_TASKS", what="count"))["state"]["messages"])


async def _calls(site: Site) -> None:
    await (await site.client("router")).call("images.double", 1)


def _warned_of(switch: str, caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = [record.message for record in caplog.records if record.__dict__.get("action") == "bus.stream_outdated"]
    assert switch in warning and "as an operator" in warning


async def test_a_worker_does_not_make_the_ledger(site: Site):
    worker = await site.bus("worker")
    with pytest.raises(NotPermitted, match="STREAM.CREATE"):
        await worker.api.call("STREAM.CREATE.KV_GANGLINE_LEDGER", {"name": "KV_GANGLINE_LEDGER"}, what="be first")
    assert len(await site.refused()) == 1


async def test_a_worker_cannot_remove_what_others_wrote_to_the_ledger(site_of):
    site: Site = site_of(cut("operator", "coordinator", "one=worker:images.w1"))
    operator, one = await site.bus("operator"), await site.bus("one")
    ledger = await operator.bucket(NAMES.ledger_bucket, BucketSettings())
    await ledger.put("gangset.s1", b"{}")
    for own in ("lease.images.w1.token", "alive.images.w1"):
        for rollup in ("all", "sub"):
            headers = {"Nats-Rollup": rollup}
            answer = await one.request(f"$KV.{ledger.name}.{own}", b"{}", headers=headers, timeout_s=PATIENCE_S)
            assert json.loads(answer.data)["error"]["err_code"] == ROLLUP_NOT_PERMITTED
    assert [entry.key for entry in await ledger.entries(">")] == ["gangset.s1"]


async def test_an_old_bucket_is_brought_up_to_date_by_an_operator_and_others_say_so(site_of, caplog):
    site: Site = site_of(cut("operator", "coordinator"))
    operator = await site.bus("operator")
    name, minute = NAMES.ledger_bucket, 60_000_000_000
    old = {"allow_direct": True, "allow_rollup_hdrs": True, "subject_delete_marker_ttl": minute}
    made = {**stream_configuration(name, BucketSettings(max_bytes=-1)), **old}
    await operator.api.call(f"STREAM.CREATE.KV_{name}", made, what="make the ledger")
    await (await site.bus("coordinator")).bucket(name, BucketSettings())
    _warned_of("allow_rollup_hdrs", caplog)
    await (await site.bus("operator")).bucket(name, BucketSettings())
    found = (await operator.api.call(f"STREAM.INFO.KV_{name}", what="look"))["config"]
    assert not any(found.get(switch) for switch in old)


async def test_an_operator_gives_the_queues_of_an_earlier_version_a_start_among_the_schedules(site_of, caplog):
    site: Site = site_of(cut("operator", "dispatcher"))
    operator = await site.bus("operator")
    storage = TaskStorage()
    tasks = await TaskStreams(operator, NAMES, storage).tasks()
    await operator.request(NAMES.due.replace(">", "images.double"), b"{}", timeout_s=PATIENCE_S)
    found = (await operator.api.call(f"STREAM.INFO.{tasks.name}", what="look"))["config"]
    assert [source.pop("opt_start_seq") for source in found["sources"]] == [1]
    await operator.api.call(f"STREAM.UPDATE.{tasks.name}", found, what="make it as it was")
    await TaskStreams(await site.bus("dispatcher"), NAMES, storage).tasks()
    _warned_of("opt_start_seq", caplog)
    await TaskStreams(await site.bus("operator"), NAMES, storage).tasks()
    found = (await operator.api.call(f"STREAM.INFO.{tasks.name}", what="look"))["config"]
    assert [source["opt_start_seq"] for source in found["sources"]] == [2], "what was due before has been taken"


ROLLUPS = [{"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}]
SCHEDULES = [
    {"Nats-Schedule": text, "Nats-Schedule-Target": target}
    for text in ("@at 2020-01-01T00:00:00Z", "@every 1s")
    for target in ("gangline.task.images.double", "gangline.due.images.double")
]


async def test_a_producer_of_one_endpoint_can_neither_clear_the_queue_nor_schedule_for_another_endpoint(site_of):
    site: Site = site_of(cut("operator", "dispatcher", "billing=producer:invoices"))
    await site.dispatcher()
    operator, billing = await site.bus("operator"), await site.bus("billing")
    await operator.request("gangline.task.images.double", b"[1]", timeout_s=PATIENCE_S)
    for headers in (*ROLLUPS, *SCHEDULES):
        answer = await billing.request("gangline.task.invoices.x", b"[2]", headers=headers, timeout_s=PATIENCE_S)
        number = ROLLUP_NOT_PERMITTED if headers in ROLLUPS else SCHEDULES_DISABLED
        assert json.loads(answer.data)["error"]["err_code"] == number
    for subject in ("gangline.sched.mine", "gangline.due.images.double"):
        with pytest.raises(NotPermitted):
            await billing.request(subject, b"[2]", headers=SCHEDULES[0], timeout_s=PATIENCE_S)
    assert await _tasks(operator) == 1
    assert len(await site.refused()) == 2


async def test_a_worker_cannot_remove_what_is_told_of_jobs(site_of):
    site: Site = site_of(cut("operator", "dispatcher", "one=worker:images.w1"))
    await site.dispatcher()
    operator, one = await site.bus("operator"), await site.bus("one")
    streams = TaskStreams(operator, NAMES)
    await (await streams.jobs()).publish("gangline.job.j.state", b"{}")
    await (await streams.dead()).publish("gangline.dead.a.b", b"{}")
    for headers in (*ROLLUPS, *SCHEDULES):
        answer = await one.request("gangline.job.j.progress", b"{}", headers=headers, timeout_s=PATIENCE_S)
        assert "error" in json.loads(answer.data)
    for stream, subject in (
        (await streams.jobs(), "gangline.job.j.state"),
        (await streams.dead(), "gangline.dead.a.b"),
    ):
        with pytest.raises(StorageUnavailable, match=str(ROLLUP_NOT_PERMITTED)):
            await stream.publish(subject, b"", headers=ROLLUPS[0])
        assert (await stream.state()).messages == 1


async def test_a_producer_of_one_endpoint_delays_and_repeats_its_tasks(site_of):
    site: Site = site_of(cut("operator", "coordinator", "worker", "dispatcher", "shop=producer:images"))
    await site.worker()
    await site.dispatcher()
    shop = await site.client("shop")
    assert await (await shop.options(delay_s=0.5).submit("images.double", 2)).result(PATIENCE_S) == 4
    cron = await shop.options(cron="@every 1s").submit("images.double", 3)
    schedules = await TaskStreams(await site.bus("operator"), NAMES).schedules()
    await until(lambda: schedules.last(NAMES.schedule(cron.id)))
    assert await (await site.client("operator")).job(cron.id).cancel()
    assert await site.refused() == []


async def test_a_producer_of_one_endpoint_cannot_have_its_tasks_run_on_the_pool_of_another(site_of):
    site: Site = site_of(cut("operator", "worker", "dispatcher", "billing=producer:invoices"))
    await site.worker()
    await site.dispatcher()
    billing, operator = await site.client("billing"), await site.client("operator")
    with pytest.raises(JobDead, match="'images', not a pool of the route of 'invoices'"):
        await (await billing.options(pool="images").submit("invoices.double", 2)).result(PATIENCE_S)
    await operator.set_route("invoices", {"to": {"invoices": 1, "images": 0}})
    assert await (await billing.options(pool="images").submit("invoices.double", 2)).result(PATIENCE_S) == 4
    assert await site.refused() == []


async def test_an_operator_of_one_namespace_cannot_touch_the_streams_of_another(site_of):
    site: Site = site_of(configuration(Names("beta"), (parse_user("operator"),)))
    operator = await site.bus("operator")
    asked = [
        *(f"STREAM.{verb}.GANGLINE_TASKS" for verb in ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "MSG.GET")),
        *("STREAM.MSG.DELETE.GANGLINE_TASKS", "CONSUMER.CREATE.GANGLINE_TASKS.BETA_TASKS"),
        *("CONSUMER.CREATE.GANGLINE_TASKS.BETA_TASKS.x", "CONSUMER.MSG.NEXT.GANGLINE_TASKS.BETA_TASKS"),
        *("CONSUMER.DURABLE.CREATE.GANGLINE_TASKS.BETA_TASKS", "DIRECT.GET.KV_GANGLINE_LEDGER"),
    ]
    for operation in asked:
        operator.publish(f"$JS.API.{operation}", b"")
    await operator.flush()
    refused = await site.refused()
    assert len(refused) == len(asked)
    await (await TaskStreams(operator, Names("beta")).tasks()).purge("beta.task.a.>")


async def test_an_acknowledgement_that_is_stored_as_anothers_record_neither_ends_a_job_nor_a_worker(site_of):
    """The server answers to any subject, and what it answers is stored there. Accounts prevent that, roles do not."""
    site: Site = site_of(cut("operator", "worker", "dispatcher", "billing=producer:invoices", "alice=producer:images"))
    worker = await site.worker()
    operator, billing = await site.bus("operator"), await site.bus("billing")
    streams = TaskStreams(operator, NAMES)
    await streams.tasks()
    results = await streams.results()
    ledger = await operator.bucket(NAMES.ledger_bucket, BucketSettings())
    alice = await site.client("alice")
    given = {"Gangline-Job": "victim"}
    await alice._bus.request("gangline.task.images.double", b"[2]", headers=given, timeout_s=PATIENCE_S)
    heartbeats = collect()
    await ledger.watch("alive.images.w1", heartbeats)

    def forged(entries: list[KvEntry]) -> int:
        return next((number for number, entry in enumerate(entries, 1) if b'"stream"' in entry.value), 0)

    for key in ("$KV.GANGLINE_LEDGER.alive.images.w1", "$KV.GANGLINE_RESULTS.result.victim"):
        billing.publish("gangline.task.invoices.x", b"[]", reply=key)
    await heartbeats.until(forged)
    await until(lambda: results.get("result.victim"))
    await heartbeats.until(lambda entries: len(entries) > forged(entries))  # it wrote its heartbeat again
    await site.dispatcher()
    assert await alice.job("victim").result(PATIENCE_S) == 4
    assert worker.state is WorkerState.SERVING


@pytest.mark.long  # the server keeps an open batch for ten seconds
async def test_batches_that_a_worker_keeps_open_delay_a_gang_and_do_not_fail_it(site_of):
    site: Site = site_of(cut("operator", "coordinator", "worker", "router", "one=worker:images.w1"))
    await site.coordinator()
    await site.worker("w2")
    one, operator = await site.bus("one"), await site.bus("operator")
    mine = f"$KV.{NAMES.ledger_bucket}.gangset.mine"

    async def refused() -> bool:
        for number in range(50):  # the most that a stream has; those before them may just have ended
            headers = {"Nats-Batch-Id": f"open-{number}", "Nats-Batch-Sequence": "1"}
            one.publish(f"$KV.{NAMES.ledger_bucket}.alive.images.w1", b"{}", headers=headers)
        await one.flush()
        headers = {"Nats-Batch-Id": "mine", "Nats-Batch-Sequence": "1"}
        answer = await operator.request(mine, b"{}", headers=headers, timeout_s=PATIENCE_S)
        return bool(answer.data) and json.loads(answer.data)["error"]["err_code"] == TOO_MANY_BATCHES

    await until(refused)
    router = await site.client("router")
    async with asyncio.timeout(PATIENCE_S), router.gang(pool="images", size=1) as gang:
        assert await gang.run("double", 2) == [4]
    assert await site.refused() == []
