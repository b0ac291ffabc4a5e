"""The other figures: tracing, gangs, growth with the number of workers, an idle worker."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

from .figures import Measured, measured, ratios
from .process import ChildFailed
from .rates import Rates, Report
from .resting import at_rest
from .site import Site, opened
from .tracing import OBSERVED

_FORMED = 5
"""Gangs per round."""


async def measure_tracing(
    site: Site, *, rounds: int, seconds: float, report: Report
) -> tuple[list[Measured], dict[str, list[float]]]:
    """The same calls by pairs of client and worker that are observed differently. Also returns all ratios with 64 at
    once.
    """
    clients = {}
    for observed in OBSERVED:
        await site.worker(f"trace-{observed}", 512, trace=observed)
        clients[observed] = await site.client(f"trace-{observed}", observed)
    serial = ("none", "off", "on")
    rates: dict[tuple[str, int], list[float]] = {(observed, 1): [] for observed in serial}
    rates |= {(observed, 64): [] for observed in OBSERVED}
    for observed, many in rates:
        await clients[observed].ask("closed", what="call", concurrency=many, seconds=seconds / 2)
    for number in range(rounds):
        report(f"telemetry, round {number + 1} of {rounds}")
        for observed, many in rates if number % 2 == 0 else reversed(rates):
            # One at a time there are few of them, and differences of a few hundredths matter.
            done = await clients[observed].ask(
                "closed", what="call", concurrency=many, seconds=3 * seconds if many == 1 else seconds
            )
            rates[observed, many].append(done["count"] / done["seconds"])
    loaded = {observed: ratios(rates[observed, 64], rates["none", 64]) for observed in OBSERVED if observed != "none"}
    figures = [measured(f"trace_{each}_cost", ratios(rates[each, 1], rates["none", 1])) for each in ("off", "on")]
    figures += [measured(name, loaded[observed]) for name, observed in _OBSERVED_C64]
    return figures, {f"trace_{observed}_c64": list(row) for observed, row in loaded.items()}


_OBSERVED_C64 = (
    ("metrics_on_c64", "metrics"),
    ("trace_1pct_c64", "1pct"),
    ("metrics_and_1pct_c64", "production"),
    ("trace_100pct_c64", "on"),
)


_ACCOUNTS: Final = """
accounts {
  GANGLINE {
    jetstream: enabled
    users: [ { user: own, password: bench } ]
    exports: [ { service: "gangline.call.>", accounts: [tenant] } ]
  }
  tenant {
    users: [ { user: tenant, password: bench } ]
    imports: [ { service: { account: GANGLINE, subject: "gangline.call.>" } } ]
  }
}
no_auth_user: own
"""


async def measure_imported(*, rounds: int, seconds: float, report: Report) -> tuple[list[Measured], Rates]:
    """The same calls through a gateway by clients of Gangline's own account and of a tenant's, on a server that has
    accounts."""
    found = Rates()
    async with opened(_ACCOUNTS) as site:
        await site.worker("one", 512)
        await site.start("our_gateway", url=site.url)
        address = site.url.removeprefix("nats://")
        urls = {"direct": site.url, "imported": f"nats://tenant:bench@{address}"}
        clients = {whose: await site.start("raw_client", url=url, storage=False) for whose, url in urls.items()}
        loads = [(whose, many) for many in (1, 64) for whose in clients]
        for whose, many in loads:  # the first time is slower
            await clients[whose].ask("closed", what="gateway", concurrency=many, seconds=seconds / 4)
        for number in range(rounds):
            report(f"imported calls, round {number + 1} of {rounds}")
            for whose, many in loads if number % 2 == 0 else reversed(loads):
                done = await clients[whose].ask("closed", what="gateway", concurrency=many, seconds=seconds)
                found.per_s[f"{whose}_c{many}"].append(done["count"] / done["seconds"])
    pairs = ((many, found.per_s[f"imported_c{many}"], found.per_s[f"direct_c{many}"]) for many in (1, 64))
    return [measured(f"imported_c{many}", ratios(tenants, own)) for many, tenants, own in pairs], found


async def measure_gangs(site: Site, *, rounds: int, report: Report) -> tuple[list[Measured], dict[str, list[float]]]:
    """Gangs of 8 over 4 workers and of 64 over 16, against one raw round trip. Also returns the times, in ms."""
    await site.start("raw_echo", url=site.url)
    raw = await site.start("raw_client", url=site.url)
    await site.start("our_coordinator", url=site.url)
    await site.worker("gang4", 2, workers=4)
    await site.worker("gang16", 4, workers=16)
    client = await site.client("gang4")
    trips: list[float] = []
    eight: list[float] = []
    many: list[float] = []
    await client.ask("gang", pool="gang4", size=8, times=1)
    await client.ask("gang", pool="gang16", size=64, times=1)
    for number in range(rounds):
        report(f"gangs, round {number + 1} of {rounds}")
        done = await raw.ask("closed", what="echo", concurrency=1, seconds=0.1)
        trips.append(done["seconds"] / done["count"] * 1000)
        eight.append((await client.ask("gang", pool="gang4", size=8, times=_FORMED))["form_s"] * 1000)
        many.append((await client.ask("gang", pool="gang16", size=64, times=_FORMED))["form_s"] * 1000)
    figures = [
        measured("gang8_form_vs_raw", ratios(eight, trips)),
        measured("gang64_form_vs_gang8", ratios(many, eight)),
    ]
    return figures, {"raw_round_trip_ms": trips, "gang8_form_ms": eight, "gang64_form_ms": many}


async def measure_scale(site: Site, *, rounds: int, report: Report) -> list[Measured]:
    """Ten workers against ten thousand."""
    scale = await site.start("scale")
    found = []
    for name, do in (("route_10k_vs_10", "route"), ("form_10k_vs_10", "form"), ("decide_10k_vs_10", "decide")):
        few, many = [], []
        for number in range(rounds):
            report(f"{do} among 10,000 workers, round {number + 1} of {rounds}")
            done = await scale.ask(do)
            few.append(done["few_s"])
            many.append(done["many_s"])
        found.append(measured(name, ratios(many, few)))
    report("memory of a router")
    done = await scale.ask("memory")
    return [*found, measured("router_bytes_per_worker", [done["bytes_per_worker"]])]


async def measure_overload(site: Site, *, report: Report) -> list[Measured]:
    """Ten times as many requests as the worker can serve, on virtual time.

    Raises:
        ChildFailed: its process failed.
    """
    report("ten times the capacity")
    command = (sys.executable, "-m", f"{__package__}.overload", "--times", "10", "--seconds", "10")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=site.environment)
    printed, _ = await process.communicate()
    if process.returncode != 0:
        raise ChildFailed(f"{' '.join(command)} ended with {process.returncode}")
    found = map(json.loads, printed.splitlines())
    return [measured(f"goodput_10x_{each['kind']}", [each["of_capacity"]]) for each in found]


async def measure_rest(site: Site, *, seconds: float, report: Report) -> list[Measured]:
    """An idle worker."""
    report("a worker at rest")
    memory_mb, messages_per_s = await at_rest(site.url, site.monitoring, site.environment, seconds)
    return [measured("worker_rss_mb", [memory_mb]), measured("idle_msgs_per_s", [messages_per_s])]
