"""The server acknowledges the first message of an atomic batch with an empty body, to whatever reply subject its sender
gives, and an empty body is a valid request of JetStream's API: only the ledger may take batches."""

from __future__ import annotations

import json

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, Storage
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.names import Names

from ..waiting import PATIENCE_S
from .conftest import cut

pytestmark = pytest.mark.server

API = "$JS.API"
NAMES = Names()
DISABLED = 10174
"""The server's error number for a batch to a stream that takes none."""
ROLES = ("operator", "router", "gateway", "dispatcher", "observer")
USERS = (*ROLES, "coordinator", "producer=producer:invoices", "worker=worker:images.w1", "web@shop=producer:invoices")
TARGETS = ("STREAM.PURGE.GANGLINE_TASKS", "STREAM.DELETE.GANGLINE_TASKS", "STREAM.DELETE.KV_GANGLINE_RESULTS")


async def streams_of(bus: NatsBus) -> list[dict]:
    answer = json.loads((await bus.request(f"{API}.STREAM.LIST", timeout_s=PATIENCE_S)).data)
    return [each["config"] for each in answer["streams"]]


async def start(site_of):
    site = site_of(cut(*USERS))
    await site.make_ledger()
    await site.coordinator()
    await site.worker("w1")
    await site.dispatcher()
    operator = await site.bus("operator")
    await operator.request(NAMES.task("nowhere", "x"), b"[]", timeout_s=PATIENCE_S)
    return site, operator


async def test_only_the_ledger_takes_batches(site_of):
    _, operator = await start(site_of)
    taking = [each["name"] for each in await streams_of(operator) if each.get("allow_atomic")]
    assert taking == [f"KV_{NAMES.ledger_bucket}"]
    assert not any(each.get("allow_batched") for each in await streams_of(operator))


async def test_a_batch_header_makes_the_server_send_no_request_for_anyone(site_of):
    site, operator = await start(site_of)
    tasks = await TaskStreams(operator, NAMES, TaskStorage()).tasks()
    subjects = [
        subject.replace(">", "invoices.x").replace("*", "x")
        for each in await streams_of(operator)
        if each["name"] != f"KV_{NAMES.ledger_bucket}"
        for subject in each["subjects"]
    ]
    assert NAMES.task("invoices", "x") in subjects
    for user in (name.partition("=")[0].partition("@")[0] for name in USERS):
        bus = await site.bus(user)
        for number, subject in enumerate(subjects):
            for target in TARGETS:
                headers = {"Nats-Batch-Id": f"{user}-{number}-{target[-12:]}", "Nats-Batch-Sequence": "1"}
                bus.publish(subject, b"[]", reply=f"{API}.{target}", headers=headers)
        await bus.ping()
        streams = {each["name"] for each in await streams_of(operator)}
        assert {"GANGLINE_TASKS", f"KV_{NAMES.results_bucket}"} <= streams, f"{user} had the server carry out a request"
        assert await tasks.last(NAMES.task("nowhere", "x")) is not None, f"{user} had the server carry out a request"


async def test_a_batch_of_tasks_is_refused_with_the_servers_reason(site_of):
    site, _ = await start(site_of)
    producer = await site.bus("producer")
    headers = {"Nats-Batch-Id": "one", "Nats-Batch-Sequence": "1"}
    answer = await producer.request("gangline.task.invoices.x", b"[]", headers=headers, timeout_s=PATIENCE_S)
    assert json.loads(answer.data)["error"]["err_code"] == DISABLED


@pytest.mark.parametrize("name", [f"KV_{NAMES.results_bucket}", "GANGLINE_TASKS"])
async def test_a_stream_of_an_earlier_version_that_takes_batches_is_switched_off_by_an_operator(site_of, name):
    site = site_of(cut("operator", "dispatcher"))
    await site.dispatcher()
    operator = await site.bus("operator")
    config = (await operator.api.call(f"STREAM.INFO.{name}", what="look"))["config"]
    await operator.api.call(f"STREAM.UPDATE.{name}", {**config, "allow_atomic": True}, what="make it old")
    opened = await site.bus("operator")
    if name.startswith("KV_"):
        await opened.bucket(NAMES.results_bucket, BucketSettings(storage=Storage.FILE))
    else:
        await TaskStreams(opened, NAMES, TaskStorage()).tasks()
    config = (await operator.api.call(f"STREAM.INFO.{name}", what="look"))["config"]
    assert not config.get("allow_atomic")
