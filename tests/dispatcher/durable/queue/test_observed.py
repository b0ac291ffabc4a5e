"""What spans, numbers, events and discovery tell of durable tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gangline.bus.port.bus import Message
from gangline.schemas.messages.jobs import DispatcherStats, QueueStats
from gangline.schemas.names import DispatcherOperation, QueueOperation
from gangline.schemas.records.jobs import DispatcherEvent, JobState, TaskDeadEvent

from ....otel import Reading
from ....support.durable.site import Site

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_each_try_is_a_span_in_the_trace_of_whoever_published_the_task(spans: InMemorySpanExporter) -> None:
    async with Site() as site:
        site.worker()
        site.dispatcher()
        await site.ended(await site.submit("fail", {"times": 1}, traceparent=TRACE))
    tries = [span for span in spans.get_finished_spans() if span.name == "gangline.job work.fail"]
    assert [span.attributes["gangline.attempt"] for span in tries if span.attributes] == [1, 2]
    assert {span.context.trace_id for span in tries} == {0x0AF7651916CD43DD8448EB211C80319C}
    assert [span.status.is_ok for span in tries] == [False, True]
    runs = [span for span in spans.get_finished_spans() if span.name == "gangline.task work.fail"]
    assert [span.parent.span_id for span in runs if span.parent] == [span.context.span_id for span in tries]


async def test_numbers_tell_what_became_of_tasks(read: Callable[[str], Reading]) -> None:
    async with Site(pool="numbers") as site:
        site.worker(slots=1)
        node = site.dispatcher()
        await site.ended(await site.submit("square", {"x": 1}))
        await site.ended(await site.submit("fail", {"times": 9}, Gangline_Max_Attempts="2"))
        await site.ended(await site.submit("square", b"{"))
        running = await site.submit("square", {"x": 1, "seconds": 30})
        await site.submit("square", {"x": 1})
        await asyncio.sleep(5)
        queue = ("numbers", site.names.namespace)
        assert read("gangline.queue.depth")[queue] == 2 and read("gangline.queue.running")[queue] == 1
        assert 3 < read("gangline.queue.oldest")[queue] < 6
        pending = read("gangline.queue.pending")  # of other tests' queues, too
        assert {key: count for key, count in pending.items() if key[0] == "numbers"} == {(*queue, "slots"): 1}
        await site.eventually(lambda: site.cancel(running))
        await site.empty()
        assert read("gangline.queue.started")[*queue, "numbers"] == 5
        assert read("gangline.queue.done")[queue] == 2 and read("gangline.queue.cancelled")[queue] == 1
        assert read("gangline.queue.dead")[*queue, "failed"] == 1
        assert read("gangline.queue.dead")[*queue, "malformed"] == 1
        assert read("gangline.queue.retried")["task_failed", *queue] == 1
        assert read("gangline.queue.takeovers")[queue] == 1
        assert node.dispatcher.metrics.statistics()["dead"] == 2


@pytest.mark.long
async def test_delayed_tasks_and_schedules_are_counted(read: Callable[[str], Reading]) -> None:
    async with Site(pool="later") as site:
        site.worker()
        node = site.dispatcher(count_delayed_s=20.0)
        for delay, more in (("30s", {}), ("30s", {}), ("1h", {"Gangline_Job": "later.mine"})):
            await site.submit("square", {"x": 1}, Gangline_Delay=delay, **more)
        await site.submit("square", {"x": 1}, Gangline_Cron="@yearly")

        def delayed() -> float:
            return read("gangline.queue.pending").get(("later", site.names.namespace, "schedule"), 0)

        await asyncio.sleep(10)
        assert delayed() == 0, "they are counted every 20 s"
        await asyncio.sleep(15)
        assert delayed() == 4
        (stats,) = node.dispatcher.statistics().queues
        assert stats.pending == {"schedule": 4} and stats.depth == 0
        await asyncio.sleep(30)
        assert delayed() == 2, "two have run"


async def test_a_dead_task_and_a_dispatchers_coming_and_going_are_broadcast() -> None:
    async with Site() as site:
        heard: list[Message] = []
        listening = await site.own.subscribe(site.names.events, heard.append)
        site.worker()
        node = site.dispatcher()
        job = await site.submit("square", b"{")
        await site.ended(job)
        await site.empty()
        await site.loop.spawn(node.name, node.dispatcher.stop())
        dead = [
            TaskDeadEvent.model_validate_json(message.data)
            for message in heard
            if message.subject == site.names.task_event("work")
        ]
        assert [(event.job, event.reason, event.attempts) for event in dead] == [(job, "malformed", 0)]
        told = [
            DispatcherEvent.model_validate_json(message.data)
            for message in heard
            if message.subject == site.names.dispatcher_event(node.dispatcher.id)
        ]
        kinds = [event.event for event in told if event.event != "here"]
        assert kinds == ["joined", "handed_over", "left"] and told[-2].queues == ("work",)
        await listening.unsubscribe()


async def test_a_dispatcher_answers_for_itself_and_for_its_queues_and_is_found_as_a_service() -> None:
    async with Site() as site:
        node = await site.serve()
        id = node.dispatcher.id
        answer = await site.own.request(site.names.dispatcher(id, DispatcherOperation.STATS), timeout_s=1)
        stats = DispatcherStats.model_validate_json(answer.data)
        assert stats.dispatcher == id and [queue.endpoint for queue in stats.queues] == ["work"]
        answer = await site.own.request(site.names.queue("work", QueueOperation.STATS), timeout_s=1)
        assert QueueStats.model_validate_json(answer.data).dispatcher == id
        answer = await site.own.request(site.names.dispatcher(id, "sing"), timeout_s=1)
        assert json.loads(answer.data)["code"] == "invalid_request"
        answer = await site.own.request("$SRV.STATS.gangline-dispatcher", timeout_s=1)
        (endpoint,) = [each for each in json.loads(answer.data)["endpoints"] if each["name"] == "stats"]
        assert endpoint["data"]["queues"] == ["work"] and endpoint["num_requests"] >= 2
        assert "work" in repr(node.dispatcher) and node.dispatcher.statistics().counts["taken"] == 1


async def test_a_header_that_is_perhaps_misspelt_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Site() as site:
        site.worker()
        site.dispatcher()
        for _ in range(3):
            done = await site.ended(await site.submit("square", {"x": 3}, Gangline_Prio="5", Gangline_Colour="1"))
            assert done.state is JobState.DONE
    told = sorted(record.getMessage() for record in caplog.records if "means nothing" in record.getMessage())
    assert len(told) == 2 and "'Gangline-Colour'" in told[0] and told[0].endswith("is ignored")
    assert told[1].endswith(
        "'Gangline-Prio', which means nothing on a submitted task and is ignored: did you mean 'Gangline-Priority'?"
    )
