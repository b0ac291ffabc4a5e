"""The checks of the demo's third part find what is planted."""

from __future__ import annotations

from gangline.cli.demo.checks.calls import Record
from gangline.cli.demo.checks.tasks import buried, started_once


def start(job: str) -> Record:
    return {"event": "start", "job": job}


def end(job: str) -> Record:
    return {"event": "end", "job": job}


def test_a_job_that_a_kill_cut_short_may_start_again():
    journals = {"w1": [start("a")], "w2": [start("a"), end("a")]}
    assert started_once(["a"], journals, frozenset({"w1"}), {"a": "w2"}) == []


def test_a_job_whose_answer_a_kill_cut_short_may_start_again():
    journals = {"w1": [start("a"), end("a")], "w2": [start("a"), end("a")]}
    assert started_once(["a"], journals, frozenset({"w1"}), {"a": "w2"}) == []


def test_a_job_that_started_twice_with_nothing_cut_short_is_found():
    journals = {"w1": [start("a"), end("a")], "w2": [start("a"), end("a")]}
    found = ["job a was started by w1, w2, although nothing cut it short"]
    assert started_once(["a"], journals, frozenset(), {"a": "w1"}) == found
    assert started_once(["a"], journals, frozenset({"w1"}), {"a": "w1"}) == found, "its answer had become the result"


def test_a_job_that_never_started_is_found():
    assert started_once(["a"], {"w1": [start("b"), end("b")]}, frozenset(), {}) == ["job a was never started"]


def test_dead_letters_must_be_exactly_those_expected():
    assert buried({"1": "failed"}, {"1": "failed"}) == []
    assert buried({"1": "failed"}, {}) == ["job 1 is no dead letter"]
    assert buried({}, {"2": "expired"}) == ["job 2 is a dead letter: expired"]
    assert buried({"1": "failed"}, {"1": "malformed"}) == ["job 1 is dead because malformed, not failed"]
