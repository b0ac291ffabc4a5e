"""Every panel and every alert finds what it needs in what running processes export."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Commands, until

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long]
made: Any = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "dashboards.py"))
PROMTOOL: Final = os.environ.get("PROMTOOL") or shutil.which("promtool") or ""
STEP_S: Final = 15
"""Time between two scrapes, as Prometheus is told; here they follow each other faster."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name and sorted labels."""


def scrape(port: int) -> dict[Series, float]:
    """What one process exports, with the label that Prometheus adds."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("GET", "/metrics")
        text = link.getresponse().read().decode()
    finally:
        link.close()
    return {
        (sample.name, tuple(sorted({**sample.labels, "instance": f"127.0.0.1:{port}"}.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gangline_") and not sample.name.endswith("_created")
    }


def scraped(port: int) -> dict[str, set[str]]:
    """Names of series, and their labels."""
    found: dict[str, set[str]] = {}
    for name, labels in scrape(port):
        found.setdefault(name, set()).update(dict(labels))
    return found


def has(port: int, metric: str, **labels: str) -> bool:
    """Whether a process exports a series with these labels, and not only as 0."""
    return any(
        name == metric and labels.items() <= dict(its).items() and value > 0
        for (name, its), value in scrape(port).items()
    )


def needs(expression: str) -> set[tuple[str, frozenset[str]]]:
    """Metrics of an expression, each with the labels that it is matched or grouped by."""
    labels = {name.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for name in group.split(",")}
    labels |= set(re.findall(r"(\w+)=~?\"", expression))
    names = set(re.findall(r"gangline_\w+", expression))
    return {(name, frozenset(labels)) for name in names}


def expressions() -> Iterable[tuple[str, str]]:
    """Where each stands, and the expression with Prometheus's names, for all values of the variables."""
    for dashboard in made["DASHBOARDS"]:
        for _, row in dashboard.rows:
            for panel in row:
                for number, (expression, _) in enumerate(panel.expressions, 1):
                    where = f"{dashboard.name}: {panel.title} ({number})"
                    yield where, re.sub(r"\$\w+", ".*", made["resolved"](expression))
    for alert in made["ALERTS"]:
        yield alert.name, without_bounds(made["resolved"](alert.expression))


def without_bounds(expression: str) -> str:
    """An alert's expression without comparisons: what is compared must be there while the alert is silent, too."""
    return re.sub(r"\s*(==|!=|>=|<=|>|<)\s*[\d.]+", "", expression)


