"""What one request passes through: no more files than today. Fewer is better; then lower the figure here."""

from __future__ import annotations

from bench.flows import follow_all

MOST_FILES = {
    "call, plain": 43,
    "call, with a key and metrics": 57,
    "gang, until it is granted": 78,
    "gang, from a worker's death until it is granted again": 90,
    "submitted task that fails once": 129,
}


def test_no_flow_passes_through_more_files_than_it_did():
    found = {path.name: path.figures()["files"] for path in follow_all()}
    assert found.keys() == MOST_FILES.keys()
    assert {name: files for name, files in found.items() if files > MOST_FILES[name]} == {}
