"""Every panel shows something after the demo."""

from __future__ import annotations

import http.client
import json
import re
import runpy
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gangline.runtime.probes import ask_probe

from ..support.promtool import GET_PROMTOOL, PROMTOOL
from .conftest import Running
from .test_demo import environment

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long, pytest.mark.xdist_group("scrape")]
made: Any = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "dashboards.py"))
STEP_S: Final = 60
"""Time between two scrapes, as Prometheus is told."""
EVERY_S: Final = 0.2
"""Time between two scrapes of the demo."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name and sorted labels."""
Scrape = dict[Series, float]


def scrape(port: int) -> Scrape:
    """What is exported on that port, with the label that Prometheus adds."""
    _, text = ask_probe(port, "/metrics", timeout_s=30)
    return {
        (sample.name, tuple(sorted({**sample.labels, "instance": f"127.0.0.1:{port}"}.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gangline_") and not sample.name.endswith("_created")
    }


# -- what is asked ----------------------------------------------------------------------------------------------------


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


def series_of(scrapes: Sequence[Scrape]) -> list[dict[str, str]]:
    """For promtool: each series with its values. One that ends is stale, as Prometheus marks it."""
    found = []
    for name, labels in sorted({series for each in scrapes for series in each}):
        values, before = [], False
        for each in scrapes:
            value = each.get((name, labels))
            values.append(("stale" if before else "_") if value is None else f"{value:.17g}")
            before = value is not None
        text = ",".join(f"{label}={json.dumps(its)}" for label, its in labels)
        found.append({"series": f"{name}{{{text}}}", "values": " ".join(values)})
    return found


def evaluated(
    folder: Path, scrapes: Sequence[Scrape], asked: Mapping[str, str], rules: Sequence[Path] = ()
) -> set[str]:
    """Which of these expressions have a number at any time of the scrapes, by promtool."""
    over_s = STEP_S * len(scrapes)
    tests = {
        where: f"count(count_over_time((({expression}) > -Inf)[{over_s}s:{STEP_S}s])) > bool 0"
        for where, expression in asked.items()
    }
    expected = [{"labels": "{}", "value": 1}]
    whole = {
        "rule_files": [str(path) for path in rules],
        # Samples are loaded up to the last evaluation of rules, also if there are none.
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": series_of(scrapes),
                "promql_expr_test": [
                    {"expr": test, "eval_time": f"{over_s}s", "exp_samples": expected} for test in tests.values()
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(whole))
    done = subprocess.run([PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    empty = {where for where, test in tests.items() if json.dumps(test) in told}
    # Each failure is one of an expression that has nothing: anything else is an error of ours.
    assert told.count("got: nil") == len(empty) and (done.returncode == 0) == (not empty), told
    return set(asked) - empty


# -- the demo ---------------------------------------------------------------------------------------------------------


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
        found.setdefault(name, set()).update(dict(labels))
    for where, expression in panels():
        for name, labels in needs(expression):
            assert name in found and labels - {"source"} <= found[name], (where, name, labels, found.get(name))


@pytest.mark.skipif(not PROMTOOL, reason=GET_PROMTOOL)
def test_no_panel_is_empty_after_the_demo_by_promtool(demo, tmp_path):
    asked = dict(panels())
    absent = 'sum by (pool) (gangline_worker_slots_total{pool="nobody"})'
    shown = evaluated(tmp_path, demo, {**asked, "absent": absent})
    assert "absent" not in shown, "an empty panel would be noticed"
    assert set(asked) - shown == set()
    assert len(asked) > 30
