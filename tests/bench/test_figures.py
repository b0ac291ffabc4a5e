"""The named figures and their arithmetic; nothing here looks at a clock."""

from __future__ import annotations

import pytest

from gangline.bench.figures import BY_NAME, FIGURES, measured, ratios
from gangline.bench.rates import LOADS, RATIOS, Rates
from gangline.bench.run import QUICK, Results, about
from gangline.bench.table import rows

NAMES = [
    "call_serial_vs_raw", "call_c64_vs_raw", "call_c256_vs_raw", "call_c256_4w_vs_raw", "call_mixed_c256_vs_raw",
    "lease_call_c64_vs_raw", "reserve_dispatch_c64_vs_raw", "call_p99_c64_vs_raw", "submit_vs_js_publish",
    "durable_vs_best_peer", "durable_many_vs_best_peer", "durable_start_p50_vs_best_peer", "submit_result_c64",
    "submit_result_p50_ms", "rayserve_call_ratio", "rayserve_choose_ratio", "gang8_form_vs_raw",
    "gang8_form_vs_ray_pg", "gang64_form_vs_gang8", "goodput_10x_call",
    "goodput_10x_stream", "goodput_10x_lease", "goodput_10x_job",
    "route_10k_vs_10", "form_10k_vs_10", "decide_10k_vs_10",
    "router_bytes_per_worker", "worker_rss_mb", "idle_msgs_per_s", "trace_off_cost", "trace_on_cost",
    "metrics_on_c64", "trace_1pct_c64", "metrics_and_1pct_c64", "trace_100pct_c64", "key_c64", "weighted_route_c64",
    "kwargs_c64", "model_c64", "sync_task_c64", "gateway_c1", "gateway_c64", "imported_c1", "imported_c64",
    "payload_100k_c16", "stream_items", "sync_client_c1",
]  # fmt: skip


def rates() -> Rates:
    """Five rounds in which every load ran at 100/s, and calls at twice that."""
    found = Rates()
    for load in LOADS:
        found.per_s[load.name] = [200.0 if load.name.startswith("call") else 100.0] * 5
    return found


def test_every_figure_has_its_name_once():
    assert [figure.name for figure in FIGURES] == NAMES
    assert list(BY_NAME) == NAMES


def test_a_target_is_met_on_its_own_side_and_at_its_edge():
    least, most = BY_NAME["call_c64_vs_raw"], BY_NAME["gang8_form_vs_raw"]
    assert (least.meets(1.99), least.meets(2.0), least.meets(9.0)) == (False, True, True)
    assert (most.meets(8.01), most.meets(8.0), most.meets(1.0)) == (False, True, True)
    assert (least.shown_target, BY_NAME["worker_rss_mb"].shown_target) == (">= 2", "<= 60 MB")


def test_ratios_are_made_round_by_round():
    assert ratios([10.0, 30.0], [10.0, 10.0]) == (1.0, 3.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_without_a_partner_are_refused(ours, theirs):
    with pytest.raises(ValueError, match="in pairs"):
        ratios(ours, theirs)


def test_a_figure_is_the_median_and_the_worst_is_on_the_side_away_from_the_target():
    least = measured("call_c64_vs_raw", [3.0, 1.0, 2.5])
    assert (least.value, least.worst, least.best, least.met) == (2.5, 1.0, 3.0, True)
    most = measured("gang8_form_vs_raw", [3.0, 12.0, 9.0])
    assert (most.value, most.worst, most.best, most.met) == (9.0, 12.0, 3.0, False)


def test_a_figure_without_a_name_or_without_rounds_is_refused():
    with pytest.raises(KeyError):
        measured("call_c65_vs_raw", [1.0])
    with pytest.raises(ValueError, match="no rounds"):
        measured("call_c64_vs_raw", [])


def test_each_ratio_is_of_one_of_our_loads_and_one_of_the_raw_wire_at_the_same_concurrency():
    by_name = {load.name: load for load in LOADS}
    for name, (ours, raw) in RATIOS.items():
        assert name in BY_NAME
        assert by_name[raw].system == "raw" and by_name[ours].system == "ours", name
        assert by_name[raw].concurrency == by_name[ours].concurrency, name


def test_rates_become_figures():
    values = {item.figure.name: item.value for item in rates().figures()}
    assert values["call_c256_vs_raw"] == 2.0
    assert values["lease_call_c64_vs_raw"] == values["submit_vs_js_publish"] == 1.0
    assert values.keys() == RATIOS.keys()


def test_latencies_are_compared_at_half_of_the_peak():
    found = rates()
    found.latency_ms["raw_c64_at_50_p99"] = [2.0, 2.0, 2.0]
    found.latency_ms["call_c64_at_50_p99"] = [3.0, 8.0, 2.0]
    (figure,) = [item for item in found.figures() if item.figure.name == "call_p99_c64_vs_raw"]
    assert (figure.value, figure.worst) == (1.5, 4.0)


def test_the_json_names_every_figure_and_has_null_for_what_was_not_measured():
    document = Results(figures=rates().figures(), rates=rates(), about=about("2.15.1", QUICK)).to_json()
    assert list(document["figures"]) == NAMES
    assert document["figures"]["call_c64_vs_raw"] == 2.0
    assert document["figures"]["rayserve_call_ratio"] is None
    assert document["spread"]["call_c64_vs_raw"] == {
        "worst": 2.0, "best": 2.0, "rounds": 5, "target": ">= 2", "met": True
    }  # fmt: skip
    assert document["about"]["nats-server"] == "2.15.1" and "uvloop" in document["about"]


def test_the_table_shows_what_was_measured():
    table = {name: rest for name, *rest in rows(Results(figures=rates().figures(), rates=rates(), about={}))}
    assert table["call_c64_vs_raw"] == ["2.00", "2.00 to 2.00", ">= 2", "yes"]
    assert table["lease_call_c64_vs_raw"][-1] == "NO"
    assert "rayserve_call_ratio" not in table
