"""When schedules are due: as this package reckons, and as a server does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline.bus.memory.stream_store import parse_go_duration
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import PublishRefused, Storage, StreamSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas import schedules
from gangline.schemas.errors.base import InvalidSchedule
from gangline.schemas.schedules import check_schedule, parse_schedule

from ..support.rows import case
from ..waiting import PATIENCE_S


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


def test_the_next_times_of_a_schedule():
    cases = [
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
    ]
    for schedule, after, expected in cases:
        with case(schedule, after, expected):
            assert following(schedule, after, len(expected)) == expected


def test_a_time_of_day_is_that_of_the_zone():
    assert following("0 0 9 * * *", "2026-06-01T00:00:00Z", zone="Europe/Berlin") == ["2026-06-01T07:00:00Z"]
    assert following("0 0 9 * * *", "2026-12-01T00:00:00Z", zone="Europe/Berlin") == ["2026-12-01T08:00:00Z"]


def test_a_moment_is_due_once_and_in_the_past_at_once():
    schedule = parse_schedule("@at 2026-01-01T00:00:00+01:00")
    assert schedule.once
    assert schedule.next(0.0) == unix("2025-12-31T23:00:00Z")
    assert schedule.next(2e9) == 2e9


def test_a_time_that_the_clocks_skip_does_not_come_on_that_day():
    # In Berlin, 02:00 to 03:00 does not exist on March 29th, 2026.
    found = following("0 30 2 * * *", "2026-03-28T12:00:00Z", 2, zone="Europe/Berlin")
    assert found == ["2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"]


def test_a_time_that_the_clocks_repeat_comes_twice():
    # In Berlin, 02:00 to 03:00 is there twice on October 25th, 2026.
    found = following("0 30 2 * * *", "2026-10-24T12:00:00Z", 3, zone="Europe/Berlin")
    assert found == ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]


def test_each_hour_comes_once_where_the_clocks_change():
    found = following("@hourly", "2026-10-24T23:59:00Z", 4, zone="Europe/Berlin")
    assert found == ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]
    found = following("@hourly", "2026-03-28T23:59:00Z", 3, zone="Europe/Berlin")
    assert found == ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]


def test_a_day_begins_at_midnight_of_the_zone():
    assert following("@daily", "2026-06-01T12:00:00Z", zone="America/New_York") == ["2026-06-02T04:00:00Z"]


def test_a_step_over_all_days_of_the_week_limits_them():
    # As the server: `*/2` counts as a limit, `*` does not.
    assert following("0 0 0 1 * */2", "2026-01-01T12:00:00Z", 2) == ["2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z"]


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Mars/Base", "there is no time zone 'Mars/Base': write one such as 'Europe/Berlin'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("Berlin", "did you mean 'Europe/Berlin'"),
        ("../etc/passwd", "there is no time zone"),
        ("Local", "there is no time zone"),
        ("Europe", "there is no time zone"),
    ],
)
def test_a_zone_must_exist(zone, hint):
    with pytest.raises(InvalidSchedule, match=hint):
        check_schedule("0 3 * * *", zone)


@pytest.mark.parametrize("schedule", ["@every 1s", "@at 2030-01-01T00:00:00Z"])
def test_a_zone_is_for_cron_only(schedule):
    with pytest.raises(InvalidSchedule, match="only cron"):
        check_schedule(schedule, "Europe/Berlin")


def test_without_a_time_zone_database_the_server_decides(monkeypatch):
    def none(name):
        raise schedules.zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(schedules.zoneinfo, "ZoneInfo", none)
    monkeypatch.setattr(schedules.zoneinfo, "available_timezones", set)
    assert check_schedule("0 3 * * *", "Europe/Berlin") == "0 0 3 * * *"
    with pytest.raises(InvalidSchedule):
        check_schedule("0 3 * * *", "../etc/passwd")


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("500ms", 0.5)])
def test_durations_are_read_as_go_writes_them(text, seconds):
    assert parse_go_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "1d", "-1s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_go_duration(text)


async def taken(url: str, namespace: str, schedule: str, zone: str = "") -> bool:
    """Whether the server takes it."""
    bus = await connect(ConnectionSettings.from_url(url), name="schedules")
    headers = {"Nats-Schedule": schedule, "Nats-Schedule-Target": f"{namespace}.t", "Nats-Schedule-Time-Zone": zone}
    try:
        settings = StreamSettings(subjects=(f"{namespace}.>",), storage=Storage.MEMORY, schedules=True)
        stream = await bus.stream(namespace, settings)
        given = {name: value for name, value in headers.items() if value}
        await stream.publish(f"{namespace}.s", b"", headers=given, timeout_s=PATIENCE_S)
    except PublishRefused:
        return False
    finally:
        await bus.close()
    return True


@pytest.mark.server
async def test_the_server_takes_and_refuses_the_same_zones(nats_url, namespace):
    for schedule in ["0 0 3 * * *", "@daily", "@every 5m", "@at 2099-01-01T00:00:00Z"]:
        for zone in ["Europe/Berlin", "UTC", "America/Argentina/Buenos_Aires", "Etc/GMT+2", "Mars/Base"]:
            with case(schedule, zone):
                try:
                    ours = bool(check_schedule(schedule, zone))
                except InvalidSchedule:
                    ours = False
                assert await taken(nats_url, namespace, schedule, zone) is ours
