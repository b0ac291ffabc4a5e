"""The history is written behind the decisions: in batches, bounded, and what is lost is counted."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Bus, Message, Storage
from gangline.bus.streams import history_recorder
from gangline.bus.streams.history_recorder import (
    BATCH,
    FLUSH_S,
    MOST_KEPT,
    HistoryRecorder,
    HistorySettings,
    HistorySummary,
)
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import DeadlineExceeded, InvalidSettings
from gangline.schemas.names import Names
from gangline.schemas.records.history import HistoryKind
from gangline.telemetry.logs import logger_for

NAMES = Names()
KIND = HistoryKind.WORKER_JOINED


def recorder_on(bus: Bus, writer: str = "worker.images.w1", **others: Any) -> HistoryRecorder:
    return HistoryRecorder(
        bus, NAMES, writer, **{"makes_stream": True, "ambient": Environment(), "log": logger_for("test"), **others}
    )


async def stored(bus: Bus) -> list[dict[str, Any]]:
    """All batches, with their subjects."""
    stream = await bus.stream(NAMES.history_stream, HistorySettings().stream(NAMES))
    state, found = await stream.state(), []
    for sequence in range(max(1, state.first_sequence), state.last_sequence + 1):
        message = await stream.get(sequence)
        assert message is not None
        found.append({"subject": message.subject, **json.loads(message.data)})
    return found


@pytest.fixture
async def bus() -> Bus:
    return MemoryServer().connect("history")


@pytest.fixture
async def recorder(bus: Bus) -> AsyncIterator[HistoryRecorder]:
    made = recorder_on(bus)
    yield made
    await made.close()


async def test_records_of_a_second_are_one_message_without_empty_fields(bus, recorder):
    recorder.record(KIND, pool="images", worker="w1", reason="")
    recorder.record(HistoryKind.WORKER_LEFT, pool="images", worker="w1", slots=3)
    assert recorder.statistics().waiting == 2
    await asyncio.sleep(FLUSH_S + 0.1)
    (batch,) = await stored(bus)
    assert batch["subject"] == "gangline-history.worker.images.w1"
    assert batch["dropped"] == 0
    assert [(record["kind"], sorted(record)) for record in batch["records"]] == [
        ("worker_joined", ["at", "kind", "pool", "worker"]),
        ("worker_left", ["at", "kind", "pool", "slots", "worker"]),
    ]
    assert recorder.statistics() == history_recorder.HistoryStatistics(written=2, dropped=0, waiting=0)


async def test_closing_writes_what_waits_and_nothing_is_recorded_afterwards(bus, recorder):
    for _ in range(BATCH + 1):
        recorder.record(KIND)
    await recorder.close()
    assert [len(batch["records"]) for batch in await stored(bus)] == [BATCH, 1]
    assert not recorder.enabled
    recorder.record(KIND)
    await recorder.close()
    assert recorder.statistics().waiting == 0


async def test_a_user_who_may_not_make_the_stream_keeps_its_records_until_somebody_did(bus):
    worker, coordinator = recorder_on(bus, makes_stream=False), recorder_on(bus, "coordinator.c1")
    worker.record(KIND, worker="w1")
    await asyncio.sleep(3 * FLUSH_S)
    assert worker.statistics().waiting == 1
    coordinator.record(HistoryKind.LEADER_ELECTED)
    await asyncio.sleep(60)
    assert worker.statistics().written == coordinator.statistics().written == 1
    assert {batch["subject"] for batch in await stored(bus)} == {
        "gangline-history.worker.images.w1",
        "gangline-history.coordinator.c1",
    }
    await worker.close()
    await coordinator.close()


async def test_a_history_that_is_lost_again_and_again_is_made_again(bus, recorder):
    """A server without its disk, or somebody who deletes the stream."""
    for reason in ("first", "second", "third"):
        recorder.record(KIND, reason=reason)
        await asyncio.sleep(5)
        answer = await bus.request(f"$JS.API.STREAM.MSG.GET.{NAMES.history_stream}", b'{"seq": 1}', timeout_s=5)
        batch = json.loads(base64.b64decode(json.loads(answer.data)["message"]["data"]))
        assert [record["reason"] for record in batch["records"]] == [reason]
        await bus.api.call(f"STREAM.DELETE.{NAMES.history_stream}", what="delete it")


async def test_what_does_not_fit_is_dropped_oldest_first_and_counted_in_the_next_batch(bus, recorder):
    for number in range(MOST_KEPT + 5):
        recorder.record(KIND, count=number + 1)
    assert recorder.statistics().dropped == 5
    await asyncio.sleep(FLUSH_S + 1)
    batches = await stored(bus)
    assert batches[0]["dropped"] == 5
    assert batches[0]["records"][0]["count"] == 6
    assert sum(len(batch["records"]) for batch in batches) == MOST_KEPT


async def test_a_batch_whose_answer_is_lost_is_stored_once(bus, monkeypatch):
    recorder, real, lost = recorder_on(bus), bus.request, []

    async def request(subject: str, data: bytes = b"", **others: Any) -> Any:
        answer = await real(subject, data, **others)
        if subject.startswith("gangline-history") and not lost:
            lost.append(answer)
            raise history_recorder.NoResponders("the answer is lost")
        return answer

    await stored(bus)  # it is there already
    monkeypatch.setattr(bus, "request", request)
    recorder.record(KIND)
    await asyncio.sleep(10)
    assert lost and len(await stored(bus)) == 1


async def test_what_several_record_under_one_id_is_stored_once(bus):
    one, other = recorder_on(bus, "dispatcher.d1"), recorder_on(bus, "dispatcher.d2")
    for recorder in (one, other):
        recorder.record(KIND)
        recorder.record(HistoryKind.ROUTE_SET, once="route.images.7", endpoint="images")
        recorder.record(KIND)
    await one.close()
    await other.close()
    kinds = [record["kind"] for batch in await stored(bus) for record in batch["records"]]
    assert kinds.count("route_set") == 1 and kinds.count("worker_joined") == 4


async def test_an_abandoned_recorder_writes_nothing_more(bus, recorder):
    recorder.record(KIND)
    recorder.abandon()
    await recorder.close()
    assert await stored(bus) == [] and recorder.statistics().dropped == 1


async def test_a_closed_connection_fails_no_decision(bus, recorder):
    await bus.close()
    recorder.record(KIND)
    await asyncio.sleep(5)
    await recorder.close()
    assert recorder.statistics().written == 0 and recorder.statistics().dropped == 1


def actions(caplog) -> list[tuple[str, str]]:
    return [(record.levelname, record.action) for record in caplog.records if record.name == "gangline.test"]


async def test_a_worker_that_leaves_where_no_history_is_kept_has_nothing_to_say(bus, caplog):
    recorder = recorder_on(bus, makes_stream=False)
    recorder.record(KIND)
    with caplog.at_level("DEBUG", "gangline.test"):
        await recorder.close()
    assert actions(caplog) == [("DEBUG", "history.lost")]
    assert recorder.statistics() == history_recorder.HistoryStatistics(written=0, dropped=1, waiting=0)


async def test_a_worker_that_stays_says_once_who_would_keep_its_history(bus, caplog):
    recorder = recorder_on(bus, makes_stream=False)
    with caplog.at_level("INFO", "gangline.test"):
        recorder.record(KIND)
        await asyncio.sleep(60)
        await recorder.close()
    assert actions(caplog) == [("INFO", "history.retry")]
    assert "a coordinator or dispatcher creates one" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"H","seq":0}',
            "the history is not written: storage refuses it: maximum bytes exceeded",
        ),
        (
            b"[1]",
            "the history is not written: something other than JetStream answers on gangline-history.worker.images.w1",
        ),
    ],
)
async def test_why_storage_refuses_the_history_is_logged_in_words(bus, caplog, monkeypatch, recorder, answer, told):
    async def request(_subject: str, _data: bytes = b"", **_others: Any) -> Any:
        return Message(subject="", data=answer)

    monkeypatch.setattr(bus, "request", request)
    with caplog.at_level("INFO", "gangline.test"):
        recorder.record(KIND)
        await asyncio.sleep(5)
    assert [record.getMessage() for record in caplog.records if record.name == "gangline.test"] == [told]


async def test_last_records_that_are_lost_are_logged_as_lost_and_not_as_retried(bus, caplog, monkeypatch, recorder):
    async def request(_subject: str, _data: bytes = b"", **_others: Any) -> Any:
        raise DeadlineExceeded("no answer")

    recorder.record(KIND)
    monkeypatch.setattr(bus, "request", request)
    with caplog.at_level("DEBUG", "gangline.test"):
        await recorder.close()
        await asyncio.sleep(60)
    assert actions(caplog) == [("INFO", "history.lost")]
    assert recorder.statistics().dropped == 1


async def test_what_is_short_is_counted_by_group_once_a_minute(bus, recorder):
    summary = HistorySummary(recorder, HistoryKind.ATTEMPTS)
    for _ in range(1000):
        summary.add(0.25, pool="images", endpoint="resize")
    summary.add(0.5, pool="video", endpoint="play")
    await asyncio.sleep(HistorySummary.PERIOD_S + FLUSH_S + 1)
    (batch,) = await stored(bus)
    assert [(r["pool"], r["endpoint"], r["count"], r["seconds"]) for r in batch["records"]] == [
        ("images", "resize", 1000, 250.0),
        ("video", "play", 1, 0.5),
    ]
    summary.flush()
    assert recorder.statistics().waiting == 0


def test_settings_come_from_the_environment():
    given = {
        "GANGLINE_HISTORY": "off",
        "GANGLINE_HISTORY_MAX_AGE": "2d",
        "GANGLINE_HISTORY_MAX_BYTES": "1000000",
        "GANGLINE_STORAGE": "memory",
    }
    settings = HistorySettings.from_environment(given)
    assert settings == HistorySettings(enabled=False, max_age_s=172_800, max_bytes=1_000_000, storage=Storage.MEMORY)
    assert HistorySettings.from_environment({}) == HistorySettings()
    assert HistorySettings.from_environment({"GANGLINE_MAX_BYTES": "-1"}).max_bytes == -1


@pytest.mark.parametrize(
    ("name", "text"),
    [("GANGLINE_HISTORY", "yes"), ("GANGLINE_HISTORY_MAX_AGE", "week"), ("GANGLINE_HISTORY_MAX_BYTES", "1G")],
)
def test_a_setting_that_cannot_be_read_names_its_variable(name, text):
    with pytest.raises(InvalidSettings, match=name):
        HistorySettings.from_environment({name: text})
