"""When schedules are due, without a server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline.bus.memory.schedules import parse_go_duration, parse_schedule
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import PublishRefused, Storage, StreamSettings

from ...waiting import PATIENCE_S


def unix(text):
    return datetime.fromisoformat(text).timestamp()


def following(schedule, after, number=1, zone=""):
    """The next times of a schedule, as text."""
    parsed = parse_schedule(schedule, zone)
    times, moment = [], unix(after)
    for _ in range(number):
        moment = parsed.next(moment)
        times.append(datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    return times


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * * *", "2026-01-01T00:00:00.5Z", ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"]),
        ("0 0 3 * * *", "2026-01-01T03:00:00Z", ["2026-01-02T03:00:00Z", "2026-01-03T03:00:00Z"]),
        ("*/20 5 * * * *", "2026-01-01T00:05:21Z", ["2026-01-01T00:05:40Z", "2026-01-01T01:05:00Z"]),
        ("0 0 12 31 * *", "2026-01-31T12:00:00Z", ["2026-03-31T12:00:00Z", "2026-05-31T12:00:00Z"]),
        ("0 0 0 29 2 *", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z"]),
        ("0 30 9 * * MON-FRI", "2026-01-02T10:00:00Z", ["2026-01-05T09:30:00Z", "2026-01-06T09:30:00Z"]),
        ("0 0 0 ? JAN,jul 0", "2026-01-30T00:00:00Z", ["2026-07-05T00:00:00Z"]),
        ("0 0 0 13 * 5", "2026-02-07T00:00:00Z", ["2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"]),
        ("10-14/2 0 0 1 1 *", "2026-06-01T00:00:00Z", ["2027-01-01T00:00:10Z", "2027-01-01T00:00:12Z"]),
        ("55/2 * * * * *", "2026-01-01T00:00:00Z", ["2026-01-01T00:00:55Z", "2026-01-01T00:00:57Z"]),
        ("@hourly", "2026-12-31T23:10:00Z", ["2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z"]),
        ("@daily", "2026-12-31T23:10:00Z", ["2027-01-01T00:00:00Z"]),
        ("@weekly", "2026-01-01T00:00:00Z", ["2026-01-04T00:00:00Z"]),
        ("@monthly", "2026-01-01T00:00:00Z", ["2026-02-01T00:00:00Z"]),
        ("@yearly", "2026-01-01T00:00:00Z", ["2027-01-01T00:00:00Z"]),
        ("@every 1h30m", "2026-01-01T00:00:00Z", ["2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z"]),
    ],
)
def test_the_next_times_of_a_schedule(schedule, after, expected):
    assert following(schedule, after, len(expected)) == expected


def test_a_time_of_day_is_that_of_the_zone():
    assert following("0 0 9 * * *", "2026-06-01T00:00:00Z", zone="Europe/Berlin") == ["2026-06-01T07:00:00Z"]
    assert following("0 0 9 * * *", "2026-12-01T00:00:00Z", zone="Europe/Berlin") == ["2026-12-01T08:00:00Z"]


def test_a_moment_is_due_once_and_in_the_past_at_once():
    schedule = parse_schedule("@at 2026-01-01T00:00:00+01:00")
    assert schedule.once
    assert schedule.next(0.0) == unix("2025-12-31T23:00:00Z")
    assert schedule.next(2e9) == 2e9


def test_a_date_that_never_comes_is_refused():
    with pytest.raises(ValueError, match="never comes"):
        parse_schedule("0 0 0 30 2 *")


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "nonsense",
        "@never",
        "@at 2026-01-01T00:00:00",
        "@at soon",
        "@every 10ms",
        "@every 5",
        "* * * * *",
        "* * * * * * *",
        "60 * * * * *",
        "* * 24 * * *",
        "* * * 0 * *",
        "* * * * 13 *",
        "* * * * * 7",
        "5-1 * * * * *",
        "*/0 * * * * *",
        "a * * * * *",
        ", * * * * *",
        "-1 * * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(schedule):
    with pytest.raises(ValueError, match=r"."):
        parse_schedule(schedule)


def test_a_zone_must_exist_and_is_for_cron_only():
    with pytest.raises(ValueError, match="time zone"):
        parse_schedule("* * * * * *", "Mars/Base")
    with pytest.raises(ValueError, match="cron only"):
        parse_schedule("@every 1s", "Europe/Berlin")


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("500ms", 0.5)])
def test_durations_are_read_as_go_writes_them(text, seconds):
    assert parse_go_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "1d", "-1s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_go_duration(text)


async def taken(bus: NatsBus, namespace: str, schedule: str) -> bool:
    """Whether the server takes it."""
    stream = await bus.stream(
        namespace, StreamSettings(subjects=(f"{namespace}.>",), storage=Storage.MEMORY, schedules=True)
    )
    headers = {"Nats-Schedule": schedule, "Nats-Schedule-Target": f"{namespace}.t"}
    try:
        await stream.publish(f"{namespace}.s", b"", headers=headers, timeout_s=PATIENCE_S)
    except PublishRefused:
        return False
    return True


@pytest.mark.server
@pytest.mark.parametrize(
    "schedule",
    ["* * * * * 7", "0 0 0 30 2 *", "@daily", "*/0 * * * * *", "55/2 * * * * *", "0 0 0 ? JAN,jul 0", "1, * * * * *",
     "@every 1h30m", "@every 500ms", "@every 5", "@at 2026-01-01T00:00:00", "0 0 0 * * mon-fri",
     "0 0 0 * * SUN-SAT", "@at 2099-01-01T00:00:00+01:00", "0 0 0 L * *", "TZ=UTC 0 0 0 * * *", "0 0 0 * * FRI#1"],
)  # fmt: skip
async def test_the_server_takes_and_refuses_the_same(connect_to, nats_url, namespace, schedule):
    try:
        ours = parse_schedule(schedule) is not None
    except ValueError:
        ours = False
    assert ours == await taken(await connect_to(nats_url), namespace, schedule)


@pytest.mark.long
@pytest.mark.server
async def test_the_server_refuses_a_list_of_nothing_too(connect_to, nats_server, namespace):
    """It first looks at each second of five years, and answers nobody meanwhile: hence a server of its own."""
    assert not await taken(await connect_to(nats_server.url), namespace, ", * * * * *")