class System:
    """One process of each kind, each with a port for scrapes."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.ports: list[int] = []
        self.scrapes: list[dict[Series, float]] = []
        for arguments, started in (
            (("coordinator",), r"coordinator\.leads"),
            (("dispatcher",), r"dispatcher\.started"),
            (("gateway",), r"gateway\.started"),
            (("worker", "words:pool", "--id", "w1"), r"worker\.started"),
        ):
            process = commands.start(*arguments, "--health-port", "0")
            self.ports.append(int(process.await_output(r"probes +http://127\.0\.0\.1:\d+").rpartition(":")[2]))
            process.await_output(started)

    @property
    def coordinator(self) -> int:
        return self.ports[0]

    def scrape(self) -> None:
        self.scrapes.append({series: value for port in self.ports for series, value in scrape(port).items()})

    def work(self) -> None:
        """A bit of everything that ends by itself."""
        commands = self.commands
        commands.run("call", "words.count", '{"text": "a b"}', "--gateway")
        commands.run("call", "words.fail", "--gateway")
        commands.run("submit", "words.count", '{"text": "a"}', "--wait")
        commands.run("submit", "words.fail", '{"why": "no"}', "--max-attempts", "2", "--backoff", "10ms", "--wait")
        gang = commands.json("gang", "acquire", "words", "1", "--ttl", "60")
        assert commands.run("gang", "release", gang["id"], "--force").returncode == 0

    def lose_a_worker(self) -> None:
        """One with a member of a gang is killed."""
        victim = self.commands.start("worker", "words:pool", "--id", "w2")
        victim.await_output(r"worker\.started")
        self.commands.json("gang", "acquire", "words", "8", "--ttl", "600")
        victim.signal(signal.SIGKILL)
        assert victim.wait() != 0
        until(lambda: has(self.coordinator, "gangline_gang_restarts_total"), "the gang restarts")

    def have_an_impossible_gang(self) -> None:
        """One waits for more slots than there are; it is left."""
        (broken,) = self.commands.json("gang", "ls")
        self.commands.run("gang", "release", broken["id"], "--force")
        self.commands.run("gang", "acquire", "words", "64", "--ttl", "600", "--wait-for-workers", "--no-wait")
        until(
            lambda: has(self.coordinator, "gangline_gang_waiting", obstacle="impossible"),
            "a gang is said to wait for more than there is",
        )

    def let_others_wait(self) -> None:
        """The slots are in use or kept, and a gang, a call and a task wait."""
        (impossible,) = self.commands.json("gang", "ls")
        self.commands.run("gang", "release", impossible["id"], "--force")
        for _ in range(3):
            self.commands.start("call", "words.hold", "--gateway")
        until(lambda: self.commands.json("stats", "words.w1")["load"]["running"] == 3, "three slots are in use")
        self.commands.start("gang", "acquire", "words", "3", "--ttl", "600")
        until(lambda: has(self.coordinator, "gangline_gang_kept_slots"), "the free slot is kept for the gang")
        self.commands.start("call", "words.count", '{"text": "waits"}', "--gateway")
        self.commands.run("submit", "words.count", '{"text": "waits"}')
        until(lambda: has(self.ports[1], "gangline_queue_pending", obstacle="slots"), "a task waits for slots")
        until(lambda: has(self.ports[2], "gangline_router_queue_size"), "a call waits")


def test_each_expression_finds_its_series_in_what_a_running_system_exports(commands):
    system = System(commands)
    system.work()
    system.lose_a_worker()
    system.have_an_impossible_gang()
    system.let_others_wait()

    def missing() -> set[str]:
        found: dict[str, set[str]] = {}
        for port in system.ports:
            for name, labels in scraped(port).items():
                found.setdefault(name, set()).update(labels)
        lacking = set()
        for _, expression in expressions():
            for name, labels in needs(expression):
                if name not in found:
                    lacking.add(name)
                else:
                    assert labels - {"source"} <= found[name], (name, labels, found[name])
        return lacking

    until(lambda: not missing(), "all series are exported")


def series_of(scrapes: list[dict[Series, float]]) -> list[dict[str, str]]:
    """For promtool: each series with its values. One that ends is stale, as Prometheus marks it."""
    found = []
    for name, labels in sorted({series for each in scrapes for series in each}):
        values, before = [], False
        for each in scrapes:
            value = each.get((name, labels))
            values.append(("stale" if before else "_") if value is None else f"{value:g}")
            before = value is not None
        text = ",".join(f"{label}={json.dumps(its)}" for label, its in labels)
        found.append({"series": f"{name}{{{text}}}", "values": " ".join(values)})
    return found


def evaluated(folder: Path, scrapes: list[dict[Series, float]], asked: Mapping[str, str]) -> dict[str, bool]:
    """Whether each expression has a number at any time of the scrapes, by promtool."""
    over_s = STEP_S * len(scrapes)
    shows = {
        where: f"count(count_over_time((({expression}) > {-math.inf})[{over_s}s:{STEP_S}s])) > bool 0".replace(
            "inf", "Inf"
        )
        for where, expression in asked.items()
    }
    found = {}
    series = series_of(scrapes)
    for where, expression in shows.items():
        test = {
            "interval": f"{STEP_S}s",
            "input_series": series,
            "promql_expr_test": [
                {"expr": expression, "eval_time": f"{over_s}s", "exp_samples": [{"labels": "{}", "value": 1}]}
            ],
        }
        path = folder / "test.yaml"
        # Samples are loaded up to the last evaluation of rules, also if there are none.
        path.write_text(yaml.safe_dump({"evaluation_interval": f"{STEP_S}s", "tests": [test]}))
        done = subprocess.run([PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False)
        told = done.stdout + done.stderr
        assert done.returncode == 0 or "got: nil" in told, f"{where}: {told}"
        found[where] = done.returncode == 0
    return found


@pytest.mark.skipif(not PROMTOOL, reason="no promtool: install it, or set PROMTOOL to its path")
def test_no_panel_is_empty_and_each_alert_has_what_it_compares_by_promtool(commands, tmp_path):
    system = System(commands)
    system.scrape()
    for _ in range(2):
        system.work()
        system.scrape()
    system.lose_a_worker()
    system.scrape()
    system.have_an_impossible_gang()
    system.scrape()
    system.let_others_wait()
    for _ in range(2):
        system.scrape()
    asked = dict(expressions())
    absent = 'sum by (pool) (gangline_worker_slots_total{pool="nobody"})'
    shown = evaluated(tmp_path, system.scrapes, {**asked, "absent": absent})
    assert not shown.pop("absent"), "an empty panel would be noticed"
    assert [where for where, any_ in shown.items() if not any_] == []
    assert len(shown) == len(asked) > 30
