"""Every panel shows something after the demo, and every alert fires when what it is about happens to processes."""

from __future__ import annotations

import http.client
import json
import re
import runpy
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gangline import connect_sync
from gangline.runtime.probes import ask_probe

from ..processes.fork_server import PATIENT
from ..support.promtool import GET_PROMTOOL, PROMTOOL
from .conftest import Commands, Running, until
from .test_demo import environment

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long, pytest.mark.xdist_group("scrape")]
made: Any = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "dashboards.py"))
STEP_S: Final = 60
"""Time between two scrapes, as Prometheus is told."""
EVERY_S: Final = 0.2
"""Time between two scrapes of the demo."""
FASTER: Final = 600
"""In alerts' tests, a second that a process measures counts as ten minutes."""
UNPROVOKED: Final = {
    "CommitsRefused",
    "HistoryLost",
    "ScrapeFails",
    "CredentialsEnd",
    "StreamNearLimit",
    "ReplicasBehind",
    "NatsStorageFull",
}
"""What these need is not here: broken storage, for minutes or 10,000 records; series of others; a
certificate. tests/docs/test_dashboards.py has them fire."""

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


def amount(scraped: Scrape, metric: str, **labels: str) -> float:
    """The sum of a metric's series with these labels."""
    return sum(
        value for (name, its), value in scraped.items() if name == metric and labels.items() <= dict(its).items()
    )


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


# -- accidents on purpose ---------------------------------------------------------------------------------------------

TRAIN: Final = """
import asyncio
import pathlib
import gangline

pool = gangline.Pool("train", slots=1)


@pool.gang_start
async def start(gang: gangline.GangContext) -> None:
    if pathlib.Path("broken").exists():
        raise RuntimeError("no device")


@pool.task(idempotent=True)
async def step(works_s: float) -> None:
    '''Rank 0 works so long, and the others wait for it.'''
    gang = gangline.current_task().gang
    if gang.rank == 0:
        await asyncio.sleep(works_s)
    await gang.barrier()
"""
WORKERS: Final = ("t1", "t2", "t3")


class ScrapedProcesses:
    """Some processes, each with a port for scrapes."""

    def __init__(self, commands: Commands, workers: Sequence[str] = WORKERS) -> None:
        self.commands = commands
        self.scrapes: list[Scrape] = []
        self.processes: dict[str, Running] = {}
        self._ports: dict[str, int] = {}
        self._frozen: set[str] = set()
        del commands.environment[PATIENT]  # some are frozen on purpose, and shall notice that soon
        (commands.folder / "train.py").write_text(TRAIN)
        for name, started, *arguments in (
            ("coordinator", r"coordinator\.leads", "coordinator"),
            ("dispatcher", r"dispatcher\.started", "dispatcher"),
            ("gateway", r"gateway\.started", "gateway"),
            ("w1", r"worker\.started", "worker", "words:pool", "--id", "w1"),
            *((name, r"worker\.started", "worker", "train:pool", "--id", name, "--node", name) for name in workers),
        ):
            self.start(name, started, *arguments)

    def start(self, name: str, started: str, *arguments: str) -> None:
        self.processes[name] = process = self.commands.start(*arguments, "--health-port", "0")
        self._ports[name] = int(process.await_output(r"probes +http://127\.0\.0\.1:\d+").rpartition(":")[2])
        process.await_output(started)

    def now(self) -> Scrape:
        """Of all processes that are not frozen."""
        ports = [port for name, port in self._ports.items() if name not in self._frozen]
        return {series: value for port in ports for series, value in scrape(port).items()}

    def scrape(self, minutes: int = 1) -> None:
        """What is exported now, and does not change for so long."""
        self.scrapes += [self.now()] * minutes

    def until(self, more: float, metric: str, **labels: str) -> None:
        """Wait until it has so much."""
        until(lambda: amount(self.now(), metric, **labels) >= more, f"{more:g} of {metric} {labels}")

    def freeze_until(self, name: str, metric: str, **labels: str) -> None:
        """Freeze a process until others have counted one more."""
        now = amount(self.now(), metric, **labels)
        frozen = amount(scrape(self._ports[name]), metric, **labels)
        self._frozen.add(name)
        self.processes[name].signal(signal.SIGSTOP)
        try:
            self.until(now - frozen + 1, metric, **labels)
        finally:
            self.processes[name].signal(signal.SIGCONT)
            self._frozen.remove(name)

    def left(self, name: str) -> None:
        """That process has exited."""
        del self._ports[name]

    # -- what happens -------------------------------------------------------------------------------------------------

    def calls_and_jobs_fail(self) -> None:
        self.commands.run("submit", "words.count", '{"text": "a"}', "--wait")
        for _ in range(4):
            self.commands.run("call", "words.fail", '{"why": "no"}', "--gateway")
            self.scrape(minutes=3)
        self.commands.run("submit", "words.fail", '{"why": "no"}', "--max-attempts", "1", "--wait")
        self.scrape()

    def a_lease_has_all_slots(self, client: Any) -> None:
        """Nothing runs there; a task, a gang and a gang that is too large wait."""
        with client.lease("words", slots=4):
            self.commands.run("submit", "words.count", '{"text": "waits"}')
            self.commands.run("gang", "acquire", "words", "64", "--ttl", "600", "--wait-for-workers", "--no-wait")
            self.until(7, "gangline_gang_queue_oldest_seconds")
            self.until(7, "gangline_queue_oldest_seconds")
            self.until(1, "gangline_gang_waiting", obstacle="impossible")
            self.scrape(minutes=20)
        (impossible,) = self.commands.json("gang", "ls")
        self.commands.run("gang", "rm", impossible["id"], "--force")

    def a_gang_has_accidents(self, client: Any) -> None:
        """One rank is slow; its workers freeze one after the other; and in the end its members cannot start."""
        broken = self.commands.folder / "broken"
        wanted = {"pool": "train", "size": 2, "strategy": "strict_spread", "max_restarts": 100, "backoff_s": 0.05}
        with client.gang(**wanted, ttl_s=600) as gang:
            gang.run("step", 0.0)
            self.scrape()
            gang.run("step", 12.0)
            self.scrape(minutes=8)
            for _ in range(3):
                until(lambda: self._members(gang.id), "the gang is formed")
                self._freeze_worker(self._members(gang.id)[0])
                self.scrape()
            until(lambda: self._members(gang.id), "the gang is formed")
            broken.touch()
            self._freeze_worker(self._members(gang.id)[0])
            self.until(7, "gangline_gang_restarts_total", reason="failed_at_start")
            broken.unlink()
            self.scrape()

    def _members(self, gang: str) -> list[str]:
        """Names of the workers of a formed gang."""
        found = self.commands.json("gang", "show", gang)
        return [seat["worker"].rpartition(".")[2] for seat in found["seats"]] if found["state"] == "formed" else []

    def _freeze_worker(self, name: str) -> None:
        before = amount(self.now(), "gangline_worker_epochs_total", reason="frozen")
        self.freeze_until(name, "gangline_gang_restarts_total", reason="worker_lost")
        self.until(before + 1, "gangline_worker_epochs_total", reason="frozen")

    def leaders_change(self) -> None:
        """Each of two coordinators is frozen until the other one leads."""
        self.start("coordinator2", r"coordinator\.started", "coordinator")
        for _ in range(3):
            for name in ("coordinator", "coordinator2"):
                self.freeze_until(name, "gangline_coordinator_terms_total")
                self.scrape()

    def all_processes_end(self) -> None:
        """Nothing is exported any more."""
        for process in self.processes.values():
            process.signal(signal.SIGKILL)
        self._ports.clear()
        self.scrape(minutes=10)


