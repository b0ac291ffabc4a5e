"""What a coordinator shows: one trace for each gang, its metrics, its log lines."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gangline.coordinator.service import CoordinatorState
from gangline.telemetry.tracing import tracer

from ...otel import memory_reader, reading_of
from ...waiting import until


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_a_gang_is_one_trace_with_a_span_for_each_hold_and_member(system, spans):
    for name in ("w1", "w2"):
        await system.worker(name, slots=2)
    system.workers["w2"].delay_s["hold"] = 0.3
    await system.lead()
    owner = tracer.start("owner")
    gang = await system.owner.acquire(pool="train", size=2, strategy="spread", traceparent=owner.traceparent())
    await system.owner.ask("report", {"gang": gang["id"], "generation": 1, "rank": 1, "cause": "crashed"})
    await system.event("formed", nth=2)
    await system.owner.release(gang)
    owner.end()

    (root,) = named(spans, "gangline.gang")
    assert root.parent.span_id == named(spans, "owner")[0].context.span_id
    assert root.attributes["gangline.gang"] == gang["id"]
    generations = sorted(named(spans, "gangline.gang.generation"), key=lambda s: s.attributes["gangline.generation"])
    assert [span.parent.span_id for span in generations] == [root.context.span_id] * 2
    assert generations[0].attributes["error.type"] == "gang_failed"
    assert "error.type" not in generations[1].attributes and "error.type" not in root.attributes

    holds = [
        span for span in named(spans, "gangline.gang.hold") if span.parent.span_id == generations[0].context.span_id
    ]
    took = {span.attributes["gangline.worker"]: span.end_time - span.start_time for span in holds}
    assert set(took) == {"train.w1", "train.w2"}
    assert {span.attributes["gangline.outcome"] for span in holds} == {"held"}
    members = named(spans, "gangline.gang.member")
    assert sorted(span.attributes["gangline.rank"] for span in members) == [0, 0, 1, 1]
    for span in members:
        assert [event.name for event in span.events] == ["formed", "torn_down"]
        assert span.attributes["gangline.outcome"] == "stopped"
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1

    told = [body["traceparent"] for op, body in system.workers["w1"].asked if op == "form"]
    assert [text.split("-")[2] for text in told] == [f"{span.context.span_id:016x}" for span in generations]


async def test_a_gang_that_was_queued_under_another_leader_is_held_in_its_own_trace(system, spans):
    await system.worker(slots=1)
    first = await system.lead()
    held = await system.owner.acquire(pool="train", size=1, ttl_s=60)
    owner = tracer.start("owner")
    queued = await system.owner.acquire(pool="train", size=1, wait=False, ttl_s=60, traceparent=owner.traceparent())
    owner.end()
    await first.stop()
    await system.lead("second")
    await system.owner.release(held)
    await system.event("formed", queued["id"])
    await system.owner.release(queued)
    (asked,) = named(spans, "owner")
    mine = [s for s in spans.get_finished_spans() if s.context.trace_id == asked.context.trace_id]
    assert [span.name for span in mine].count("gangline.gang") == 2
    assert {"gangline.gang.hold", "gangline.gang.member", "gangline.gang.generation"} <= {span.name for span in mine}
    # Of the other gang and of this one, and nothing that belongs to neither.
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 2


async def test_metrics_tell_how_gangs_fare(system):
    read = reading_of(memory_reader())
    await system.worker(slots=2)
    coordinator = await system.lead()
    namespace = system.names.namespace
    before = {name: read(f"gangline.gang.{name}") for name in ("restarts", "ended", "form_time", "teardown_time")}
    gang = await system.owner.acquire(pool="train", size=2, backoff_s=0)
    await system.owner.ask("report", {"gang": gang["id"], "generation": 1, "rank": 0, "cause": "failed"})
    await system.event("formed", nth=2)
    waiting = asyncio.create_task(system.owner.acquire(pool="train", size=1))
    await system.event("queued", nth=2)
    await asyncio.sleep(3)
    assert read("gangline.gang.queue_length")[namespace,] == 1
    assert read("gangline.gang.queue_oldest")[namespace,] == pytest.approx(3, abs=0.6)
    assert read("gangline.gang.formed")[namespace,] == 1
    await system.owner.release(gang)
    await system.owner.release(await waiting)

    def grown(name, *key):
        # Attributes come sorted by name.
        return read(f"gangline.gang.{name}")[key] - before[name].get(key, 0)

    assert grown("restarts", "restart", namespace, "failed") == 1
    assert grown("ended", namespace, "released") == 2
    assert grown("form_time", namespace) == 3
    assert grown("teardown_time", namespace) == 3
    commits = coordinator.term.metrics.statistics()
    assert (commits["commits_refused"], commits["restarts"], commits["ended"]) == (0, 1, 2)
    await coordinator.stop()
    assert (namespace,) not in read("gangline.gang.queue_length")


async def test_log_lines_have_an_action_and_the_ids(system, caplog):
    caplog.set_level(logging.INFO, "gangline")
    await system.worker()
    coordinator = await system.lead()
    gang = await system.owner.acquire(pool="train", size=2, backoff_s=0)
    await system.owner.ask("report", {"gang": gang["id"], "generation": 1, "rank": 1, "cause": "crashed"})
    await system.event("formed", nth=2)
    await system.owner.release(gang)
    await coordinator.stop()
    lines = {record.action: record for record in caplog.records if record.name == "gangline.coordinator"}
    assert {"coordinator.started", "coordinator.elected", "coordinator.leads", "coordinator.yields"} <= set(lines)
    assert {"gang.formed", "gang.torn_down", "gang.restarting", "gang.ended"} <= set(lines)
    restarting = lines["gang.restarting"]
    assert restarting.levelno == logging.WARNING
    assert (restarting.gang, restarting.generation, restarting.rank) == (gang["id"], 2, 1)
    assert restarting.term == lines["coordinator.elected"].term
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_leadership_that_changes_again_and_again_does_not_flood_the_log(system, caplog):
    caplog.set_level(logging.INFO, "gangline")
    coordinator = await system.lead()
    first = coordinator.statistics().term
    for _ in range(20):
        coordinator._context.elector.deposed()
        await until(lambda: coordinator.state is CoordinatorState.STANDBY)
        await coordinator.wait_leading()
    assert coordinator.statistics().term >= first + 20
    lines = Counter(record.action for record in caplog.records if record.name == "gangline.coordinator")
    assert {action: count for action, count in lines.items() if count > 15} == {}
    assert min(lines[f"coordinator.{what}"] for what in ("elected", "leads", "yields")) >= 10


async def test_a_traceparent_that_cannot_be_one_is_ignored(system, caplog):
    """It once raised where the gang's record was written, and the request was answered with an internal error."""
    await system.worker("w1", slots=2)
    await system.lead()
    request = system.owner.bus.request
    subject = f"{system.names.namespace}.gang.acquire"
    answer = await request(subject, b'{"pool": "train", "size": 1}', timeout_s=60.0, headers={"traceparent": "0" * 129})
    assert json.loads(answer.data)["state"] == "formed"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
