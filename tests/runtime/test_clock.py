"""Tokens: unguessable, never twice, also after a fork and in threads."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from gangline.runtime.clock import Environment


def test_tokens_are_22_characters_that_may_stand_in_a_subject_and_no_two_are_equal():
    token = Environment().token
    made = [token() for _ in range(3000)]
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{21}", each) for each in made)
    assert len(set(made)) == 3000
    # Of the whole alphabet, at each place; the first is a letter or a digit, so that no command takes it for an option.
    assert [len({each[place] for each in made}) for place in range(22)] == [62, *[64] * 21]


def test_threads_make_different_ones():
    with ThreadPoolExecutor(4) as threads:
        rows = list(threads.map(lambda _: [Environment().token() for _ in range(500)], range(4)))
    made = [token for row in rows for token in row]
    assert len(set(made)) == len(made)


@pytest.mark.processes
def test_a_child_process_makes_others_than_its_parent():
    token = Environment().token
    token()  # so that there are some in store
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, " ".join(token() for _ in range(5)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 1000).decode().split()
    ours = [token() for _ in range(5)]
    assert len(theirs) == 5
    assert not set(theirs) & set(ours)
