"""What is written of tasks: records, dead letters, schedules; and what is read from messages."""

from __future__ import annotations

import base64
import json

import pytest

from gangline.bus.port.bus import StreamMessage
from gangline.dispatcher.durable.core.effects import Persist, RecordKind
from gangline.dispatcher.durable.messages.entry import QueuedMessage, job_of, may_have_ended, read_message
from gangline.dispatcher.durable.persistence import records
from gangline.schemas.errors.base import GanglineError, MalformedMessage, TaskFailed
from gangline.schemas.names import Names
from gangline.schemas.records.jobs import DeadReason, JobState, ResultRecord
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.codec import Format

NAMES = Names("ns")
AT = 1_700_000_000.25


def message(body: bytes = b"{}", *, subject: str = "ns.task.images.resize", **given: str) -> StreamMessage:
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return StreamMessage(subject=subject, data=body, headers=named or None, sequence=7, at=AT)


def entry_of(made: StreamMessage) -> QueuedMessage:
    read = read_message(NAMES, made)
    return QueuedMessage(made, None if isinstance(read, GanglineError) else read[0])


def done() -> Persist:
    kind, state = RecordKind.RESULT, JobState.DONE
    return Persist(seq=7, job="7", kind=kind, state=state, attempts=2, started_at=AT + 1, result_ttl_s=60)


def dead(error: GanglineError | None = None) -> Persist:
    return Persist(
        seq=7,
        job="7",
        kind=RecordKind.DEAD_LETTER,
        reason=DeadReason.FAILED,
        error=error or TaskFailed("it raised", details={"type": "ValueError", "traceback": "line 1\nline 2"}),
        attempts=5,
        started_at=AT + 1,
        result_ttl_s=60,
    )


def test_a_result_stands_in_its_record_as_the_json_that_it_is() -> None:
    entry = entry_of(message())
    entry.body, entry.worker, entry.fence = b'{"size":[1,2]}', "images.w1", 12
    record = ResultRecord.model_validate_json(records.result_of(entry, done(), wall=AT + 3))
    assert record.result == {"size": [1, 2]} and record.encoding == "json"
    assert (record.job, record.endpoint, record.method, record.state) == ("7", "images", "resize", JobState.DONE)
    assert (record.attempts, record.worker, record.fence) == (2, "images.w1", 12)
    assert (record.submitted_at, record.started_at, record.finished_at) == (AT, AT + 1, AT + 3)


def test_a_result_of_a_task_in_msgpack_stands_there_as_base64_of_msgpack() -> None:
    entry = entry_of(message(codec.pack({}), Content_Type="application/msgpack"))
    entry.body, entry.fmt = codec.encode(b"\x00\xff", Format.MSGPACK), Format.MSGPACK
    record = ResultRecord.model_validate_json(records.result_of(entry, done(), wall=AT))
    assert record.encoding == "msgpack"
    assert codec.unpack(base64.b64decode(record.result)) == b"\x00\xff"


def test_a_dead_letter_has_the_headers_of_its_message_but_for_the_servers_own() -> None:
    entry = entry_of(message(Gangline_Key="k", Nats_Msg_Id="m", nats_scheduler="s", traceparent="t"))
    given = records.dead_headers(entry, dead(), wall=AT + 3, limit=10_000)
    assert given[headers.KEY] == "k" and given["traceparent"] == "t" and "nats-scheduler" not in given
    assert given[headers.MESSAGE_ID].startswith("dead-7-")
    assert given[headers.SUBJECT] == "ns.task.images.resize" and given[headers.ATTEMPTS] == "5"
    assert given[headers.DEAD_AT] == "2023-11-14T22:13:23.250Z"
    assert all("\n" not in value and value.isascii() for value in given.values())
    assert json.loads(given[headers.DEAD_ERROR])["details"]["traceback"] == "line 1\nline 2"


@pytest.mark.parametrize("limit", [0, 1024, 64 * 1024])
def test_an_error_is_cut_to_the_room_that_there_is(limit: int) -> None:
    error = TaskFailed("m" * 100_000, details={"type": "E", "traceback": "t" * 1_000_000, "more": "é" * 10})
    failure = records.failure_of(error, limit)
    assert len(failure.message) == max(200, min(4000, limit)) and len(json.dumps(failure.details)) <= limit + 100
    if limit > 1000:
        assert failure.details["traceback"].startswith("ttt") and "(cut)" in failure.details["traceback"]


