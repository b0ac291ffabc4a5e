"""Log records of one logger."""

from __future__ import annotations

from typing import Any

import pytest


def records_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[Any]:
    """What this logger and those below it have said. `caplog` has what the whole process says, also what a thread or a
    collected object of an earlier test does."""
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]
