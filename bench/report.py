"""`python -m bench.report`: the page and the chart for the docs, from what bench/results/ has.

What was not measured is said, not left out. The numbers themselves go beside the page, in one JSON file, so that it can
be written again from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.chart import chart
from bench.peers.store import load
from gangline.bench.figures import FIGURES, Figure

REFERENCE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
_PARTS: Final = ("latest", "peers", "memory", "scaling")


def together() -> dict[str, Any]:
    """All results: `figures` by name (null: not measured), and the parts that they come from."""
    parts = {name: load(name) or {} for name in _PARTS}
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
    }


def write() -> None:
    """Write docs/reference/benchmarks.{md,svg,json}."""
    found = together()
    (REFERENCE / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n")
    (REFERENCE / "benchmarks.md").write_text(page(found))
    (REFERENCE / "benchmarks.svg").write_text(drawing(found))


def page(found: dict[str, Any]) -> str:
    """The page, from the JSON."""
    return (
        "\n\n".join([_HEAD, _machine(found), _figures(found), *_durable(found), *_ray(found), *_memory(found)]) + "\n"
    )


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

Written by `python -m bench.report`; do not edit. All figures are ratios between systems that run side by side in one
run on one machine: medians over rounds in which the systems take turns (A B A B), with worst and best.

To reproduce: in a clone, `make bench` measures everything and `make bench ARGS=--docs` writes this page as well;
`ARGS=--quick` takes half of the time. It needs Python 3.11 or later and nothing else: nats-server comes as a wheel, and
each peer is installed by pip into an environment of its own in the user's cache folder (`GANGLINE_BENCH_CACHE` names
another one). Peers on Redis need a `redis-server` or `valkey-server` on the PATH (`apt-get install redis-server`);
without it they are named as missing. `gangline bench` measures what needs no peers, in under 45 s; `python -m
bench.memory` and `python -m bench.scaling` measure what their parts below show.

![the figures as a chart](benchmarks.svg)"""


def _machine(found: dict[str, Any]) -> str:
    about = found["about"]
    if not about:
        return "## Machine and versions\n\nThe figures that need no peers were not measured."
    told = [f"{name} {value}" for name, value in about.items() if name not in ("machine", "load_1min")]
    load_ = about.get("load_1min")
    state = (
        f"Load average at the start: {load_}. Other work ran on the machine: take the ratios, not the rates."
        if load_ is not None and load_ > 1
        else f"Load average at the start: {load_}."
    )
    return f"## Machine and versions\n\n{about.get('machine', 'unknown')}. {', '.join(told)}. {state}"


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


