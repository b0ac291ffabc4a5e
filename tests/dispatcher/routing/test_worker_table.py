"""The view of a pool's workers, alone."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from gangline.dispatcher.routing.policy import Candidates, PowerOfTwo, Sticky
from gangline.dispatcher.routing.pool_core import RoutedRequest
from gangline.dispatcher.routing.worker_table import ANYWHERE, SAME_NODE, SAME_ZONE, WorkerEntry, WorkerTable
from gangline.schemas.records.workers import MethodInfo, Registration
from gangline.schemas.wire.frames import Load

from ...work import lines_run

METHODS = {"echo": MethodInfo(), "heavy": MethodInfo(slots=3)}


def record(name: str, **facts: Any) -> Registration:
    base: dict[str, Any] = {"pool": "p", "worker": name, "epoch": 1, "instance": "i", "slots": 4, "methods": METHODS}
    return Registration(**{**base, **facts})


def view_of(*records: Registration, **where: Any) -> WorkerTable:
    view = WorkerTable(**where)
    for number, each in enumerate(records, start=1):
        view.register(each, number, 0.0)
    view.check()
    return view


def test_load_is_plus_one_minus_one_and_absolute() -> None:
    view = view_of(record("a"))
    worker = view.workers["a"]
    view.charge(worker, 1)
    view.charge(worker, 1)
    assert (worker.ongoing, worker.own) == (2, 2)
    view.loaded(worker, Load(3, 1, 4), 1, 1.0)
    assert (worker.ongoing, worker.free) == (4, 0)
    view.discharge(worker, 1)
    assert (worker.ongoing, worker.own) == (3, 1)
    view.loaded(worker, Load(0, 0, 4), 1, 2.0)
    assert worker.ongoing == 1  # what we have just sent is not in its answer yet
    view.check()


def test_a_load_goes_stale_after_ten_seconds_and_leaves_our_own() -> None:
    view = view_of(record("a"))
    worker = view.workers["a"]
    view.charge(worker, 1)
    view.loaded(worker, Load(4, 0, 4), 1, 100.0)
    assert not view.has_room
    assert not view.age(109.9)
    assert view.age(110.1)
    assert worker.ongoing == 1 and view.has_room


def test_an_instance_whose_answers_came_first_is_the_worker_that_is_known() -> None:
    view = view_of(record("a", instance="one", epoch=3))
    known = view.workers["a"]
    view.loaded(known, Load(1, 0, 4, 0), 5, 1.0)  # from whom, nobody knows yet
    worker, replaced = view.register(record("a", instance="two", epoch=5), 7, 2.0)
    assert worker is replaced is known and known.known and known.instance == "two" and known.confirmed == 5
    worker, replaced = view.register(record("a", instance="three", epoch=6), 8, 3.0)
    assert replaced is known and not known.known and worker.instance == "three"


def test_an_instance_that_was_confirmed_at_an_epoch_is_not_taken_for_another_of_that_epoch() -> None:
    view = view_of(record("a", instance="one", epoch=3))
    known = view.workers["a"]
    _, replaced = view.register(record("a", instance="two", epoch=3), 7, 2.0)
    assert replaced is known and not known.known


def test_another_instance_replaces_and_an_older_record_does_not() -> None:
    view = view_of(record("a", instance="one", epoch=3))
    _, replaced = view.register(record("a", instance="two", epoch=4), 7, 1.0)
    assert replaced is not None and replaced.instance == "one" and not replaced.reachable
    _, replaced = view.register(record("a", instance="one", epoch=3), 2, 1.0)
    assert replaced is None and view.workers["a"].instance == "two"
    view.register(record("a", instance="two", epoch=4, slots=1), 3, 1.0)
    assert view.workers["a"].total == 4


def test_silence_counts_only_while_we_could_hear() -> None:
    view = view_of(record("a"))
    assert view.silent(3.1, 3.0) == [view.workers["a"]]
    view.forgive(5.0)
    assert view.silent(3.1, 3.0) == []


# -- choosing -----------------------------------------------------------------------------------------------------


def choose(
    view: WorkerTable, policy: Any = None, *, anyhow: bool = False, seed: int = 1, **demand: Any
) -> WorkerEntry | None:
    routed_request = RoutedRequest(method=demand.pop("method", "echo"), **demand)
    candidates = Candidates(view, random.Random(seed).random)
    return (policy or Sticky()).choose(candidates.of(routed_request, anyhow=anyhow), routed_request)  # type: ignore[no-any-return]


def name(worker: WorkerEntry | None) -> str | None:
    return worker.id.worker if worker is not None else None


def test_the_nearest_tier_with_room_is_taken() -> None:
    view = view_of(
        record("far", node="n2", zone="z2"), record("zone", node="n3", zone="z1"), record("near", node="n1"),
        node="n1", zone="z1",
    )  # fmt: skip
    tiers = [view.workers[each].tier for each in ("near", "zone", "far")]
    assert tiers == [SAME_NODE, SAME_ZONE, ANYWHERE]
    for expected in ("near", "zone", "far"):
        chosen = choose(view)
        assert name(chosen) == expected and chosen is not None
        view.loaded(chosen, Load(4, 0, 4), 1, 1.0)
    assert choose(view) is None


def test_the_less_loaded_of_two_is_taken_relative_to_size() -> None:
    view = view_of(record("small", slots=2), record("big", slots=16))
    view.charge(view.workers["small"], 1)
    view.charge(view.workers["big"], 4)
    assert {name(choose(view, seed=seed)) for seed in range(20)} == {"big"}


def test_equals_take_turns() -> None:
    view = view_of(record("a"), record("b"))
    taken = []
    for seed in range(6):
        worker = choose(view, seed=seed)
        assert worker is not None
        view.charge(worker, 1)
        view.discharge(worker, 1)
        taken.append(name(worker))
    assert taken in (["a", "b"] * 3, ["b", "a"] * 3)


def test_labels_and_methods_filter() -> None:
    view = view_of(
        record("cpu"),
        record("gpu", labels={"gpu": "yes", "size": "l"}),
        record("old", methods={"echo": METHODS["echo"]}),
    )
    assert {name(choose(view, labels={"gpu": "yes"}, seed=seed)) for seed in range(9)} == {"gpu"}
    assert choose(view, labels={"gpu": "yes", "size": "s"}) is None
    assert name(choose(view, method="heavy")) in ("cpu", "gpu")
    view.remove(view.workers["cpu"])
    assert {name(choose(view, method="heavy", seed=seed)) for seed in range(9)} == {"gpu"}


def test_a_rare_label_is_found_among_thousands() -> None:
    view = view_of(*(record(f"w{n}", labels={"rare": "yes"} if n == 777 else {}) for n in range(2000)))
    assert {name(choose(view, labels={"rare": "yes"}, seed=seed)) for seed in range(5)} == {"w777"}


def test_a_request_for_many_slots_needs_them_free() -> None:
    view = view_of(record("a"), record("b"))
    view.charge(view.workers["a"], 2)
    assert name(choose(view, method="heavy")) == "b"
    view.loaded(view.workers["b"], Load(2, 0, 4), 1, 1.0)
    assert choose(view, method="heavy") is None
    assert choose(view, method="heavy", anyhow=True) is not None


def test_those_that_turned_it_down_are_avoided() -> None:
    view = view_of(record("a"), record("b"))
    routed_request = RoutedRequest(method="echo")
    routed_request.avoid = {view.workers["a"]}
    candidates = Candidates(view, random.Random(1).random)
    assert name(PowerOfTwo().choose(candidates.of(routed_request), routed_request)) == "b"
    assert [name(worker) for worker in candidates.of(routed_request)] == ["b"]


def test_a_key_has_one_home_that_moves_only_when_it_must() -> None:
    view = view_of(*(record(f"w{n}") for n in range(10)))
    homes = {key: name(choose(view, key=key)) for key in map(str, range(300))}
    assert len(set(homes.values())) == 10
    assert homes == {key: name(choose(view, key=key, seed=9)) for key in homes}
    gone = view.workers["w3"]
    view.remove(gone)
    after = {key: name(choose(view, key=key)) for key in homes}
    assert {key for key in homes if homes[key] != after[key]} == {key for key in homes if homes[key] == "w3"}
    view.register(record("w3"), 99, 0.0)
    assert {key: name(choose(view, key=key)) for key in homes} == homes


def test_homes_are_the_same_in_every_process() -> None:
    view = view_of(*(record(f"w{n}") for n in range(10)))
    # Written down, not computed: another value would move every user's sessions at an upgrade.
    assert [name(choose(view, key=key)) for key in ("user-1", "user-2", "user-3", "ü")] == HOMES


HOMES = ["w4", "w9", "w6", "w5"]


def test_a_key_waits_for_its_home_while_that_is_full() -> None:
    view = view_of(record("a"), record("b"))
    home = choose(view, key="k")
    assert home is not None
    view.loaded(home, Load(4, 0, 4), 1, 1.0)
    assert choose(view, key="k") is None
    assert choose(view, key="k", anyhow=True) is home
    view.unreachable(home)
    assert choose(view, key="k") not in (None, home)


def test_a_model_goes_where_it_is_then_to_the_fewest_models_then_anywhere() -> None:
    view = view_of(*(record(each, max_models=3) for each in "abc"))
    a, b, c = (view.workers[each] for each in "abc")
    view.has_models(a, ("m", "x", "y"), 1.0)
    view.has_models(b, ("x",), 1.0)
    view.has_models(c, ("x", "y"), 1.0)
    assert choose(view, model="m") is a
    view.loaded(a, Load(4, 0, 4), 1, 1.0)
    assert choose(view, model="m") is b
    view.routed_model(b, "m", 1.0)
    view.loaded(a, Load(0, 0, 4), 1, 1.0)
    view.charge(b, 1)
    assert choose(view, model="m") is a
    view.has_models(b, ("x",), 2.0)
    assert "m" in b.models  # it was routed there a moment ago, and is still being loaded
    view.has_models(b, ("x",), 9.0)
    assert b.models == ("x",)
    view.check()


# -- scale --------------------------------------------------------------------------------------------------------


def test_choosing_looks_at_no_more_workers_when_there_are_more() -> None:
    def steps(size: int) -> int:
        view = view_of(*(record(f"w{n}") for n in range(size)))
        candidates, routed_request, policy = (
            Candidates(view, random.Random(1).random),
            RoutedRequest(method="echo"),
            Sticky(),
        )

        def choose() -> None:
            for _ in range(50):
                worker = policy.choose(candidates.of(routed_request), routed_request)
                assert worker is not None
                view.charge(worker, 1)
                view.discharge(worker, 1)

        return lines_run(choose)

    assert steps(2000) == pytest.approx(steps(10), rel=0.05)


def test_a_known_worker_costs_at_most_1500_bytes() -> None:
    texts = [
        record(f"worker-{n}", instance=f"instance-{n:016}", node=f"node-{n}", labels={"gpu": "yes"}).model_dump_json()
        for n in range(1000)
    ]
    view = WorkerTable()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n, text in enumerate(texts):
        worker, _ = view.register(Registration.model_validate_json(text), n, float(n))
        view.loaded(worker, Load(1, 0, 4), n + 1_000_000_000_000, float(n))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 1000 < 1500
