"""Numbers of owners that come and go."""

from __future__ import annotations

import threading

import pytest

from gangline.telemetry.metrics import instruments
from gangline.telemetry.metrics.instruments import OTHER, Counts, Numbers


class Owner:
    pass


def sums(counts: Counts) -> dict[tuple[str, ...], int]:
    return dict(counts.total())


def test_numbers_of_a_counter_outlive_their_owner_and_those_of_a_gauge_do_not() -> None:
    for keep, left in ((True, {("a",): 3}), (False, {})):
        counts, owner, other = Counts(keep=keep), Owner(), Owner()
        counts.of(owner)[("a",)] += 2
        counts.of(other).tally(("a",)).count += 1
        assert sums(counts) == {("a",): 3}
        del owner, other
        assert sums(counts) == left


def test_names_that_callers_invent_do_not_pile_up_and_no_count_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100
    monkeypatch.setattr(instruments, "MOST_NAMES", most)
    owner, requests, waiting = Owner(), Counts(keep=True), Counts(keep=False)
    counted, level = requests.of(owner), waiting.of(owner)
    counted["real", "real"] += 7
    for number in range(3 * most):
        name = f"invented{number}"
        counted.tally((name, name)).count += 1
        counted[name, name] += 1
        level[name,] += 1
        level.forget({name}, keep=False)
        level[name,] -= 1
        for numbers, keep in ((counted, True), (level, False)):
            numbers.forget({name, "gone"}, keep=keep)
    assert len(sums(requests)) <= most + 2 and len(sums(waiting)) <= most
    assert sum(sums(requests).values()) == 7 + 6 * most
    assert sums(requests)["real", "real"] == 7 and sums(requests)[OTHER, OTHER] >= 4 * most


def test_an_owner_may_be_collected_at_any_moment_of_a_reading() -> None:
    """The garbage collector runs where it likes, in the thread that reads as well."""
    counts, keeper = Counts(keep=True), Owner()
    owners = [Owner()]
    counts.of(owners[0])[("a",)] += 1

    class Collecting(Numbers):
        def now(self) -> list[tuple[tuple[str, ...], int]]:
            owners.clear()
            return super().now()

    counts.of(keeper).__class__ = Collecting
    read: list[dict[tuple[str, ...], int]] = []
    reader = threading.Thread(target=lambda: read.extend([sums(counts), sums(counts)]), daemon=True)
    reader.start()
    reader.join(10)
    assert read == [{("a",): 1}] * 2
    assert not owners
