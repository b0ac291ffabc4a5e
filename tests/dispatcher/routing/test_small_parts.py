"""Settings, lines, backoff, fates and hashing, each alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.gateway.gateway import GatewaySettings
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.dispatcher.routing.wait_queue import WaitQueue
from gangline.dispatcher.routing.worker_table import fingerprint, score
from gangline.schemas.errors.base import InvalidName, InvalidSettings
from gangline.schemas.wire.frames import Reason

from ...support.rows import in_rows

# -- settings -----------------------------------------------------------------------------------------------------


@in_rows(
    "kind, name, bad",
    [
        (RouterSettings, "max_queued", -1),
        (RouterSettings, "max_queued", 1.5),
        (RouterSettings, "max_attempts", 0),
        (RouterSettings, "max_attempts", True),
        (RouterSettings, "backoff_first_s", 0),
        (RouterSettings, "lost_after_s", 0.5),
        (RouterSettings, "default_timeout_s", 0),
        (RouterSettings, "stream_window", 0),
        (RouterSettings, "claim_s", "2"),
        (RouterSettings, "probe_first_s", None),
        (GatewaySettings, "default_timeout_s", 0),
        (GatewaySettings, "max_pending", 0),
        (GatewaySettings, "max_pending", True),
        (GatewaySettings, "drain_grace_s", -1),
        (CallOptions, "timeout_s", -1),
        (CallOptions, "timeout_s", 1e12),
        (CallOptions, "max_attempts", 0),
    ],
)
def test_a_setting_out_of_bounds_is_named_with_its_bounds(kind: Any, name: str, bad: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        kind(**{name: bad})


def test_a_pool_that_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        CallOptions(pool="a.b")


def test_large_bounds_are_written_in_full() -> None:
    with pytest.raises(InvalidSettings, match="max_pending is 0, it must be between 1 and 10000000$"):
        GatewaySettings(max_pending=0)
    with pytest.raises(InvalidSettings, match="default_timeout_s is 0, it must be between 0.001 and 2592000$"):
        RouterSettings(default_timeout_s=0)
    with pytest.raises(InvalidSettings, match="timeout_s is -3.0, it must be a number above 0 and at most 2592000$"):
        CallOptions(timeout_s=-3.0)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="backoff_max_s"):
        RouterSettings(backoff_first_s=1.0, backoff_max_s=0.5)
    with pytest.raises(InvalidSettings, match="probe_max_s"):
        RouterSettings(probe_first_s=1.0, probe_max_s=0.5)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        RouterSettings().max_queued = 5  # type: ignore[misc]


# -- lines --------------------------------------------------------------------------------------------------------


class Item:
    def __init__(self, number: int, queue: Any = None, tenant: str = "") -> None:
        self.number = number
        self.queue = queue
        self.tenant = tenant
        self.waits: object | None = None


def test_an_item_that_waits_in_another_class_by_now_is_not_the_first_of_its_old_one() -> None:
    line: WaitQueue[Item] = WaitQueue()
    changed, stays = Item(1, "a"), Item(2, "a")
    line.add(changed)
    line.add(stays)
    line.remove(changed)
    changed.queue = "b"
    line.add(changed)
    assert line.next_after(stays) is stays and line.next_after(changed) is changed


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans())))
def test_a_line_agrees_with_a_sorted_list(steps: list[tuple[int, bool]]) -> None:
    line: WaitQueue[Item] = WaitQueue()
    items = [Item(number, number % 2) for number in range(13)]
    model: set[int] = set()
    for number, add in steps:
        if add and number not in model:
            line.add(items[number])
            model.add(number)
        elif not add:
            assert line.remove(items[number]) == (number in model)
            model.discard(number)
        assert [item.number for item in line] == sorted(model)
        assert len(line) == len(model)
        for queue in (0, 1):
            members = sorted(number for number in model if number % 2 == queue)
            head = next((item.number for item in line.heads() if item.queue == queue), None)
            assert head == (members[0] if members else None)
            assert line.has_line(queue) == bool(members)


@given(
    st.lists(st.sampled_from("abc"), max_size=60),
    st.fixed_dictionaries({}, optional={tenant: st.sampled_from([0.5, 1.0, 3.0]) for tenant in "abc"}),
    st.lists(st.one_of(st.integers(1, 3), st.sampled_from("abc")), max_size=80),
)
def test_tenants_that_wait_are_served_in_proportion_to_their_weights(
    first: list[str], weights: dict[str, float], steps: list[int | str]
) -> None:
    """Steps: a request of that tenant comes, or the next one gets that many slots."""
    line: WaitQueue[Item] = WaitQueue(lambda tenant: weights.get(tenant, 1.0))
    numbers = itertools.count()
    waiting: dict[str, list[int]] = {tenant: [] for tenant in "abc"}
    got: dict[tuple[str, str], float] = {}  # what the first has got, since both have been waiting

    def come(tenant: str) -> None:
        for other in "abc":
            if not waiting[tenant]:
                got[tenant, other] = got[other, tenant] = 0.0
        waiting[tenant].append(next(numbers))
        line.add(Item(waiting[tenant][-1], tenant=tenant))

    for tenant in first:
        come(tenant)
    for step in steps:
        if isinstance(step, str):
            come(step)
        elif line.size:
            [head] = line.heads()
            assert head.number == waiting[head.tenant][0], "one tenant's requests keep their order"
            line.take(head, step, 0.0)
            waiting[head.tenant].pop(0)
            for other in "abc":
                got[head.tenant, other] = got.get((head.tenant, other), 0.0) + step / weights.get(head.tenant, 1.0)
        together = [(a, b) for a in "abc" for b in "abc" if a < b and waiting[a] and waiting[b]]
        for a, b in together:
            most = 3 / weights.get(a, 1.0) + 3 / weights.get(b, 1.0)
            assert abs(got.get((a, b), 0.0) - got.get((b, a), 0.0)) <= most, (a, b)


# -- retry --------------------------------------------------------------------------------------------------------


def test_who_moves_to_another_line_does_not_come_up_in_the_one_before() -> None:
    here: WaitQueue[Item] = WaitQueue()
    there: WaitQueue[Item] = WaitQueue()
    first, moved, other = Item(1), Item(2), Item(3, "another class")
    for item in (first, moved, other):
        here.add(item)
    assert here.remove(moved)  # it stands behind another, so its entry is still there
    there.add(moved)
    assert here.remove(first) and here.heads() == list(here) == [other] and len(here) == 1
    assert not here.remove(moved)
    assert there.heads() == list(there) == [moved] and len(there) == 1


def test_only_what_may_have_started_is_kept_from_another_try() -> None:
    uncertain = {fate for fate in TryOutcome if fate.may_have_started}
    assert uncertain == {TryOutcome.LOST, TryOutcome.TIMED_OUT, TryOutcome.FORGOTTEN}
    for fate in TryOutcome:
        assert fate.allows_retry(idempotent=True)
        assert fate.allows_retry(idempotent=False) == (fate not in uncertain)


def test_each_reason_on_the_wire_has_a_fate() -> None:
    assert [TryOutcome.of_reason(reason) for reason in Reason] == [
        TryOutcome.FULL,
        TryOutcome.DRAINING,
        TryOutcome.STALE,
        TryOutcome.LATE,
        TryOutcome.LIMITED,
        TryOutcome.NOT_HERE,
    ]
    assert TryOutcome.of_reason("something newer") is TryOutcome.FULL


# -- hashing ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_hashes_do_not_depend_on_the_process() -> None:
    code = "from gangline.dispatcher.routing.worker_table import *; print(fingerprint('a'), score(fingerprint('k'), 7))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{fingerprint('a')} {score(fingerprint('k'), 7)}\n"}


def test_keys_spread_evenly() -> None:
    workers = [fingerprint(f"w{n}") for n in range(8)]
    counts = dict.fromkeys(workers, 0)
    for n in range(8000):
        key = fingerprint(f"key-{n}")
        counts[max(workers, key=lambda worker: score(key, worker))] += 1
    assert all(850 < count < 1150 for count in counts.values()), counts.values()