def test_a_delayed_task_goes_back_with_its_id_and_what_is_left_of_its_deadline() -> None:
    made = message(Gangline_Delay="60", Gangline_Deadline="90", Gangline_Key="k", Nats_Msg_Id="m")
    read = read_message(NAMES, made)
    assert not isinstance(read, GanglineError)
    submission, _ = read
    subject, given = records.schedule_of(NAMES, made, submission, wall=made.at)
    assert subject == "ns.sched.7"
    assert given == {
        headers.SCHEDULE: "@at 2023-11-14T22:14:20.250Z",
        headers.SCHEDULE_TARGET: "ns.due.images.resize",
        headers.SCHEDULE_TTL: "24h",
        headers.MESSAGE_ID: "sched-7-1700000000250",
        headers.JOB: "7",
        headers.KEY: "k",
        headers.DEADLINE: "30",
    }
    later = message(Gangline_Delay="60", Gangline_Deadline="2023-11-14T22:14:50Z")
    read = read_message(NAMES, later)
    assert not isinstance(read, GanglineError)
    assert records.schedule_of(NAMES, later, read[0], wall=later.at)[1][headers.DEADLINE] == "2023-11-14T22:14:50.000Z"


@pytest.mark.parametrize(("late_s", "left"), [(59, "30"), (70, "20"), (100, "0")])
def test_a_delayed_task_that_could_not_go_back_before_its_time_gets_no_later_deadline(late_s: float, left: str) -> None:
    made = message(Gangline_Delay="60", Gangline_Deadline="90")
    read = read_message(NAMES, made)
    assert not isinstance(read, GanglineError)
    assert records.schedule_of(NAMES, made, read[0], wall=made.at + late_s)[1][headers.DEADLINE] == left


def test_a_cron_task_goes_back_without_an_id_and_each_firing_has_its_own_deadline() -> None:
    made = message(Gangline_Cron="0 0 3 * * *", Gangline_Deadline="90", Gangline_Job="nightly")
    read = read_message(NAMES, made)
    assert not isinstance(read, GanglineError)
    submission, _ = read
    subject, given = records.schedule_of(NAMES, made, submission, wall=made.at)
    assert subject == "ns.sched.nightly"
    assert given == {
        headers.SCHEDULE: "0 0 3 * * *",
        headers.SCHEDULE_TARGET: "ns.due.images.resize",
        headers.SCHEDULE_TTL: "24h",
        headers.MESSAGE_ID: "sched-7-1700000000250",
        headers.DEADLINE: "90",
        headers.SCHEDULE_JOB: "nightly",
    }


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_body_that_is_no_arguments_is_said_to_be_malformed_before_anything_is_sent() -> None:
    for body in (b"{", b"7", b'"text"', b"\xff"):
        assert isinstance(read_message(NAMES, message(body)), MalformedMessage), body
    assert not isinstance(read_message(NAMES, message(b"")), GanglineError)
    assert not isinstance(read_message(NAMES, message(b"[1, 2]")), GanglineError)


def test_names_of_wrong_targets_are_kept_as_far_as_they_can_be() -> None:
    entry = entry_of(message(subject="ns.task.images.resize.twice"))
    assert entry.submission is None and records.target_of(entry) == ("images", "resize.twice")
    assert NAMES.dead(*records.target_of(entry)) == "ns.dead.images._"
    assert records.target_of(entry_of(message(subject="ns.task.images"))) == ("images", "")


def test_what_may_have_ended_before_is_looked_up() -> None:
    def looks(recorded: bool = True, **given: str) -> bool:
        return may_have_ended(message(**given), recorded=recorded)

    assert not looks()
    assert not looks(Nats_Msg_Id="other"), "its id is its sequence"
    assert looks(Nats_Msg_Id="other", Gangline_Job="j"), "the server may have forgotten the first one's Nats-Msg-Id"
    assert looks(gangline_job="j")
    assert looks(Nats_Msg_Id="j", Gangline_Job="j"), "an idempotency key"
    first = {"Nats_Msg_Id": "j", "Gangline_Job": "j", "Gangline_First": "true"}
    assert not looks(**first), "no message of this job was sent before"
    assert looks(**first, Nats_Scheduler="ns.sched.j")
    assert not looks(recorded=False, Nats_Msg_Id="j", Gangline_Job="j"), "nothing could be found"
    assert looks(Nats_Scheduler="ns.sched.j"), "a schedule may fire twice"


