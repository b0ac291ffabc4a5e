"""bench/tenants.py: the page has what it measures."""

from __future__ import annotations

from pathlib import Path

from bench.tenants import ATTACKS, QUOTAS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "share-between-tenants.md"


def test_the_page_has_each_attack_once_and_the_quotas_under_which_it_was_measured() -> None:
    section = PAGE.read_text().partition("## What a tenant can do to another\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip().replace("*", "") for line in section.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(ATTACKS)
    assert f'GANGLINE_QUOTAS="{QUOTAS}"' in section
