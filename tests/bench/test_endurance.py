"""What an hour of load is judged by."""

from __future__ import annotations

from bench.endurance import judged


def minute(mb: float, p99_ms: float) -> dict[str, object]:
    kinds = {"call": {"count": 10, "p50_ms": 1.0, "p99_ms": p99_ms}}
    return {"mb": {"worker": mb}, "kinds": kinds, "errors": {"call": (1, "TimeoutError: ")}}


def test_memory_that_grows_is_not_flat() -> None:
    found = judged([minute(100 + number, 2.0) for number in range(30)])
    assert found["memory"] == {"worker": {"first_mb": 104.5, "last_mb": 124.5, "flat": False}}
    assert (found["requests"], found["errors"]) == (300, 30)


def test_memory_that_moves_a_little_is_flat() -> None:
    assert judged([minute(50 + number % 3, 2.0) for number in range(30)])["memory"]["worker"]["flat"]


def test_the_slowest_requests_of_the_last_third_stand_beside_those_of_the_first() -> None:
    found = judged([minute(50, 2.0)] * 10 + [minute(50, 9.0)] * 10 + [minute(50, 4.0)] * 10)
    assert found["p99"] == {"call": {"first_p99_ms": 2.0, "last_p99_ms": 4.0, "ratio": 2.0}}


def test_a_run_of_some_minutes_is_not_judged() -> None:
    assert judged([minute(50, 2.0)]) == {}
