"""Numbers of owners that come and go."""

from __future__ import annotations

import threading

from gangline.telemetry.counts import Counts, Numbers


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
