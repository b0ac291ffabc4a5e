"""Schedules, and whether nats-server 2.15.1 accepts them; `tests/dispatcher/jobs/test_schedules_server.py` checks
it."""

from __future__ import annotations

from typing import Final

TAKEN: Final = tuple(
    each.strip()
    for each in """
    0 0 3 * * *|* * * * * *|*/5 * * * * *|*/60 * * * * *|*/99 * * * * *|0-5 * * * * *|1,2,3 * * * * *|1,,2 * * * * *
    1, * * * * *|,1 * * * * *|59 59 23 31 12 *|0 0 0 * * 6|0 0 0 * * 0|0 0 0 * * SUN|0 0 0 * * sun|0 0 0 * JAN *
    0 0 0 * jan-mar *|0 0 0 * * mon-fri|0 0 0 ? * *|0 0 0 * * ?|? * * * * *|1/5 * * * * *|1-30/5 * * * * *
    */5,7 * * * * *|0  0 3 * * *|@every 1s|@every 5m|@every 1h30m|@every 1500ms|@every 1.5s|@every .5m|@every +5m
    @every 999999h|@hourly|@daily|@midnight|@weekly|@monthly|@yearly|@annually|@at 2030-01-01T00:00:00Z
    @at 2030-01-01T00:00:00+02:00|@at 2030-01-01T00:00:00.123Z|@at 2020-01-01T00:00:00Z|+1 * * * * *|01 * * * * *
    007 * * * * *|0 0 0 29 2 *|0-59 * * * * *|*-5 * * * * *|*,* * * * * *|*,5 * * * * *|1-1 * * * * *|0 0 0 1,15 * mon
    59/1 * * * * *|0/60 * * * * *|0 0 0 * * thu/2|0 0 0 * feb/3 *|0 0 0 * * mon,wed,fri|*/1 * * * * *|*/+2 * * * * *
    0 0 0 * * MoN|0 0 0 30 2 mon|0 0 0 30 2 */2
    """.strip()
    .replace("\n", "|")
    .split("|")
)
REFUSED: Final = tuple(
    each.strip()
    for each in """
    */0 * * * * *|5-0 * * * * *|60 * * * * *|0 0 24 * * *|0 0 0 0 * *|0 0 0 32 * *|0 0 0 1 13 *|0 0 0 1 0 *
    0 0 0 * * 7|0 0 0 * * Sunday|0 0 0 * * fri-mon|0 0 0 L * *|0 0 0 15W * *|0 0 0 * * 5#3|0 0 0 * * 5L|0 0 3 * * * *
    @every 999ms|@every 500ms|@every 0s|@every -1s|@every 1|@every|@every  5m|@Every 5m|@EVERY 5m|@every 1d|@every 1e3s
    @every 9999999h|@reboot|@HOURLY|@Hourly|@at 2030-01-01|@at  2030-01-01T00:00:00Z|@at|-1 * * * * *|1.5 * * * * *
    0 0 0 30 2 *|0 0 0 31 4 *|0 0 0 31 4,6 *|0-60 * * * * *|*/ * * * * *|/5 * * * * *|*/5/2 * * * * *|1-2-3 * * * * *
    ** * * * * *|TZ=UTC 0 0 3 * * *|a b c d e f|0 0 3 * * * # x|0 0 0 * * 1-7|nonsense|0 3 * *
    @at 2030-02-30T00:00:00Z
    """.strip()
    .replace("\n", "|")
    .split("|")
)
STALLING: Final = (", * * * * *", "0 , * * * *", "0 0 ,, * * *", "0 0 0 , * *", "0 0 0 * , *", "0 0 0 * * ,")
"""A field that matches nothing: the server searches for a time for seconds, then refuses the schedule. Do not send
these."""

assert all(each.strip() for each in (*TAKEN, *REFUSED))
