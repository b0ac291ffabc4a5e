"""What the demo exports of its processes, and that it waits until it was read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from gangline.cli.demo.metrics import READ_S, DemoMetrics, merged

WORKER = """\
# HELP slots_running Slots in use
# TYPE slots_running gauge
slots_running{pool="a {b} c",worker="w1"} 2.0
# HELP python_gc Collections
# TYPE python_gc counter
python_gc 7.0
"""


def screen(notes: list[str]) -> Any:
    return SimpleNamespace(note=notes.append)


def test_the_texts_of_several_processes_become_one_that_says_whose_each_sample_is():
    assert merged([("w1", WORKER), ("w2", WORKER.replace("2.0", "3.0"))]).splitlines() == [
        "# HELP slots_running Slots in use",
        "# TYPE slots_running gauge",
        'slots_running{process="w1",pool="a {b} c",worker="w1"} 2.0',
        'slots_running{process="w2",pool="a {b} c",worker="w1"} 3.0',
        "# HELP python_gc Collections",
        "# TYPE python_gc counter",
        'python_gc{process="w1"} 7.0',
        'python_gc{process="w2"} 7.0',
    ]


async def test_it_waits_only_once_if_nobody_reads():
    notes: list[str] = []
    metrics, loop = DemoMetrics(screen(notes), {}, WORKER.encode), asyncio.get_running_loop()
    await metrics.read()
    began = loop.time()
    await metrics.read()
    assert loop.time() == began and began >= READ_S
    assert notes == ["Nobody reads the metrics: the demo goes on without."]