def test_an_id_is_read_from_a_message_that_is_no_task_if_it_is_one() -> None:
    for good in ("order-7_b", "images.order-7_b"):
        assert job_of(message(Gangline_Job=good), "images") == good
    for bad in ("", "a b", "a.b", "images.a.b", "images.", ".a", "é", "x" * 129):
        assert job_of(message(Gangline_Job=bad), "images") == ""


def test_a_message_of_a_tenant_that_is_no_task_has_an_id_of_the_tenant() -> None:
    subject = "ns.task.images.resize.@shop"
    assert job_of(message(subject=subject, Gangline_Job="order-7"), "images") == "images.t4-shop-order-7"
    assert job_of(message(subject=subject), "images").startswith("images.t4-shop-")
    assert job_of(message(subject=subject, Gangline_Job="order-7"), "") == "", "its sequence is"


def test_a_dead_letter_has_no_more_headers_than_a_message_may() -> None:
    error = TaskFailed("é" * 5_000_000, details={"traceback": "éa\n" * 1_000_000})
    sizes = [
        records.size_of_headers(records.dead_headers(entry_of(message()), dead(error), wall=AT, limit=limit))
        for limit in (records.MAX_FAILURE_BYTES, 8192, 1024, 0)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > records.MAX_HEADER_BYTES > sizes[1]


def test_why_it_is_dead_has_room_beside_headers_of_the_task_that_fill_a_message() -> None:
    entry = entry_of(message(Mine="x" * 60_000, Other="y" * 5000, Gangline_Key="k"))
    error = TaskFailed("é" * 5000, details={"traceback": "line\n" * 50_000})
    given = records.dead_headers(entry, dead(error), wall=AT, limit=0)
    assert records.size_of_headers(given) <= records.MAX_HEADER_BYTES
    assert given["Other"] == "y" * 5000 and given["Gangline-Key"] == "k" and "Mine" not in given
    assert given[headers.DEAD_REASON] == "failed" and "é" * 200 in json.loads(given[headers.DEAD_ERROR])["message"]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Gangline_Delay", "9999-12-31T23:59:59Z"),
        ("Gangline_Delay", "9999-12-31T23:59:59-14:00"),
        ("Gangline_Deadline", "2262-06-01T00:00:00Z"),
        ("Gangline_Cron", ""),
    ],
)
def test_a_time_that_the_server_cannot_count_to_is_an_error_that_says_so(header: str, text: str) -> None:
    read = read_message(NAMES, message(**{header: text}))
    assert isinstance(read, GanglineError)
    assert "after the year 2261" in read.message or "it is empty" in read.message


@pytest.mark.parametrize(
    "fields",
    [
        {"Gangline_Job": "a"},
        {"Gangline_Job": "a", "Nats_Msg_Id": "x", "Gangline_Result_Ttl": "0"},
        {"Gangline_Job": " a ", "Gangline_Model": "m", "Gangline_Priority": "3", "Content-Type": "application/msgpack"},
        {"Gangline_Pool": "big", "Gangline_Timeout": "2s", "Gangline_Events": "true", "Gangline_Backoff": "1"},
        {"Gangline_Model": "m" * 2000, "Gangline_Max_Attempts": "7"},
    ],
)
def test_a_form_of_headers_that_was_seen_before_is_read_as_the_first_time(fields: dict[str, str]) -> None:
    made = message(b"", **fields)
    first, again = read_message(NAMES, made), read_message(NAMES, made)
    assert not isinstance(first, GanglineError) and first == again
    other = read_message(NAMES, message(b"", **{**fields, "Gangline_Job": "another"}))
    assert not isinstance(other, GanglineError)
    assert other[0] == first[0]._replace(job="another")
    wrong = read_message(NAMES, message(b"", **{**fields, "Gangline_Job": "no name"}))
    assert isinstance(wrong, GanglineError) and "Gangline-Job" in wrong.message
