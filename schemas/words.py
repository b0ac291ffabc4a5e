"""Words for people that several parts say alike."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """`1 slot`, `3 slots`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
