"""Texts of exceptions are cut before they are put together."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest

from gangline.schemas.errors.base import TaskFailed
from gangline.telemetry.exceptions import CUT, MAX_TEXT_CHARS, error_text, traceback_text
from gangline.telemetry.logs import HumanFormatter, JsonFormatter
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

MANY = 20_000
LONG = "x\n" * 500_000


def noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


def chained(raising: Callable[[Exception], Exception]) -> Exception:
    error: Exception = ValueError("the first")
    for _ in range(1000):
        error = raising(error)
    return error


def caused(by: Exception) -> Exception:
    error = ValueError(LONG)
    error.__cause__ = by
    return error


def deep(level: int) -> None:
    if level:
        deep(level - 1)
    raise ValueError("at the bottom")


class Odd(Exception):
    def __str__(self) -> str:
        return LONG


LARGE: dict[str, Callable[[], BaseException]] = {
    "text": lambda: ValueError(LONG),
    "bytes": lambda: ValueError(b"x" * 1_000_000),
    "arguments": lambda: ValueError(*[LONG] * 100),
    "list": lambda: ValueError([LONG] * MANY),
    "dict": lambda: ValueError({"a": {"b": [{"c": LONG}] * MANY}}),
    "key": lambda: KeyError(LONG),
    "its own text": lambda: Odd(),
    "notes": lambda: noted(ValueError("a"), LONG, *["n"] * MANY),
    "group": lambda: ExceptionGroup(LONG, [ValueError(LONG)] * MANY),
    "groups in groups": lambda: ExceptionGroup("a", [ExceptionGroup("b", [ValueError(LONG)] * 9)] * 9),
    "causes": lambda: chained(caused),
    "half surrogate pairs": lambda: ValueError("\ud800" * 1_000_000),
    "syntax": lambda: SyntaxError(LONG, ("f.py", 1, 1, LONG)),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE.keys())
def test_a_large_exception_has_a_short_text(make: Callable[[], BaseException]) -> None:
    error = make()
    for text in (error_text(error), traceback_text(error)):
        assert 0 < len(text) <= 2 * MAX_TEXT_CHARS + 100
        text.encode()
    assert CUT in traceback_text(error)
    record = logging.LogRecord("gangline.worker", logging.WARNING, "f.py", 1, "%s", (LONG,), (type(error), error, None))
    record.reason = LONG
    for formatter in (HumanFormatter(), JsonFormatter()):
        assert len(formatter.format(record)) < 10 * MAX_TEXT_CHARS


def test_a_deep_traceback_has_its_last_calls() -> None:
    with pytest.raises(ValueError, match="bottom") as raised:
        deep(800)
    text = traceback_text(raised.value)
    assert text.count("deep(level - 1)") <= 60
    assert text.endswith("ValueError: at the bottom\n")
    assert "calls" in text


def test_a_small_exception_looks_as_python_shows_it() -> None:
    import traceback

    def raise_it() -> None:
        try:
            raise KeyError("a", 1)
        except KeyError as error:
            raise noted(ValueError("b"), "a note") from error

    with pytest.raises(ValueError, match="b") as raised:
        raise_it()
    assert traceback_text(raised.value) == "".join(traceback.format_exception(raised.value))
    for error in (ValueError(), ValueError(1, "a"), KeyError("a"), OSError(2, "no"), ValueError({"a": [1]}), Odd):
        if isinstance(error, Exception):
            assert error_text(error) == str(error)


async def test_a_task_that_raises_a_large_exception_sends_and_logs_a_short_one() -> None:
    pool = Pool("app")

    @pool.task
    async def fail() -> None:
        raise ValueError(LONG)

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)  # formats as logging itself does
    logging.getLogger("gangline").addHandler(handler)
    try:
        async with cluster(pool) as client:
            with pytest.raises(TaskFailed) as raised:
                await client.call("app.fail")
    finally:
        logging.getLogger("gangline").removeHandler(handler)
    details: dict[str, Any] = raised.value.details
    assert len(raised.value.message) + sum(len(str(value)) for value in details.values()) < 4 * MAX_TEXT_CHARS
    assert CUT in details["traceback"]
    assert len(stream.getvalue()) < 4 * MAX_TEXT_CHARS
