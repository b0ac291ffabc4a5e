"""What tests hold of a scenario. How long anything took is not among it: `python -m bench.faults.gangs` says that."""

from __future__ import annotations

from bench.faults.figures import Row


def checked(rows: list[Row]) -> list[Row]:
    """No law was broken, and everything was measured."""
    assert [(row.name, row.broken) for row in rows if row.broken] == []
    assert [row.name for row in rows if not row.samples] == []
    return rows
