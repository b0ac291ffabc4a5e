"""All metrics are in one catalogue, with the names that Prometheus shows."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline import Pool
from gangline.coordinator.service import Coordinator
from gangline.schemas.names import Names
from gangline.telemetry.metrics.catalogue import ATTRIBUTES, METRICS
from gangline.telemetry.metrics.coordinator import CoordinatorMetrics, Queued, Waiting, current_terms
from gangline.testing import cluster

SCRAPE = """
import json, sys
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
from gangline.telemetry.metrics.catalogue import METRICS
from gangline.telemetry.metrics.coordinator import CoordinatorMetrics, Queued, Waiting
from gangline.telemetry.metrics.durable import DurableMetrics, QueueLevels
from gangline.telemetry.metrics.router_and_worker import RouterMetrics, WorkerGangMetrics, WorkerMetrics
from gangline.schemas.wire.frames import Load
from gangline.telemetry.metrics.catalogue import history_records
from gangline.telemetry.metrics.connection import credentials_used
from pathlib import Path
CERTIFICATE = sys.argv[1]
leader = CoordinatorMetrics("n", lambda: {"queued": 1, "oldest_s": 2.0, "formed": 3}, term=7)
leader.queued = Queued((Waiting("p", "slots", 1, 4),), (("p", 2),))
leader.committed("form"); leader.not_committed("form", "refused"); leader.restarted("r", "restart"); leader.ended("r")
leader.formed(1.0); leader.torn_down(1.0)
worker = WorkerMetrics("n", "p", "w", lambda: Load(1, 2, 8, 0))
worker.started("m"); worker.finished("m", 0.1, "ok"); worker.leases(1, 1, 1); worker.rejected("full")
worker.epoch("frozen")
gangs = WorkerGangMetrics("n", "p", "w"); gangs.event("held"); gangs.members(1); gangs.torn_down(1.0); gangs.waited(1.0)
router = RouterMetrics("n")
router.request("e", "p"); router.finished("e", "p", 0.1, 1, "timeout"); router.queued("p", 3); router.reserved("p", 1)
router.backoff("p"); router.held_back("e", 1); router.shadow("e", "p", "sent")
durable = DurableMetrics("n"); durable.levels = (QueueLevels("e", 1, 1, 1, 5.0, {"slots": 2}),)
durable.started("e", "p", 1.0); durable.done("e"); durable.cancelled("e"); durable.dead("e", "failed")
durable.retried("e", "code"); durable.taken("e"); durable.recovered("e", 1.0); durable.wanted("e", "p", 5)
credentials_used("certificate", Path(CERTIFICATE))
history_records.of(durable, "n")["worker", "written"] += 1
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
found = {}
for family in text_string_to_metric_families(generate_latest().decode()):
    for sample in family.samples:
        found.setdefault(sample.name, []).append([sample.labels, sample.value])
print(json.dumps(found))
"""


CERTIFICATE = Path(__file__).parents[2] / "support" / "bus" / "tls" / "client.pem"
pytestmark = pytest.mark.xdist_group("scraped once")


@functools.cache
def scrape() -> dict[str, list[Any]]:
    """What Prometheus would see of a process in which everything was counted once."""
    done = subprocess.run([sys.executable, "-c", SCRAPE, str(CERTIFICATE)], capture_output=True, text=True, check=True)
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


def test_the_catalogue_has_the_names_and_attributes_that_prometheus_shows():
    found = scrape()
    for info in METRICS.values():
        names = [f"{info.prometheus}_{part}" for part in ("bucket", "sum", "count")]
        for name in names if info.kind == "histogram" else [info.prometheus]:
            assert name in found, (info.name, name)
            labels = {label for labels, _ in found[name] for label in labels} - {"le"}
            assert {label for label in labels if not label.startswith("otel_")} == set(info.attributes), name
    ours = {name for name in found if name.startswith("gangline_")}
    known = {
        name
        for info in METRICS.values()
        for name in (info.prometheus, *(f"{info.prometheus}_{part}" for part in ("bucket", "sum", "count", "created")))
    }
    assert {name for name in ours if name not in known and not name.endswith("_created")} == set()


def test_the_slots_that_a_pool_wants_are_those_of_tasks_leases_calls_jobs_and_gangs():
    wanted = {labels["source"]: value for labels, value in scrape()["gangline_pool_slots_wanted"]}
    assert wanted == {"slots": 3, "calls": 3, "jobs": 5, "gangs": 4}


def test_each_attribute_and_each_metric_is_explained():
    for info in METRICS.values():
        assert info.description and set(info.attributes) <= set(ATTRIBUTES), info.name


def test_gangs_that_can_never_fit_want_no_slots():
    from gangline.telemetry.metrics.coordinator import wanted_by_gangs

    leader = CoordinatorMetrics("n", dict, term=7)
    leader.queued = Queued((Waiting("never", "impossible", 1, 400), Waiting("soon", "order", 2, 6)))
    wanted = dict(wanted_by_gangs())
    assert wanted["n", "soon"] == 6.0 and ("n", "never") not in wanted
    leader.close()
    assert ("n", "soon") not in dict(wanted_by_gangs())


pool = Pool("images", slots=4)


@pool.task
async def idle() -> None:
    pass


async def test_waiting_gangs_are_told_apart_by_what_they_wait_for():
    running = cluster(pool, workers=1)
    async with running as client:
        bus = running.hub.connect("coordinator")
        async with Coordinator(bus=bus) as coordinator:
            await coordinator.wait_leading()
            assert coordinator.term is not None
            core = coordinator.term.core
            async with client.gang(pool="images", size=1, slots=3):
                waits = [
                    asyncio.ensure_future(client.gang(pool="images", size=size, slots=1, ttl_s=600).__aenter__())
                    for size in (3, 2)
                ]
                await asyncio.sleep(1)
                assert core.waiting_by_obstacle() == {("images", "slots"): (1, 3), ("images", "order"): (1, 2)}
                assert core.kept_slots() == {}
                await asyncio.sleep(10)
                assert core.kept_slots() == {"images": 1}
            held = await asyncio.gather(*waits[:1])
            await held[0].release()
            second = await waits[1]
            await second.release()
            assert core.waiting_by_obstacle() == {} and core.kept_slots() == {}
        await bus.close()


async def test_each_election_changes_the_exported_term_also_if_the_coordinator_has_just_started():
    """What LeadershipFlaps counts: a counter of a process that restarts begins at 1 each time, which is no increase."""
    running, told, names = cluster(pool, workers=1), list[float](), Names("elections")

    def terms() -> list[float]:
        """Of this test's coordinators: others may not have been collected yet."""
        return [term for where, term in current_terms() if where == (names.namespace, "")]

    async with running:
        for name in ("first", "second", "third"):
            bus = running.hub.connect(name)
            async with Coordinator(bus=bus, names=names) as coordinator:
                await coordinator.wait_leading()
                assert terms() == [coordinator.statistics().term]
                told += terms()
            assert terms() == []
            await bus.close()
    assert told == sorted(set(told))
