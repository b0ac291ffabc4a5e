"""Discovery as the `nats` CLI does it."""

from __future__ import annotations

import json
import re

import pytest

from gangline.bus.rpc.micro_service import Endpoint, EndpointStatistics, MicroService, ServiceDescription
from gangline.schemas.errors.base import InvalidSettings

from ...support.logs import records_of
from ...support.rows import in_rows
from ...waiting import PATIENCE_S
from ..conftest import collect

DESCRIPTION = ServiceDescription(
    name="gangline-worker",
    version="0.1.0",
    description="Runs tasks",
    metadata={"pool": "images"},
    endpoints=(Endpoint(name="frames", subject="gangline.worker.images.w1.*", metadata={"a": "b"}),),
)


async def ask(bus, subject, instance):
    """The answer of one instance among whatever else is on the server."""
    got = collect()
    reply = f"{bus.inbox}.{subject.replace('.', '_').replace('$', '')}"
    subscription = await bus.subscribe(reply, got)
    bus.publish(subject, b"", reply=reply)
    await got.until(lambda messages: any(json.loads(m.data or b"{}").get("id") == instance for m in messages))
    await subscription.unsubscribe()
    return [body for m in got.items if (body := json.loads(m.data or b"{}")).get("id") == instance]


@in_rows("suffix", ["", ".gangline-worker", ".gangline-worker.{id}"])
async def test_ping_info_and_stats_are_answered_for_all_for_the_name_and_for_the_instance(connect, suffix):
    asker, bus = await connect(), await connect()
    responder = MicroService(bus, lambda: DESCRIPTION)
    await responder.start()
    await bus.flush()
    suffix = suffix.format(id=responder.id)
    identity = {"name": "gangline-worker", "id": responder.id, "version": "0.1.0", "metadata": {"pool": "images"}}
    assert await ask(asker, f"$SRV.PING{suffix}", responder.id) == [
        {"type": "io.nats.micro.v1.ping_response", **identity}
    ]
    (info,) = await ask(asker, f"$SRV.INFO{suffix}", responder.id)
    assert info == {
        "type": "io.nats.micro.v1.info_response",
        **identity,
        "description": "Runs tasks",
        "endpoints": [
            {"name": "frames", "subject": "gangline.worker.images.w1.*", "queue_group": "", "metadata": {"a": "b"}}
        ],
    }
    (stats,) = await ask(asker, f"$SRV.STATS{suffix}", responder.id)
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", stats["started"])


async def test_counters_are_shown_as_the_protocol_wants_them(bus):
    counters = [EndpointStatistics(name="frames", requests=4, errors=1, last_error="503:x", processing_s=2.0)]
    responder = MicroService(bus, lambda: DESCRIPTION, statistics=lambda: counters)
    await responder.start()
    (stats,) = await ask(bus, "$SRV.STATS", responder.id)
    assert stats["endpoints"] == [
        {
            "name": "frames",
            "subject": "gangline.worker.images.w1.*",
            "queue_group": "",
            "num_requests": 4,
            "num_errors": 1,
            "last_error": "503:x",
            "processing_time": 2_000_000_000,
            "average_processing_time": 500_000_000,
        }
    ]
    counters[:] = [EndpointStatistics(name="frames", data={"running": 3})]
    (stats,) = await ask(bus, "$SRV.STATS.gangline-worker", responder.id)
    assert stats["endpoints"][0]["data"] == {"running": 3}
    assert stats["endpoints"][0]["average_processing_time"] == 0


async def test_after_stop_nobody_answers_and_both_may_be_called_twice(bus, got):
    responder = MicroService(bus, lambda: DESCRIPTION, instance="mine")
    await responder.stop()
    await responder.start()
    await responder.start()
    assert len(await ask(bus, "$SRV.PING.gangline-worker.mine", "mine")) == 1
    await responder.stop()
    await responder.stop()
    await bus.subscribe(f"{bus.inbox}.x", got)
    bus.publish("$SRV.PING.gangline-worker.mine", b"", reply=f"{bus.inbox}.x")
    (message,) = await got.count(1)
    assert message.headers["Status"] == "503"


async def test_the_description_is_that_of_the_moment(bus):
    now = DESCRIPTION
    responder = MicroService(bus, lambda: now, instance="mine")
    await responder.start()
    now = ServiceDescription(name="gangline-worker", version="0.2.0")
    (info,) = await ask(bus, "$SRV.INFO.gangline-worker.mine", "mine")
    assert info["version"] == "0.2.0" and info["endpoints"] == []


@in_rows(("name", "version"), [("", "1.0.0"), ("a b", "1.0.0"), ("a", "1"), ("a", "one")])
def test_names_and_versions_that_the_protocol_does_not_allow_are_refused(name, version):
    with pytest.raises(InvalidSettings):
        ServiceDescription(name=name, version=version)


async def test_a_question_without_a_reply_subject_is_ignored(bus, caplog):
    await MicroService(bus, lambda: DESCRIPTION, instance="mine").start()
    bus.publish("$SRV.PING")
    await bus.flush()
    assert records_of(caplog, "gangline") == []


@pytest.mark.server
async def test_the_reference_client_understands_the_answers(connect_to, nats_url):
    import nats
    from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

    bus = await connect_to(nats_url)
    counters = [EndpointStatistics(name="frames", requests=2, data={"running": 1})]
    responder = MicroService(bus, lambda: DESCRIPTION, statistics=lambda: counters)
    await responder.start()
    await bus.flush()
    client = await nats.connect(nats_url)
    for verb, model in (("PING", ServicePing), ("INFO", ServiceInfo), ("STATS", ServiceStats)):
        answer = await client.request(f"$SRV.{verb}.gangline-worker.{responder.id}", b"", timeout=PATIENCE_S)
        parsed = model.from_dict(json.loads(answer.data))
        assert parsed.id == responder.id
        assert parsed.name == "gangline-worker"
    await client.close()