@pytest.mark.skipif(not PROMTOOL, reason=GET_PROMTOOL)
def test_each_alert_fires_when_what_it_is_about_happens_by_promtool(commands, nats_url, namespace, tmp_path):
    system = ScrapedProcesses(commands)
    system.scrape(minutes=30)
    fires = {
        alert.name: f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}'
        for alert in made["ALERTS"]
        if alert.name not in UNPROVOKED
    }
    assert evaluated(tmp_path, system.scrapes, fires, [made["RULES"]]) == set(), "none fires while all is well"
    with connect_sync(nats_url, namespace=namespace) as client:
        system.calls_and_jobs_fail()
        system.a_lease_has_all_slots(client)
        system.a_gang_has_accidents(client)
    system.leaders_change()
    system.all_processes_end()
    faster = [
        {
            series: value * FASTER if re.search("_seconds(_sum)?$", series[0]) else value
            for series, value in each.items()
        }
        for each in system.scrapes
    ]
    fired = evaluated(tmp_path, faster, fires, [made["RULES"]])
    assert set(fires) - fired == set()
    assert len(fired) == len(made["ALERTS"]) - len(UNPROVOKED)


def test_leases_gang_sets_schedules_and_drains_are_counted(commands, nats_url, namespace):
    system = ScrapedProcesses(commands)
    (commands.folder / "set.yaml").write_text("{name: llama, gangs: 1, gang: {pool: train, size: 2, strategy: spread}}")
    assert commands.run("gangset", "apply", "set.yaml").returncode == 0
    system.until(1, "gangline_gang_formed")
    system.until(2, "gangline_worker_gang_members", pool="train")
    assert commands.run("submit", "words.count", '{"text": "a"}', "--cron", "@every 1s").returncode == 0
    system.until(2, "gangline_queue_started_total", endpoint="words")
    system.until(1, "gangline_queue_pending", endpoint="words", obstacle="schedule")
    with connect_sync(nats_url, namespace=namespace) as client:
        with client.lease("words", slots=2):
            system.until(2, "gangline_worker_slots_reserved", pool="words")
        system.until(1, "gangline_worker_leases_total", pool="words", event="released")
        busy = [
            name for name in WORKERS if amount(system.now(), "gangline_worker_gang_members", pool="train", worker=name)
        ]
        client.drain(f"train.{busy[0]}")
    assert system.processes[busy[0]].wait() == 0
    system.left(busy[0])
    system.until(2, "gangline_worker_gang_members", pool="train")
    assert amount(system.now(), "gangline_worker_slots_total", pool="train") == 2
