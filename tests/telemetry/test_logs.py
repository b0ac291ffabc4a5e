"""Every line has an action and its ids, and no `extra` can make a log line raise."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gangline.telemetry.logs import FloodFilter, HumanFormatter, JsonFormatter, LineLimit, configure_logging, logger_for


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    kept: list[logging.LogRecord] = []
    logger = logging.getLogger("gangline.test")
    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield kept
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def configured() -> Iterator[Callable[..., io.StringIO]]:
    """Configures logging for the test, and gives what is printed."""
    root, ours = logging.getLogger(), logging.getLogger("gangline")
    before = (root.handlers[:], root.level, ours.level)

    def configure(level: str, **more: Any) -> io.StringIO:
        out = io.StringIO()
        configure_logging(level=level, fmt="json", stream=out, **more)
        return out

    yield configure
    root.handlers[:], root.level, ours.level = before


def test_bound_ids_are_on_each_line_and_the_lines_own_win(lines):
    log = logger_for("test", pool="images", worker="w1").bind(epoch=3)
    log.warning("left after %d tasks", 3, extra={"action": "worker.left", "worker": "w2"})
    (record,) = lines
    assert record.getMessage() == "left after 3 tasks"
    assert (record.action, record.pool, record.worker, record.epoch) == ("worker.left", "images", "w2", 3)


def test_a_field_named_like_one_of_the_records_own_is_renamed_instead_of_raising(lines):
    logger_for("test").error("x", extra={"action": "a", "name": "n", "args": 1, "message": "m", "process": 2})
    assert (lines[0].name_, lines[0].args_, lines[0].message_, lines[0].process_) == ("n", 1, "m", 2)


def test_json_lines_carry_action_ids_and_exception(lines):
    try:
        raise ValueError("why")
    except ValueError:
        logger_for("test").exception("broke", extra={"action": "test.broke", "token": object, "level": "mine"})
    line = json.loads(JsonFormatter().format(lines[0]))
    assert line["action"] == "test.broke"
    assert line["level"] == "error", "an id cannot hide the line's own fields"
    assert line["time"].endswith("+00:00")
    assert "ValueError: why" in line["exception"]
    assert line["token"] == "<class 'object'>"


def test_a_json_line_is_one_line_for_every_reader(lines):
    text = "a\nb\r\x1b[2J\x85\u2028\u2029\x9b"
    logger_for("test").error("%s", text, extra={"action": "a", "id": text})
    written = JsonFormatter().format(lines[0])
    assert len(written.splitlines()) == 1 and written.isprintable()
    assert json.loads(written)["message"] == json.loads(written)["id"] == text


def test_a_line_of_another_library_has_its_loggers_name_as_action():
    record = logging.LogRecord("nats.aio", logging.ERROR, __file__, 1, "boom %s", ("x",), None)
    assert json.loads(JsonFormatter().format(record))["action"] == "log.nats.aio"


def test_human_lines_are_one_line_with_ids_at_the_end(lines):
    logger_for("test", worker="w1").info("serves", extra={"action": "worker.started"})
    text = HumanFormatter().format(lines[0])
    assert text.endswith("INFO     worker.started  serves  worker=w1")
    assert "\n" not in text


def test_configured_logging_prints_ours_from_the_level_up_and_only_warnings_of_others(configured):
    out = configured("debug")
    logger_for("x").debug("mine", extra={"action": "x.y"})
    logging.getLogger("other").info("not shown")
    logging.getLogger("other").warning("shown")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["mine", "shown"]


def test_where_users_code_runs_its_lines_are_printed_from_the_level_up_with_the_tasks_ids(configured):
    out = configured("info", task_ids=lambda record: bool(record.__dict__.setdefault("task_id", "t1")))
    logging.getLogger("app").debug("not shown")
    logging.getLogger("app").info("shown")
    logging.getLogger("nats").info("of no interest")
    (line,) = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (line["message"], line["task_id"], line["action"]) == ("shown", "t1", "log.app")


def test_a_traceback_that_came_as_text_is_printed():
    record = logging.makeLogRecord({"name": "app", "msg": "broke", "exc_text": "Traceback\nValueError: why"})
    assert HumanFormatter().format(record).endswith("broke\n  Traceback\n  ValueError: why")
    assert json.loads(JsonFormatter().format(record))["exception"] == "Traceback\nValueError: why"


def test_a_text_from_outside_cannot_forge_a_line_or_move_the_cursor(lines):
    forged = "bad\n12:00:00.000 ERROR    worker.fenced  gone\x1b[2J\u2028"
    try:
        raise ValueError(forged)
    except ValueError:
        logger_for("test", endpoint=forged).exception("no method %s", forged, extra={"action": "a"})
    first, *traceback = HumanFormatter().format(lines[0]).split("\n")
    assert first.count(r"bad\n12:00:00.000 ERROR    worker.fenced  gone\x1b[2J\u2028") == 2
    assert all(line.startswith("  ") for line in traceback) and traceback[-2] == "  ValueError: bad"
    assert "\x1b" not in "".join(traceback)


def test_lines_that_repeat_are_left_out_and_counted_by_key():
    now = 0.0
    limit = LineLimit(lambda: now, burst=3, every_s=2.0)
    assert [limit.admit("a") for _ in range(5)] == [0, 0, 0, None, None]
    assert limit.admit("b") == 0
    now = 2.0
    assert [limit.admit("a"), limit.admit("a")] == [2, None]
    now = 60.0
    assert [limit.admit("a") for _ in range(4)] == [1, 0, 0, None]


def test_a_flood_of_one_kind_of_line_is_cut_and_counted_and_leaves_the_others_alone():
    now = 0.0
    flood = FloodFilter(lambda: now)

    def admitted(name: str, level: int, **fields: object) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"name": name, "levelno": level, "msg": "x", **fields})
        return record if flood.filter(record) else None

    bad = {"name": "gangline.coordinator", "level": logging.WARNING, "action": "record.unreadable"}
    written = [admitted(**bad) for _ in range(10_000)]
    assert sum(record is not None for record in written) == FloodFilter.BURST
    assert admitted("gangline.coordinator", logging.WARNING, action="gang.lost")
    assert admitted("gangline.coordinator", logging.ERROR, action="record.unreadable")
    assert all(admitted("gangline.coordinator", logging.INFO, action="record.unreadable") for _ in range(999))
    assert all(admitted("shop.tasks", logging.ERROR) for _ in range(999)), "what users log is theirs"
    now = 1.0
    record = admitted(**bad)
    assert record is not None and record.left_out == 10_000 - FloodFilter.BURST
    assert "left_out=9800" in HumanFormatter().format(record)
    assert admitted(**bad) is None
    now = 10_000.0
    record = admitted(**bad)
    assert record is not None and record.left_out == 1


def test_a_flood_of_kinds_takes_no_memory():
    flood = FloodFilter(lambda: 0.0)
    for number in range(5000):
        flood.filter(logging.makeLogRecord({"name": "gangline.x", "levelno": logging.ERROR, "msg": f"m{number}"}))
    assert len(flood._kinds) <= 1000 and len(flood._limit._next) <= 1000
