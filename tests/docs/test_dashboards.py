"""Dashboards and alerts are up to date, use what processes export, and each alert fires."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
import pytest
import yaml

from gangline.cli.app import gangline
from gangline.telemetry.metrics.catalogue import METRICS

from ..support.promtool import GET_PROMTOOL, PROMTOOL
from ..support.rows import case

ROOT = Path(__file__).resolve().parents[2]
made: Any = runpy.run_path(str(ROOT / "docs" / "dashboards.py"))
KEYWORDS: Final = {"by", "without", "on", "ignoring", "and", "or", "unless", "bool", "offset"}
FUNCTIONS: Final = {
    "sum",
    "max",
    "min",
    "count",
    "rate",
    "increase",
    "changes",
    "histogram_quantile",
    "time",
    "max_over_time",
}
KNOWN: Final = {
    (f"{info.prometheus}_{part}" if part else info.prometheus): {*info.attributes, *(("le",) if part else ())}
    for info in METRICS.values()
    for part in (("bucket", "sum", "count") if info.kind == "histogram" else ("",))
} | {
    "up": {"job", "instance"},
    # Of prometheus-nats-exporter.
    **dict.fromkeys(
        (f"jetstream_stream_{name}" for name in ("total_bytes", "limit_bytes", "last_seq")),
        {"server_name", "cluster", "domain", "account", "stream_name", "is_stream_leader"},
    ),
    **dict.fromkeys(
        (f"gnatsd_varz_jetstream_{name}" for name in ("stats_storage", "config_max_storage")), {"server_id"}
    ),
}


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression with Prometheus's names."""
    for dashboard in made["DASHBOARDS"]:
        for _, row in dashboard.rows:
            for panel in row:
                for expression, _ in panel.expressions:
                    yield f"{dashboard.name}: {panel.title}", made["resolved"](expression)
    for alert in made["ALERTS"]:
        yield alert.name, made["resolved"](alert.expression)


ALL: Final = list(expressions())


def used(expression: str) -> tuple[set[str], set[str]]:
    """Names of metrics, and of labels, of an expression."""
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
    labels = {
        name.strip()
        for group in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression)
        for name in group.split(",")
    }
    labels |= {
        name for matchers in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)\s*=~?\"", matchers)
    }
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expression)
    plain = re.sub(r"\b(?:by|without|on|ignoring) \([^)]*\)", "", plain)
    return set(re.findall(r"\b[a-z_]\w*\b", plain)) - KEYWORDS - FUNCTIONS, labels


def test_a_generated_file_is_up_to_date():
    for path in [path for path, _ in made["files"]()]:
        with case(path):
            assert path.read_text() == dict(made["files"]())[path], "run: make docs"


def test_an_expression_names_metrics_and_labels_that_are_exported():
    for where, expression in ALL:
        with case(where, expression):
            names, labels = used(expression)
            assert names and names <= set(KNOWN), names - set(KNOWN)
            for name in names:
                # Both sides of a division have the labels by which they are grouped.
                assert labels - {"source", "obstacle"} <= KNOWN[name], (name, labels)
            assert labels <= set.union(*(KNOWN[name] for name in names))


def test_an_expression_keeps_namespaces_apart():
    """Two of the same name are often scraped by one Prometheus: staging and production."""
    for where, expression in ALL:
        groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        if "gangline_" in expression:
            assert all("namespace" in group for group in groups), (where, expression)
    for info in METRICS.values():
        assert "namespace" in info.attributes or info.name == "gangline.connection.credentials_end", info.name


def test_alerts_have_names_of_their_own_and_say_what_to_do():
    names = [alert.name for alert in made["ALERTS"]]
    assert len(set(names)) == len(names)
    page = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    for alert in made["ALERTS"]:
        assert alert.look and alert.do and alert.fires
        assert f"\n## {alert.name}\n" in page
    rules = yaml.safe_load(made["RULES"].read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == names
    for rule in rules:
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == rule["alert"].lower() and f"\n## {rule['alert']}\n" in (ROOT / file).read_text()


def test_a_command_of_a_runbook_is_one_that_exists():
    """With its options, and as many arguments as it takes."""
    for alert in made["ALERTS"]:
        texts = [*alert.look, *(part for text in alert.do for part in re.findall(r"`(gangline [a-z][^`]*)`", text))]
        for text in texts:
            first, *words = shlex.split(text)
            if first != "gangline" or words[0].startswith("gangline."):
                continue
            with case(alert.name, text):
                command, context = gangline, click.Context(gangline, info_name="gangline")
                while isinstance(command, click.Group):
                    command = command.get_command(context, words.pop(0))
                    assert command is not None
                words = ["4281" if word == "PORT" else word for word in words]
                command.make_context(command.name, words, parent=context)


def test_dashboards_have_ids_of_their_own_and_panels_that_do_not_overlap():
    ids = set()
    for dashboard in made["DASHBOARDS"]:
        whole = json.loads((made["GRAFANA"] / f"{dashboard.name}.json").read_text())
        ids.add(whole["uid"])
        cells = [
            (x, y)
            for panel in whole["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        variables = {variable["name"] for variable in whole["templating"]["list"]}
        asked = set(re.findall(r"\$(\w+)", json.dumps(whole["panels"])))
        assert asked <= variables and variables - asked <= {"pool"}
    assert len(ids) == len(made["DASHBOARDS"])


def firing(alert: Any) -> dict[str, Any]:
    """A unit test of promtool: the alert fires once within the hour."""
    series = [{"series": made["resolved"](name), "values": values} for name, values in alert.fires]
    rule = {
        "expr": f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}}) > 0',
        "eval_time": "50m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    return {"interval": "1m", "input_series": series, "promql_expr_test": [rule]}


BESIDE: Final = [
    (f"gangline_worker_slots_{kind}{{namespace='{namespace}', pool='images', worker='w1'}}", f"{slots}x60")
    for namespace, *uses in (("full", 4, 0, 4), ("idle", 0, 0, 4))
    for kind, slots in zip(("running", "reserved", "total"), uses, strict=True)
]
"""Two namespaces with a pool of the same name."""


def firing_in_one_namespace() -> dict[str, Any]:
    found = firing(SimpleNamespace(name="PoolFull", fires=BESIDE))
    expression = 'count by (namespace) (ALERTS{alertname="PoolFull", alertstate="firing"})'
    sample = {"labels": '{namespace="full"}', "value": 1}
    return {**found, "promql_expr_test": [{"expr": expression, "eval_time": "50m", "exp_samples": [sample]}]}


@pytest.mark.long
@pytest.mark.skipif(not PROMTOOL, reason=GET_PROMTOOL)
def test_each_alert_fires_by_promtool(tmp_path):
    tests = {
        "rule_files": [str(made["RULES"])],
        "evaluation_interval": "1m",
        "tests": [*(firing(alert) for alert in made["ALERTS"]), firing_in_one_namespace()],
    }
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(tests))
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", str(made["RULES"])], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = subprocess.run([PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
