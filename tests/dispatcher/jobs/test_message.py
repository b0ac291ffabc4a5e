"""What is published when a task is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.calls.call import SubmitOptions
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.submitter import (
    TaskMessage,
    job_of_key,
    moment_of,
    number,
    rfc3339,
    task_message,
    write_arguments,
)
from gangline.schemas.errors.base import InvalidArguments, InvalidSettings
from gangline.schemas.messages.submission import Submission
from gangline.schemas.names import Names
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.codec import Format

NAMES = Names()
WALL = 1_700_000_000.25


def message(target: str = "images.thumbnail", *args: Any, part: int | None = None, **options: Any) -> TaskMessage:
    client = Client(MemoryServer().connect("x")).options(**options)
    return task_message(NAMES, target, args, {}, client._options, token="tok", wall=WALL, trace=None, part=part)


def read(made: TaskMessage) -> Submission:
    return Submission.parse(NAMES, made.subject, made.headers, sequence=7, published_at=100.0)


def test_a_plain_submission_says_its_id_and_nothing_that_is_usual() -> None:
    made = message()
    assert (made.subject, made.data) == ("gangline.task.images.thumbnail", b"")
    assert made.headers == {
        headers.JOB: "images.jtok",
        headers.MESSAGE_ID: "images.jtok",
        headers.FIRST: "true",
        headers.ACCEPT: "application/msgpack",
    }
    assert (made.job, made.scheduled, made.repeats, made.result_kept) == ("images.jtok", False, False, True)


def test_every_option_arrives_as_it_was_given() -> None:
    made = message(
        key="user-7 ä",
        model="m1",
        pool="big",
        priority=-3,
        ordered=True,
        deadline_s=90.5,
        timeout_s=0.001,
        max_attempts=3,
        backoff_s=0.25,
        result_ttl_s=86_400 * 365,
        events=True,
    )
    task = read(made)
    assert (task.key, task.model, task.pool, task.priority, task.ordered) == ("user-7 ä", "m1", "big", -3, True)
    assert (task.deadline_at, task.timeout_s, task.max_attempts) == (190.5, 0.001, 3)
    assert (task.backoff_s, task.result_ttl_s, task.events, task.job) == (0.25, 86_400.0 * 365, True, "images.jtok")


@given(st.floats(0.001, 1e6))
def test_numbers_are_written_so_that_they_are_read_again(value: float) -> None:
    made = message(backoff_s=min(value, 86_400.0))
    again = read(made).backoff_s
    assert again is not None and abs(again - min(value, 86_400.0)) < 1e-6
    assert "e" not in number(value)


def test_an_idempotency_key_is_one_job_for_one_target() -> None:
    first, second = message(idempotency_key="order-7"), message(idempotency_key="order-7")
    assert first.job == second.job == job_of_key("images.thumbnail", "order-7") == first.headers[headers.MESSAGE_ID]
    assert len(first.job) == len("images.") + 27 and first.job.startswith("images.i")
    assert message("images.other", idempotency_key="order-7").job != first.job
    assert len({job_of_key("images.thumbnail", "order-7", tenant) for tenant in ("", "lab", "shop")}) == 3
    assert message(idempotency_key="order-7", part=0).job != message(idempotency_key="order-7", part=1).job


def test_a_delayed_task_says_when_it_may_start_and_its_deadline_counts_from_then() -> None:
    made = message(delay_s=1.5)
    assert made.scheduled and not made.repeats
    assert made.subject == "gangline.task.images.thumbnail"
    assert made.headers[headers.DELAY] == "2023-11-14T22:13:21.750000Z"
    assert read(made).not_before == WALL + 1.5
    assert read(message(delay_s=1.5, deadline_s=10)).deadline_at == 100.0 + 11.5
    assert made.headers[headers.JOB] == "images.jtok"
    assert not message(delay_s=0).scheduled
    assert not any(name.startswith("Nats-Sched") for name in made.headers), "the server would refuse it"


def test_a_moment_is_told_in_utc() -> None:
    moment = datetime(2030, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    assert message(at=moment).headers[headers.DELAY] == "2030-01-31T10:00:00Z" == rfc3339(moment)
    assert moment_of("@at 2030-01-31T10:00:00Z") == moment.timestamp()
    assert moment_of("@every 5m") is None and moment_of("@at tomorrow") is None


def test_a_cron_that_is_declared_anew_replaces_the_first_unless_it_is_the_same() -> None:
    first = message(cron="@daily", idempotency_key="nightly")
    same = message(cron="@daily", idempotency_key="nightly")
    other = message("images.thumbnail", 1, cron="@daily", idempotency_key="nightly")
    later = message(cron="@hourly", idempotency_key="nightly")
    assert first.subject == same.subject == other.subject == later.subject
    ids = [made.headers[headers.MESSAGE_ID] for made in (first, same, other, later)]
    assert ids[0] == ids[1] and len(set(ids)) == 3


def test_options_that_a_task_cannot_have_are_refused() -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ordered": True}, "ordered needs a key"),
        ({"labels": {"gpu": "yes"}}, "labels are for calls"),
        ({"max_attempts": 10_001}, "at most 10000"),
        ({"timeout_s": 0.0001}, "at least 0.001"),
        ({"key": "a\nGangline-Priority: 9"}, "control characters"),
        ({"key": " a"}, "blanks at its ends"),
        ({"model": ""}, "1 to 1024 characters"),
    )
    for options, text in refused:
        with pytest.raises(InvalidSettings, match=text):
            message(**options)


def test_an_option_out_of_its_bounds_is_refused_at_once() -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"priority": 1_000_001},
        {"priority": True},
        {"priority": 1.5},
        {"delay_s": -1},
        {"delay_s": float("nan")},
        {"backoff_s": float("inf")},
        {"result_ttl_s": "1h"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 1025},
        {"cron": "0 0 *\r\n* * *"},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"at": 5},
        {"delay_s": 1, "cron": "@daily"},
    )
    for options in refused:
        with pytest.raises(InvalidSettings, match=next(iter(options))):
            SubmitOptions(**options)


def test_options_add_up_and_a_time_replaces_another() -> None:
    client = Client(MemoryServer().connect("x")).options(priority=3, cron="@daily").options(events=True)
    assert client._options.submit == SubmitOptions(priority=3, cron="@daily", events=True)
    later = client.options(at=datetime(2030, 1, 1, tzinfo=UTC))
    assert later._options.submit is not None and later._options.submit.cron is None
    assert client.options(timeout_s=3)._options.submit is client._options.submit


# -- bodies -------------------------------------------------------------------------------------------------------


class Model(BaseModel):
    value: bytes


@dataclass
class Point:
    x: float


def test_what_json_would_lose_travels_as_msgpack() -> None:
    nested = [1, {"a": (b"",)}]
    many = (b"a", bytearray(b"a"), memoryview(b"a"), nested, {1: 2}, float("nan"), {b""})
    for value in (*many, Model(value=b"a"), Point(float("inf"))):
        data, fmt = write_arguments([value], {}, "p.work")
        assert fmt is Format.MSGPACK, value
        assert isinstance(codec.decode(data, fmt), list), value


def test_all_else_travels_as_json() -> None:
    for value in (1, "a", None, 1.5, [1, [2]], {"a": {"b": True}}, datetime.now(UTC), Point(1.0)):
        assert write_arguments((), {"value": value}, "p.work")[1] is Format.JSON, value


def test_arguments_are_an_object_an_array_or_nothing() -> None:
    assert write_arguments((), {}, "p.work") == (b"", Format.JSON)
    assert write_arguments((1, "a"), {}, "p.work") == (b'[1,"a"]', Format.JSON)
    assert write_arguments((), {"a": 1}, "p.work") == (b'{"a":1}', Format.JSON)
    with pytest.raises(InvalidArguments, match="Name them all"):
        write_arguments((1,), {"a": 1}, "p.work")
