"""One minute of `make chaos`."""

from __future__ import annotations

import pytest

from bench.chaos.run import chaos


@pytest.mark.long  # test_judge shows that it would find what is broken, tests/faults plays single faults
@pytest.mark.server
@pytest.mark.processes
@pytest.mark.timeout(900)
async def test_the_laws_hold_through_a_minute_of_faults() -> None:
    lines: list[str] = []
    outcome = await chaos(1, 1.0, say=lines.append)
    found = [f"{law}: {text}" for law, texts in outcome.verdicts.items() for text in texts]
    assert not found, "\n".join([*lines, *found, *outcome.notes])
    assert outcome.played
    assert {request.kind for request in outcome.history.requests if request.ok} >= {"once", "lease", "job", "gang"}
