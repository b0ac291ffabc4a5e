"""Cold starts: the figures, and one of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.cold_starts import Start, cold_start, table
from gangline.testing.kit.processes import Crew


def started(folder: Path, text: str, code: int) -> Start:
    def launch(_: object, *, environment: object, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", f"import sys; sys.stderr.write({text!r}); sys.exit({code})"], **streams
        )

    start = Start(role="dispatcher", process=Crew(folder, {}, launch).start("dispatcher", ""))
    os.waitid(os.P_PID, start.process.pid, os.WEXITED | os.WNOWAIT)
    return start


@pytest.mark.processes
def test_a_process_that_ends_by_itself_is_no_start(tmp_path: Path) -> None:
    start = started(tmp_path, '{"action": "start.retry"}\nno storage\n', 4)
    assert start.look() and (start.seconds, start.code, start.retries) == (None, 4, 1)
    start.trouble = start.complaint()
    assert start.trouble is not None and start.trouble.endswith("code 4, last logged: no storage")
    assert "| dispatcher | 1 | 1 | 1 | 0.0 s |" in table([start])


@pytest.mark.processes
def test_a_process_that_has_started_and_ends_when_it_is_told_to_is_well(tmp_path: Path) -> None:
    start = started(tmp_path, '{"action": "dispatcher.started"}\n', 0)
    assert start.look() and start.seconds is not None and start.code is None
    start.code = 0
    assert start.complaint() is None and "| dispatcher | 1 | 0 | 0 |" in table([start])


@pytest.mark.long  # test_startup shows how a start waits
@pytest.mark.server
@pytest.mark.processes
@pytest.mark.timeout(300)
async def test_everybody_starts_beside_a_cluster_that_is_still_electing() -> None:
    starts = await cold_start(random.Random(1))
    assert [each.trouble for each in starts if each.trouble] == []
