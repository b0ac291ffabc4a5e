"""Mutations are determined by the seed, and are what the fuzzer needs: most of them new, and each of them bytes."""

from __future__ import annotations

from random import Random

import pytest

from bench.fuzz.doors import OPERATIONS, Doors, Shot
from bench.fuzz.mutation import Mutator, _is_encodable

COUNT = 300


def drawn(seed: int, door: str) -> list[Shot]:
    doors = Doors(Random(seed), "fuzz", 7)
    doors.channels = ["_INBOX.a.b"]
    return [doors.draw[door]() for _ in range(COUNT)]


@pytest.mark.parametrize("door", Doors(Random(0), "fuzz", 7).draw)
def test_a_seed_determines_what_is_sent(door: str) -> None:
    shots = drawn(1, door)
    assert shots == drawn(1, door) != drawn(2, door)
    assert len({(shot.subject, shot.data, tuple(shot.headers.items())) for shot in shots}) > COUNT // 3
    for shot in shots:
        assert isinstance(shot.data, bytes)
        assert not set(shot.subject) & set(" \r\n\t") and ".." not in shot.subject
        assert not shot.subject.startswith("$KV.FUZZ_LEDGER.leader")


def test_a_mutation_changes_a_copy() -> None:
    mutator = Mutator(Random(3))
    document = OPERATIONS["reserve"]
    before = dict(document)
    changed = [mutator.value(document) for _ in range(COUNT)]
    assert document == before
    assert sum(each != document for each in changed) > COUNT * 0.8


def test_a_value_that_would_take_minutes_to_encode_is_not_sent():
    lists: list[object] = [1]
    for _ in range(4):
        lists = [lists] * 1000
    assert not _is_encodable({"a": lists})
    assert _is_encodable({"a": [[1] * 1000] * 100})
