"""Numbers are kept whether or not anybody collects them, and read right whenever somebody does."""

from __future__ import annotations

import gc

from gangline.schemas.wire.frames import Load
from gangline.telemetry.metrics.router_and_worker import RouterMetrics, WorkerMetrics

N = "n"


def test_reserved_slots_go_up_and_back_to_zero(read):
    metrics = RouterMetrics(N)
    before = read("gangline.router.reserved_slots").get((N, "gauge-pool"), 0)
    metrics.reserved("gauge-pool", +2)
    assert read("gangline.router.reserved_slots")[N, "gauge-pool"] == before + 2
    metrics.reserved("gauge-pool", -2)
    assert read("gangline.router.reserved_slots")[N, "gauge-pool"] == before


def test_what_was_reserved_before_the_provider_came_does_not_make_the_gauge_negative(request):
    metrics = RouterMetrics(N)
    metrics.reserved("early", +1)
    read = request.getfixturevalue("read")
    assert read("gangline.router.reserved_slots")[N, "early"] == 1
    metrics.reserved("early", -1)
    assert read("gangline.router.reserved_slots")[N, "early"] == 0


def test_what_is_tallied_counts_as_what_is_told_one_by_one(read):
    metrics = RouterMetrics(N)
    metrics.request("tallied", "tallied")
    taken, held = metrics.taken("tallied", "tallied"), metrics.held("tallied")
    taken.count += 3
    held.count += 2
    metrics.reserved("tallied", -1)
    assert metrics.taken("tallied", "tallied") is taken
    assert read("gangline.router.requests")["tallied", N, "tallied"] == 4
    assert read("gangline.router.reserved_slots")[N, "tallied"] == 1
    assert (metrics.statistics()["requests"], metrics.statistics()["reserved_slots"]) == (4, 1)
    del metrics
    gc.collect()
    assert read("gangline.router.requests")["tallied", N, "tallied"] == 4
    assert (N, "tallied") not in read("gangline.router.reserved_slots")


def test_two_namespaces_of_a_process_are_not_added_up(read):
    for namespace, number in (("blue", 1), ("green", 2)):
        metrics = RouterMetrics(namespace)
        metrics.taken("e", "apart").count += number
        del metrics
    gc.collect()
    found = read("gangline.router.requests")
    assert (found["e", "blue", "apart"], found["e", "green", "apart"]) == (1, 2)


def test_two_routers_of_a_process_add_up(read):
    one, two = RouterMetrics(N), RouterMetrics(N)
    one.queued("shared", +1)
    two.queued("shared", +2)
    assert read("gangline.router.queue_size")[N, "shared"] == 3


def test_counters_never_fall_when_their_router_is_gone_but_its_gauges_vanish(read):
    metrics = RouterMetrics(N)
    metrics.request("e", "retired")
    metrics.backoff("retired")
    metrics.reserved("retired", +1)
    metrics.finished("e", "retired", 0.1, 2, "saturated")
    del metrics
    gc.collect()
    assert read("gangline.router.requests")["e", N, "retired"] == 1
    assert read("gangline.router.backoffs")[N, "retired"] == 1
    assert read("gangline.router.errors")["saturated", "e", N, "retired"] == 1
    assert (N, "retired") not in read("gangline.router.reserved_slots")


def test_a_finished_request_is_in_both_histograms_and_only_errors_count_as_errors(read):
    metrics = RouterMetrics(N)
    metrics.finished("e", "histogram", 0.02, 1, None)
    metrics.finished("e", "histogram", 0.02, 3, "no_workers")
    assert read("gangline.router.fulfilment_time")["e", N, "histogram"] == 2
    assert read("gangline.router.attempts")["e", N, "histogram"] == 2
    assert read("gangline.router.errors")["no_workers", "e", N, "histogram"] == 1
    assert metrics.statistics()["errors"] == 1


def test_a_workers_gauges_are_its_load_at_the_time_of_reading_and_go_with_it(read):
    load = Load(1, 2, 4)
    metrics = WorkerMetrics(N, "slots", "w1", lambda: load)
    assert read("gangline.worker.slots.running")[N, "slots", "w1"] == 1
    assert read("gangline.worker.slots.reserved")[N, "slots", "w1"] == 2
    load = Load(0, 0, 4)
    assert read("gangline.worker.slots.reserved")[N, "slots", "w1"] == 0
    assert read("gangline.worker.slots.total")[N, "slots", "w1"] == 4
    metrics.close()
    metrics.close()
    assert (N, "slots", "w1") not in read("gangline.worker.slots.total")


def test_a_worker_whose_load_cannot_be_read_does_not_hide_the_others(read):
    def broken() -> Load:
        raise RuntimeError("half closed")

    bad, good = WorkerMetrics(N, "mixed", "bad", broken), WorkerMetrics(N, "mixed", "good", lambda: Load(0, 0, 1))
    seen = read("gangline.worker.slots.total")
    assert (N, "mixed", "good") in seen and (N, "mixed", "bad") not in seen
    bad.close()
    good.close()


def test_what_became_of_tasks_and_leases_is_counted(read):
    metrics = WorkerMetrics(N, "counted", "w1", lambda: Load(0, 0, 1))
    metrics.leases(granted=2, expired=0, released=1)
    metrics.leases(granted=0, expired=1, released=0)
    metrics.rejected("full")
    metrics.started("thumb")
    metrics.finished("thumb", 0.5, "task_failed")
    leases = read("gangline.worker.leases")
    assert [leases[event, N, "counted", "w1"] for event in ("granted", "expired", "released")] == [2, 1, 1]
    assert read("gangline.worker.rejections")[N, "counted", "full", "w1"] == 1
    assert read("gangline.worker.tasks.finished")["thumb", N, "task_failed", "counted", "w1"] == 1
    assert read("gangline.worker.task_time")["thumb", N, "counted", "w1"] == 1
    once = ("started", "finished", "rejected", "expired", "released")
    assert metrics.statistics() == {**dict.fromkeys(once, 1), "granted": 2}
