"""The page of figures says what its JSON says, and why a target is missed."""

from __future__ import annotations

import json

from bench.notes import NOTES
from bench.report import REFERENCE, drawing, page
from gangline.bench.figures import FIGURES

FOUND = json.loads((REFERENCE / "benchmarks.json").read_text())


def test_the_page_and_the_chart_are_what_the_json_gives() -> None:
    assert (REFERENCE / "benchmarks.md").read_text() == page(FOUND)
    assert (REFERENCE / "benchmarks.svg").read_text() == drawing(FOUND)


def test_each_figure_that_is_missed_is_told_of_with_the_reason() -> None:
    values = FOUND["figures"]
    missed = [each.name for each in FIGURES if values[each.name] is not None and not each.meets(values[each.name])]
    assert missed, "else take the notes away"
    told = page(FOUND).split("## Targets that are not met, and why")[1].split("\n## ")[0]
    for name in missed:
        assert f"`{name}`" in told and NOTES[name] in told


def test_a_figure_that_is_met_needs_no_reason() -> None:
    figures = {each.name: each.target for each in FIGURES}
    assert "Targets that are not met" not in page({**FOUND, "figures": figures})
