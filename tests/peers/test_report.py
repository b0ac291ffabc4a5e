"""The page and the chart of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import report
from bench.peers import store
from gangline.bench.figures import FIGURES


def results() -> dict[str, Any]:
    stats = {"median": 1000.0, "low": 900.0, "high": 1100.0}
    row = {
        "done_per_s": stats,
        "submitted_per_s": stats,
        "start_p50_ms": stats,
        "start_p99_ms": stats,
        "cpu_us": {"worker": 40.0},
        "stores": "JetStream, file",
        "durable": True,
        "acks": "after it ran",
        "says": "defaults",
    }
    answers = {
        "answered_per_s": stats,
        "answer_p50_ms": stats,
        "answer_p99_ms": stats,
        "cpu_us": {"worker": 50.0},
        "says": "looked for each 5 ms",
    }
    return {
        "figures": {each.name: None for each in FIGURES} | {"call_c64_vs_raw": 3.0, "durable_vs_best_peer": 1.0},
        "spread": {
            "call_c64_vs_raw": {"worst": 2.5, "best": 3.5, "rounds": 5},
            "durable_vs_best_peer": {"worst": 0.5, "best": 1.5, "rounds": 5},
        },
        "about": {"machine": "Linux, 2 cores", "load_1min": 4.0, "python": "3.11"},
        "peers": {
            "about": {"rate": 100.0},
            "durable": {"gangline": row, "other <x>": row},
            "best": "other <x>",
            "soonest": "other <x>",
            "results": {"gangline": answers, "arq, tuned": answers},
            "best_results": "arq, tuned",
            "soonest_results": "arq, tuned",
            "ray_serve": {"ours call": stats},
            "gang8_ms": {"ours": stats, "Ray": stats, "Ray, full": stats},
            "missing": {"arq": "no redis-server and no valkey-server on PATH"},
            "versions": {"nats": "2.15"},
        },
        "memory": {},
        "scaling": {},
    }


def test_the_page_tells_what_is_met_what_is_not_and_what_was_not_measured() -> None:
    page = report.page(results())
    assert "| `call_c64_vs_raw` | 64 at once, one worker / raw, 64 at once | 3 | 2.5 to 3.5 | >= 2 | yes |" in page
    assert "| 1 | 0.5 to 1.5 | >= 2 | **no** |" in page
    assert "| `gang8_form_vs_raw` | form a gang of 8 over 4 workers / one raw round trip | not measured |" in page
    assert "- arq: no redis-server and no valkey-server on PATH" in page
    assert "| arq, tuned | 1,000 (900 to 1,100) | 1000.00, 1000.00 | worker 50 | looked for each 5 ms |" in page
    assert "use the ratios, not the rates" in page


def test_the_chart_is_well_formed_and_has_a_bar_for_each_figure_and_system() -> None:
    drawn = ElementTree.fromstring(report.drawing(results()))
    bars = [each for each in drawn.iter() if each.tag.endswith("rect")]
    assert len(bars) == 1 + 2 + 2, "the ground, two figures, two systems"
    assert all(float(bar.attrib["width"]) > 0 for bar in bars)


def test_what_was_not_measured_is_null_in_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    written = json.loads((report.REFERENCE / "benchmarks.json").read_text())
    assert report.together() == written, "nothing was measured here"
    store.save("endurance", {"minutes": [1], "flat": True})
    assert report.together() == written | {"endurance": {"flat": True}}
    store.save("peers", {"figures": {"durable_vs_best_peer": 2.0}, "spread": {}, "missing": {}})
    found = report.together()
    assert set(found["figures"]) == {each.name for each in FIGURES}
    assert {name for name, value in found["figures"].items() if value is not None} == {"durable_vs_best_peer"}
    assert found["figures"]["durable_vs_best_peer"] == 2.0
    assert "not measured" in report.page(report.together())
