"""bench/flows.py: what a flow goes through does not grow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("flows")  # the flows are followed once

_AT_MOST = {
    "plain call": {"files": 25, "functions": 104, "moves": 92},
    "call with key and metrics": {"files": 30, "functions": 170, "moves": 142},
    "gang: granted, a death, restarted": {"files": 60, "functions": 460, "moves": 2_080},
    "submitted task: fails, retried, result": {"files": 72, "functions": 563, "moves": 910},
}
"""Files: the bars of CONTRIBUTING.md. Functions and moves: a little above what is there; lower them when a flow has
become shorter. Python 3.11 goes through three functions less: what stands in for eager tasks there is not counted."""


@pytest.fixture(scope="module")
def flows() -> dict[str, Any]:
    """In a process of its own: metrics stay switched on where they were once."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "bench.flows", "--json", "--list"], cwd=root, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_no_flow_goes_through_more_than_it_did(flows: dict[str, Any]) -> None:
    grown = {
        f"{flow}: {column}": (flows[flow][column], bar)
        for flow, bars in _AT_MOST.items()
        for column, bar in bars.items()
        if flows[flow][column] > bar
    }
    assert not grown, "more than the bar (found, bar): see `python -m bench.flows --list`"


def test_the_bars_are_those_that_contributors_read() -> None:
    page = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
    told = re.findall(r"^\| (.+?) +\| +\d+ \| +(\d+) \|$", page, flags=re.MULTILINE)
    assert {flow: int(bar) for flow, bar in told} == {flow: bars["files"] for flow, bars in _AT_MOST.items()}


def test_flows_are_followed_to_their_end(flows: dict[str, Any]) -> None:
    ends = {
        "plain call": ["dispatcher/client", "dispatcher/routing", "worker/wire", "worker/execution"],
        "call with key and metrics": [
            "dispatcher/client",
            "dispatcher/routing",
            "worker/execution",
            "telemetry/metrics",
        ],
        "gang: granted, a death, restarted": ["dispatcher/gangs", "coordinator/ledger", "worker/gangs"],
        "submitted task: fails, retried, result": [
            "dispatcher/durable/policies",
            "worker/execution",
            "dispatcher/jobs",
        ],
    }
    assert set(ends) == set(flows)
    for flow, rooms in ends.items():
        entered = {str(PurePosixPath(file).parent) for file in flows[flow]["rooms"]}
        assert set(rooms) <= entered, flow
        assert flows[flow]["moves"] == len(flows[flow]["rooms"]) - 1