_CALLS: Final = (
    "About 7 us of CPU time on either side for a call, of some 18 at the raw client and 9 at the raw echo. Launching "
    "takes the client 3.4 us (a ticket, a flight, the choice, the frame) and the answer 0.8; a bare asyncio program "
    "with msgpack needs 1.6. Three times the raw rate at 256 asks for about 5.4 us. Tried and kept: frames of a turn "
    "share a message either way, one write at a turn's end, no task, no timer and no span for a plain call, coroutines "
    "stepped in place until their first wait (client 18 to 7 us, worker 28 to 7). Left: one object for both."
)
NOTES: Final = {
    "call_c64_vs_raw": _CALLS,
    "call_c256_vs_raw": "As at 64.",
    "call_c256_4w_vs_raw": "As at 64, against one raw echo; with four workers fewer frames share a message.",
    "call_mixed_c256_vs_raw": "The asyncio task of each call that sleeps is most of the worker's 20 us.",
    "lease_call_c64_vs_raw": (
        "The worker is the slower side, with about 11 us (8 for a call): a use of the lease moves its expiry. Twice "
        "the raw rate asks for about 10."
    ),
    "reserve_dispatch_c64_vs_raw": (
        "About 23 us on each side for two trips, of 43 and 53 at first; 18 to 20 are needed. A token, a lease and its "
        "place in the ledger's queue are made for each."
    ),
    "gang8_form_vs_raw": (
        "Three trips (asking, holds, the commit), and then the members are told; the rest, by estimate 2 ms, is Python "
        "in the coordinator and the workers: placement, records of eight seats in JSON, one atomic batch."
    ),
    "trace_on_cost": "Three spans of the OpenTelemetry SDK for a call, 15 to 20 us each, are more than the call.",
    "trace_off_cost": "Within the noise: single runs lay between 0.96 and 1.98.",
    "submit_vs_js_publish": (
        "The CPU time of a submission is 25 us, that of a raw publish 23; what differs from run to run is the disk."
    ),
    "idle_msgs_per_s": "One heartbeat a second and its acknowledgement; the registration every 20 s comes on top.",
    "durable_vs_best_peer": (
        "Ours is four processes at work (submitter, server, dispatcher, worker) where FastStream's is three, and "
        "the dispatcher is the one that bounds a queue: 84 us of CPU time for each task, as much as FastStream's "
        "one worker takes (91). Three times its rate is 24,000 tasks a second, on two cores 84 us for each over "
        "all processes; ours take 175, of which the server and the submitter alone take 58. Of the dispatcher's "
        "time a third decides (priorities, keys, limits, places), a sixth reads messages and headers, a tenth "
        "makes frames, the rest is bookkeeping of tries, leases and acknowledgements. FastStream has none of "
        "that: no retries with back-off, no dead letters, no priorities, no limits; a task that raises is "
        "rejected and gone. Beside taskiq-nats, which is a task queue, ours is 1.5 to 2.8 times as fast. Tried "
        "and kept: no look-up for jobs that leave no record (dispatcher 186 to 140 us, server 86 to 40, on a "
        "loaded machine), one decision for all that happens in a turn and one lease looked at instead of all (140 "
        "to 95), headers read by a table (10 to 6 us). Tried and dropped: no garbage collector (7 %)."
    ),
    "durable_start_p50_vs_best_peer": (
        "One hop more: a peer's worker takes the message itself, ours gets it from the dispatcher on a leased slot. "
        "The lease is there already at 100 tasks per second, so it is one trip, not two; what is left is one more "
        "process that has to wake up. Looking nothing up took 1.2 to 0.75 ms."
    ),
    "rayserve_call_ratio": (
        "Against its tuned run, whose router lives on the caller's loop (RAY_SERVE_THROUGHPUT_OPTIMIZED) and whose "
        "replica takes 512 requests at once. With its defaults it is far above the target. Each of the two runs in its "
        "turn, so a busy moment of the machine moves a round's ratio a lot: see worst and best."
    ),
    "rayserve_choose_ratio": "As for calls.",
}
"""Why a target is not met: what bounds it, and what was tried."""


def _missed(found: dict[str, Any]) -> list[str]:
    told = []
    for figure in FIGURES:
        value = found["figures"].get(figure.name)
        if value is not None and not figure.meets(value) and figure.name in NOTES:
            told.append(f"- `{figure.name}`: {NOTES[figure.name]}")
    return ["\n".join(["## What is not met, and why", "", *told])] if told else []


def _durable(found: dict[str, Any]) -> list[str]:
    peers = found["peers"]
    rows = peers.get("durable", {})
    if not rows:
        return []
    lines = [
        "## Durable tasks beside other systems",
        "",
        "No-op tasks from one submitting process (64 submissions at once) to one worker process; results off "
        "everywhere. *Done*: from the first submission to the last task, by the tasks' own notes. *Start*: from "
        f"submission to start, at {peers['about']['rate']:g} tasks per second. Each system runs alone in its turn, on "
        f"a server that was started for it. Ours has a dispatcher process besides the worker. "
        f"{_best(peers)} {_state(peers['about'])}",
        "",
        "| system | done per s | submitted per s | start p50, p99 (ms) | CPU per task (us) | tasks are kept in "
        "| acknowledged | how it was run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_durable_row(name, row) for name, row in rows.items()]
    parts = ["\n".join(lines)]
    if peers["missing"]:
        parts.append("\n".join(["Not measured:", ""] + [f"- {name}: {why}" for name, why in peers["missing"].items()]))
    versions = ", ".join(f"{name} {version}" for name, version in peers["versions"].items())
    parts.append(f"Versions: {versions}.")
    return parts


def _state(about: dict[str, Any]) -> str:
    note = f" {about['note']}." if "note" in about else ""
    return f"Load average at the start: {about.get('load_1min')}.{note}"


def _best(peers: dict[str, Any]) -> str:
    if peers.get("best") is None:
        return ""
    return f"The fastest durable peer is {peers['best']}, the soonest to start {peers['soonest']}."


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
        "## Calls beside Ray Serve",
        "",
        "One replica and one worker, 64 calls at once, 100 bytes there and back; *choose* is `choose_replica` and "
        "`dispatch` there, `choose_worker` and `dispatch` here. Neither keeps calls or results. Ratios are against the "
        "better of its two runs.",
        "",
        "| | per s |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {row['median']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f}) |" for name, row in rates.items()
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
        "in which a worker fills what it keeps of its answers for a minute.",
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


if __name__ == "__main__":
    write()
