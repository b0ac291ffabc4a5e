"""Schedules are taken and refused as the server does, with a word about what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.schemas.errors.base import InvalidSchedule
from gangline.schemas.schedules import check_schedule, short_cron

from ..support.rows import case
from ..support.schedules import REFUSED, STALLING, TAKEN


def test_what_the_server_takes_is_taken():
    for text in TAKEN:
        with case(text):
            assert check_schedule(f" {text} ") == text


@pytest.mark.parametrize("text", ["0 3 * * *", "*/5 * * * mon-fri", " 0  3 1 jan ? "])
def test_five_fields_get_the_second_0(text):
    assert check_schedule(text) == f"0 {text.strip()}"


def test_what_the_server_refuses_or_stumbles_over_is_refused():
    for text in [*REFUSED, *STALLING, "", "  "]:
        with case(text), pytest.raises(InvalidSchedule):
            check_schedule(text)


def test_what_is_refused_says_what_to_write():
    cases = [
        ("0 3 * *", "has 4 fields: a schedule has five fields of cron, such as '0 3 * * *', or six"),
        ("61 3 * * *", "'61' is out of bounds: minutes go from 0 to 59"),
        ("", "it is empty: give five or six fields of cron, such as '0 3 * * *', or '@every 5m'"),
        (", * * * * *", "its seconds match nothing: write \\* for every one"),
        ("0 0 24 * * *", "'24' is out of bounds: hours go from 0 to 23"),
        ("0 0 0 * * fri-mon", "the first value is after the last"),
        ("0 0 0 30 feb *", "no month that it names has such a day"),
        ("@Every 5m", "write '@every', in lower case"),
        ("@HOURLY", "write '@hourly', in lower case"),
        ("@reboot", "there are '@every 5m' and @yearly"),
        ("@every 1d", "a duration such as 30s, 5m or 1h30m"),
        ("@every 10ms", "at least one second"),
        ("@every 9999999h", "longer than 292 years"),
        ("@at noon", "a timestamp such as 2030-01-31T12:00:00Z"),
    ]
    for text, hint in cases:
        hint = hint.replace("'0 3 * * *'", "'0 3 \\* \\* \\*'")
        with case(text, hint), pytest.raises(InvalidSchedule, match=hint):
            check_schedule(text)


@pytest.mark.parametrize("text", ["99 * * * *", "0 0 30 feb *", "0 99 * * * *", "0 0 0 30 feb *"])
def test_a_schedule_that_is_refused_is_quoted_as_it_was_written(text):
    with pytest.raises(InvalidSchedule) as refused:
        check_schedule(f" {text} ")
    assert str(refused.value).startswith(f"'{text}' is not a schedule")


@given(
    st.text(max_size=40) | st.lists(st.text("0123456789*?/-,+ajnmo", max_size=6), min_size=6, max_size=6).map(" ".join)
)
def test_whatever_is_written_is_taken_or_refused(text):
    try:
        assert check_schedule(text).endswith(text.strip())
    except InvalidSchedule as error:
        assert len(error.message) < 400


@pytest.mark.parametrize("text", ["0 3 * * *", "@every 5m", "@daily", "30 0 3 * * *", "*/2 * * * * *"])
def test_people_see_the_schedule_that_they_wrote(text):
    assert short_cron(check_schedule(text)) == text
