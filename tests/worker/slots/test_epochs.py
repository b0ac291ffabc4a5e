"""Epochs and fences."""

from __future__ import annotations

from gangline.worker.slots.admission_core import FencingTokens, next_epoch


def test_an_epoch_is_the_time_in_milliseconds():
    assert next_epoch(0, 1_700_000_000.5) == 1_700_000_000_500


def test_an_epoch_grows_even_when_the_clock_was_set_back():
    assert next_epoch(1_700_000_000_500, 1_600_000_000.0) == 1_700_000_000_501


def test_fences_grow_within_and_over_epochs():
    fences = FencingTokens(1_700_000_000_000)
    first = [fences.next() for _ in range(5)]
    fences.new_epoch(1_700_000_000_001)
    second = [fences.next() for _ in range(5)]
    assert first + second == sorted(set(first + second))


def test_fences_fit_a_signed_64_bit_number_for_centuries():
    year_2248 = 8_770_000_000_000  # milliseconds
    assert FencingTokens(year_2248).next() < 2**63


def test_fences_grow_even_if_an_epoch_counted_past_its_share():
    fences = FencingTokens(5)
    fences._last += 2**20 + 10
    last = fences.next()
    fences.new_epoch(6)
    assert fences.next() > last
