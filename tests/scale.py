"""How much of the suite runs: the quick suite by default, everything with `pytest --all` (`make test-all`).

After the quick suite, `pytest --rest` runs what is left of everything: tests that are long, and those of
modules that use `repetitions`. The others are deterministic, so they would only do the same once more.

The quick suite leaves out repetition and breadth, never a kind of check. A test declares this in one of two ways:

- `repetitions(10, whole=100)`: 10 seeds, examples or rounds in the quick suite, 100 in the whole one.
- `@pytest.mark.long`: the test runs only in the whole suite. A quicker test checks the same thing.
"""

from __future__ import annotations

import os

VARIABLE = "GANGLINE_TEST_ALL"
"""Set by `pytest --all` and `--rest`, before any test module is imported."""


def repetitions(quick: int, *, whole: int) -> int:
    """How often to repeat: `quick` times, or `whole` times with `--all` and `--rest`."""
    return whole if os.environ.get(VARIABLE) else quick
