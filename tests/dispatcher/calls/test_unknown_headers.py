from __future__ import annotations

import pytest

from gangline.dispatcher.calls.unknown_headers import nearest_header, warn_of_unknown_headers
from gangline.schemas.messages.submission import OF_TASKS
from gangline.schemas.wire import headers
from gangline.schemas.wire.own_headers import OF_CALLS
from gangline.telemetry.logs import logger_for


def test_the_nearest_header_is_found_by_what_it_does_not_share_with_all_others() -> None:
    assert nearest_header("gangline-prio", OF_TASKS) == headers.PRIORITY
    assert nearest_header("Gangline-Timout", OF_TASKS) == headers.TIMEOUT
    assert nearest_header("Gangline-Colour", OF_TASKS) is None
    assert nearest_header("Gangline-Dely", OF_TASKS) == headers.DELAY


def test_a_header_of_another_kind_of_message_is_not_a_misspelt_one() -> None:
    assert nearest_header("Gangline-Delay", OF_CALLS) is None, "and not Gangline-Model, which is near"


def test_a_flood_of_names_is_not_logged_without_end(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"Gangline-{number}" + "x" * 500 for number in range(1000)]
    seen: set[str] = set()
    for _ in range(2):
        warn_of_unknown_headers(logger_for("test"), seen, names, OF_TASKS, of="it", kind="call", action="a.b")
    assert len(caplog.records) == 100 and all(len(each.getMessage()) < 200 for each in caplog.records)
