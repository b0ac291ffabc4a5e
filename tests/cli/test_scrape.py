"""Every panel shows something after the demo."""

from __future__ import annotations

import http.client
import re
import runpy
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gangline.runtime.probes import ask_probe

from .conftest import Running
from .test_demo import environment

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long, pytest.mark.xdist_group("scrape")]
made: Any = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "dashboards.py"))
EVERY_S: Final = 0.2
"""Time between two scrapes of the demo."""

Scrape = set[tuple[str, frozenset[str]]]
"""Names of series, each with its labels."""


def scrape(port: int) -> Scrape:
    """What is exported on that port."""
    _, text = ask_probe(port, "/metrics", timeout_s=30)
    return {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def panels() -> Iterable[tuple[str, str]]:
    """Where each stands, and the expression with Prometheus's names, for all values of the variables."""
    for dashboard in made["DASHBOARDS"]:
        for _, row in dashboard.rows:
            for panel in row:
                for number, (expression, _) in enumerate(panel.expressions, 1):
                    where = f"{dashboard.name}: {panel.title} ({number})"
                    yield where, re.sub(r"\$\w+", ".*", made["resolved"](expression))


def needs(expression: str) -> set[tuple[str, frozenset[str]]]:
    """Metrics of an expression, each with the labels that it is matched or grouped by."""
    labels = {name.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for name in group.split(",")}
    labels |= set(re.findall(r"(\w+)=~?\"", expression))
    names = set(re.findall(r"gangline_\w+", expression))
    return {(name, frozenset(labels)) for name in names}


@pytest.fixture(scope="module")
def demo(forks, tmp_path_factory) -> Iterator[list[Scrape]]:
    """What is scraped while the demo runs, which waits for that at some points."""
    folder = tmp_path_factory.mktemp("demo")
    running = Running(forks, ("demo", "--files", "40", "--metrics-port", "0"), environment(folder), folder)
    try:
        port = int(running.await_output(r"Metrics .* http://127\.0\.0\.1:\d+").rpartition(":")[2])
        found = []
        while True:
            try:
                found.append(scrape(port))
            except (OSError, http.client.HTTPException):
                break  # it has ended
            time.sleep(EVERY_S)
        assert running.wait() == 0, running.output
        assert "Nobody reads the metrics" not in running.output
        yield found
    finally:
        running.close()


def test_the_demo_exports_each_series_and_label_that_a_panel_names(demo):
    found: dict[str, set[str]] = {}
    for name, labels in {series for each in demo for series in each}:
        found.setdefault(name, set()).update(labels)
    for where, expression in panels():
        for name, labels in needs(expression):
            assert name in found and labels - {"source"} <= found[name], (where, name, labels, found.get(name))
