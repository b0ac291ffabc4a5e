"""Cold starts: the figures, and one of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.chaos.cold_starts import Start, cold_start, table


def started(folder: Path, code: str) -> Start:
    log = folder / "dispatcher.log"
    with log.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL, stderr=err)
    process.wait()
    tie = os.open(os.devnull, os.O_WRONLY)
    return Start(role="dispatcher", process=process, log=log, tie=tie, began=time.monotonic())


@pytest.mark.processes
def test_a_process_that_ends_by_itself_is_no_start(tmp_path: Path) -> None:
    start = started(tmp_path, 'import sys; sys.stderr.write(\'{"action": "start.retry"}\\nno storage\'); sys.exit(4)')
    assert start.look() and (start.seconds, start.code, start.retries) == (None, 4, 1)
    start.trouble = start.complaint()
    assert start.trouble is not None and start.trouble.endswith("code 4, last said: no storage")
    assert "| dispatcher | 1 | 1 | 1 | 0.0 s |" in table([start])
    os.close(start.tie)


@pytest.mark.processes
def test_a_process_that_has_started_and_ends_when_it_is_told_to_is_well(tmp_path: Path) -> None:
    start = started(tmp_path, 'import sys; sys.stderr.write(\'{"action": "dispatcher.started"}\')')
    assert start.look() and start.seconds is not None and start.code is None
    start.code = 0
    assert start.complaint() is None and "| dispatcher | 1 | 0 | 0 |" in table([start])
    os.close(start.tie)


@pytest.mark.long  # test_startup shows how a start waits
@pytest.mark.server
@pytest.mark.processes
@pytest.mark.timeout(300)
async def test_everybody_starts_beside_a_cluster_that_is_still_electing() -> None:
    starts = await cold_start(random.Random(1))
    assert [each.trouble for each in starts if each.trouble] == []
