"""What is written at a task's end, where somebody else was faster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import StreamMessage
from gangline.dispatcher.durable.core.effects import LookUpResult, Persist, RecordKind
from gangline.dispatcher.durable.messages.entry import QueuedMessage, read_message
from gangline.dispatcher.durable.persistence import records
from gangline.dispatcher.durable.persistence.outcome_store import OutcomeStore
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import GanglineError, InvalidSchedule, TaskFailed
from gangline.schemas.names import Names
from gangline.schemas.permissions.quotas import Quotas, parse_quotas
from gangline.schemas.records.jobs import DeadReason, JobState, ResultRecord
from gangline.telemetry.logs import logger_for

NAMES = Names("ns")


class Desk:
    def __init__(self, quotas: Quotas | None = None) -> None:
        self.bus = MemoryServer().connect("outcomes")
        self.streams = TaskStreams(self.bus, NAMES)
        log = logger_for("test")
        self.outcomes = OutcomeStore(
            "images",
            self.bus,
            NAMES,
            self.streams,
            settings=DispatcherSettings(node="", quotas=quotas or Quotas()),
            ambient=Environment(),
            sure=self._sure,
            log=log,
        )

    async def _sure(self) -> None:
        pass

    async def ends(self, state: JobState, job: str = "7", submitted_at: float = 1.0) -> None:
        """Somebody writes that the job has ended."""
        record = ResultRecord(job=job, endpoint="images", method="resize", state=state, submitted_at=submitted_at)
        value = record.model_dump_json().encode()
        await (await self.streams.results()).put(NAMES.result_key(job), value, revision=0)

    def entry(self, body: bytes = b"{}", sequence: int = 7, at: float = 1.0, **given: str) -> QueuedMessage:
        named = {name.replace("_", "-"): value for name, value in given.items()}
        message = StreamMessage(subject="ns.task.images.resize", data=body, headers=named, sequence=sequence, at=at)
        read = read_message(NAMES, message)
        return QueuedMessage(message, None if isinstance(read, GanglineError) else read[0])

    def declared(self, job: str) -> QueuedMessage:
        """A recurring schedule of the tenant lab."""
        given = {"Gangline-Cron": "@daily", "Gangline-Job": job}
        message = StreamMessage("ns.task.images.resize.@lab", b"{}", given, 7, 1.0)
        read = read_message(NAMES, message)
        assert not isinstance(read, GanglineError)
        return QueuedMessage(message, read[0])

    async def persists(self, entry: QueuedMessage, effect: Persist) -> GanglineError | None:
        answered: asyncio.Future[GanglineError | None] = asyncio.get_running_loop().create_future()
        self.outcomes.persist("images", entry, effect, answered.set_result)
        return await answered

    async def has_ended(self, job: str = "7") -> bool:
        """Whether a record of its end is found."""
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.outcomes.look("images", LookUpResult(seq=7, job=job), answered.set_result)
        return await answered

    async def buries(self, entry: QueuedMessage, reason: DeadReason = DeadReason.FAILED) -> tuple[int, JobState]:
        """How many dead letters there are then, and what the record says."""
        await self.persists(entry, dead(TaskFailed("it raised"), reason))
        letters = (await (await self.streams.dead()).state()).messages
        found = await (await self.streams.results()).get(NAMES.result_key("7"))
        assert found is not None
        return letters, ResultRecord.model_validate_json(found.value).state


def dead(error: GanglineError, reason: DeadReason = DeadReason.FAILED) -> Persist:
    kind = RecordKind.DEAD_LETTER
    return Persist(seq=7, job="7", kind=kind, reason=reason, error=error, attempts=1, result_ttl_s=60)


def scheduled() -> Persist:
    return Persist(seq=7, job="nightly", kind=RecordKind.SCHEDULE)


@pytest.fixture
async def operations() -> AsyncGenerator[Desk, None]:
    made = Desk()
    made.outcomes.start()
    yield made
    await made.outcomes.stop()
    await made.bus.close()


async def test_the_record_gives_the_reason_of_the_letter_that_a_killed_predecessor_left(operations: Desk) -> None:
    assert await operations.buries(operations.entry()) == (1, JobState.DEAD)
    results = await operations.streams.results()
    await results.delete(NAMES.result_key("7"))  # as if it had been killed before it wrote that
    assert await operations.buries(operations.entry(), DeadReason.EXPIRED) == (1, JobState.DEAD)
    found = await results.get(NAMES.result_key("7"))
    assert found is not None
    record = ResultRecord.model_validate_json(found.value)
    assert record.reason is DeadReason.FAILED and record.error is not None and record.attempts == 1
    assert (record.error.code, record.error.message) == ("task_failed", "it raised")


async def test_a_task_that_was_cancelled_meanwhile_has_no_dead_letter(operations: Desk) -> None:
    await operations.ends(JobState.CANCELLED)
    assert await operations.buries(operations.entry()) == (0, JobState.CANCELLED)


async def test_what_a_predecessor_noted_of_a_try_goes_when_its_record_is_found(operations: Desk) -> None:
    results = await operations.streams.results()
    effect = Persist(
        seq=7, job="7", kind=RecordKind.RESULT, state=JobState.DONE, attempts=1, started_at=None, result_ttl_s=60
    )

    async def was_first() -> None:
        await operations.persists(operations.entry(), effect)

    for ends_it in (operations.has_ended, was_first):
        await results.put(NAMES.try_key("images", "7"), b"of a predecessor that had lost the queue")
        if ends_it is not was_first:
            assert not await operations.has_ended()
            assert await results.get(NAMES.try_key("images", "7")) is not None, "it may be tried again"
            await operations.ends(JobState.CANCELLED)
        await ends_it()
        await operations.outcomes.writer.settled()
        assert await results.get(NAMES.try_key("images", "7")) is None


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_schedule_that_was_cancelled_just_before_it_would_have_been_given_to_the_server_never_is(
    operations: Desk, earlier: bool
) -> None:
    """Unless that was another of the same name, an hour before."""
    entry = operations.entry(Gangline_Cron="@every 5s", Gangline_Job="nightly")
    await operations.ends(JobState.CANCELLED, job="nightly", submitted_at=entry.message.at - 3600 * earlier)
    assert await operations.persists(entry, scheduled()) is None
    schedules = await operations.streams.schedules()
    assert (await schedules.last(NAMES.schedule("nightly")) is not None) == earlier
    assert ((await schedules.state()).last_sequence > 0) == earlier, "it could have fired before it was taken back"
    record = await (await operations.streams.results()).get(NAMES.result_key("nightly"))
    assert (record is None) == earlier, "it is in force, so it is not cancelled any more"


async def test_a_schedule_that_is_given_to_the_server_again_is_not_in_force_again_after_its_end(
    operations: Desk,
) -> None:
    entry = operations.entry(Gangline_Cron="@every 5s", Gangline_Job="nightly")
    schedules = await operations.streams.schedules()
    for _ in range(2):  # the first answer was lost, or whoever waited for it killed
        assert await operations.persists(entry, scheduled()) is None
        await schedules.purge(NAMES.schedule("nightly"))
    assert (await schedules.state()).last_sequence == 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_earlier_declaration_neither_replaces_nor_removes_a_later_one(
    operations: Desk, cancelled: bool
) -> None:
    """The earlier one waited for an answer of the server, or its dispatcher has lost the queue."""
    if cancelled:
        await operations.ends(JobState.CANCELLED, job="nightly", submitted_at=1.0)
    for body, sequence, at in ((b"[2]", 8, 2.0), (b"[1]", 7, 1.0), (b"[3]", 9, 3.0), (b"[2]", 8, 2.0)):
        given = {"Gangline_Cron": "@every 5s", "Gangline_Job": "nightly"}
        entry = operations.entry(body, sequence=sequence, at=at, **given)
        assert await operations.persists(entry, replace(scheduled(), seq=sequence)) is None
    stored = await (await operations.streams.schedules()).last(NAMES.schedule("nightly"))
    assert stored is not None and stored.data == b"[3]"


async def test_what_cannot_be_read_has_a_dead_letter_whatever_job_it_says_that_it_is(operations: Desk) -> None:
    await operations.ends(JobState.DONE)
    entry = operations.entry(Gangline_Priority="high")
    assert entry.submission is None
    assert await operations.buries(entry) == (1, JobState.DONE)


async def test_a_job_whose_id_another_endpoints_job_has_taken_has_its_result_beside_it(operations: Desk) -> None:
    key = NAMES.result_key("order")
    other = ResultRecord(job="order", endpoint="words", method="count", state=JobState.DONE)
    results = await operations.streams.results()
    await results.put(key, other.model_dump_json().encode(), revision=0)
    assert not await operations.has_ended("order"), "that result is none of ours"
    entry, effect = operations.entry(Gangline_Job="order"), replace(dead(TaskFailed("no")), job="order")
    assert await operations.persists(entry, effect) is None
    ours = await results.get(NAMES.result_key("images.order"))
    assert ours is not None and ResultRecord.model_validate_json(ours.value).endpoint == "images"
    found = await results.get(key)
    assert found is not None and found.value == other.model_dump_json().encode()
    assert await operations.has_ended("order")


# -- whatever goes wrong, the task is settled -------------------------------------------------------------------------

ANY_HEADERS = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.sampled_from(["\r\nA: b", "\ud800"]))


@settings(max_examples=30)
@given(odd=ANY_HEADERS, body=st.binary(max_size=8))
async def test_no_header_and_no_body_keeps_a_task_from_becoming_a_dead_letter(odd: dict[str, str], body: bytes) -> None:
    desk = Desk()
    desk.outcomes.start()
    try:
        message = StreamMessage(subject="ns.task.images.resize", data=body, headers=odd, sequence=7, at=1.0)
        effect = dead(TaskFailed("it raised"))
        assert await desk.persists(QueuedMessage(message, None), effect) is None
        assert (await (await desk.streams.dead()).state()).messages == 1
    finally:
        await desk.outcomes.stop()
        await desk.bus.close()


@pytest.mark.parametrize("broken", ["dead_headers", "note_try", "dead_event", "result_of"])
async def test_a_bug_on_the_way_to_a_dead_letter_leaves_one_all_the_same(
    operations: Desk, monkeypatch: pytest.MonkeyPatch, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("nobody thought of this: \u00e4\r\n")

    monkeypatch.setattr(records, broken, fails)
    letters, state = await operations.buries(operations.entry(Key="k"))
    assert (letters, state) == (1, JobState.DEAD)
    assert "outcome.bug" in {record.__dict__.get("action") for record in caplog.records}


@pytest.mark.parametrize(
    ("broken", "effect"),
    [
        ("try_of", Persist(seq=7, job="7", kind=RecordKind.TRY, error=TaskFailed("it raised"), attempts=1)),
        ("result_of", Persist(seq=7, job="7", kind=RecordKind.RESULT, state=JobState.DONE, result_ttl_s=60)),
        ("schedule_of", Persist(seq=7, job="7", kind=RecordKind.SCHEDULE)),
    ],
)
async def test_a_bug_in_any_record_settles_the_task(
    operations: Desk, monkeypatch: pytest.MonkeyPatch, broken: str, effect: Persist
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(records, broken, fails)
    error = await operations.persists(operations.entry(), effect)
    assert isinstance(error, InvalidSchedule) == (effect.kind is RecordKind.SCHEDULE)


async def test_a_result_that_cannot_be_read_is_no_end_of_a_job_and_is_written_over(
    operations: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody had an answer of the server stored there, for example."""
    results, key = await operations.streams.results(), NAMES.result_key("7")
    await results.put(key, b'{"stream":"GANGLINE_TASKS","seq":1}')
    assert not await operations.has_ended()
    done = Persist(seq=7, job="7", kind=RecordKind.RESULT, state=JobState.DONE, result_ttl_s=60)
    await operations.persists(operations.entry(), done)
    found = await results.get(key)
    assert found is not None and ResultRecord.model_validate_json(found.value).state is JobState.DONE
    assert await operations.has_ended()
    assert {record.levelname for record in caplog.records if "is not a result" in record.message} == {"ERROR"}


async def test_a_schedule_above_its_tenants_quota_is_refused_and_not_stored() -> None:
    desk = Desk(parse_quotas(["lab:schedules=1"]))
    desk.outcomes.start()
    try:
        errors = [
            await desk.persists(desk.declared(name), replace(scheduled(), job=f"images.t3-lab-{name}"))
            for name in ("a", "b", "a")
        ]
        stored = (await (await desk.streams.schedules()).state(NAMES.schedules)).subjects
    finally:
        await desk.outcomes.stop()
    assert [error and error.code for error in errors] == [None, "quota_exceeded", None]
    assert list(stored) == ["ns.sched.images.t3-lab-a"]
