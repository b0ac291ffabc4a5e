"""The suite's own runner: what it lets pass and what it refuses."""

from __future__ import annotations

import os

import pytest

from .. import conftest, scale
from ..support.rows import in_rows

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester):
    """Runs a test file with the conftest of this suite."""

    def run(source: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        options = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-q"]
        if scale.VARIABLE in os.environ:
            options.append("--all")  # or the run would turn it off for this process
        return pytester.runpytest_inprocess(*options, plugins=[conftest])

    return run


def test_the_rest_is_what_the_quick_suite_has_not_run_just_so(pytester: pytest.Pytester, monkeypatch):
    monkeypatch.setenv(scale.VARIABLE, "1")  # the run sets it, too, for this process
    pytester.makepyfile(
        test_plain="""
        import pytest
        def test_deterministic(): ...
        async def test_on_virtual_time(): ...
        @pytest.mark.long
        def test_long(): ...
        @pytest.mark.realtime
        async def test_real(): ...
        """,
        test_repeats="""
        repetitions = None
        def test_again(): ...
        """,
    )
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-v", "--rest", plugins=[conftest]
    )
    result.assert_outcomes(passed=2, deselected=3)
    result.stdout.fnmatch_lines_random(["*test_long PASSED*", "*test_again PASSED*"])


@in_rows("body, told", [
    ("asyncio.create_task(asyncio.sleep(100), name='forgotten')", "*left pending*forgotten*"),
    ("asyncio.get_running_loop().call_soon(lambda: 1 / 0); await asyncio.sleep(0.1)", "*ZeroDivisionError*"),
    ("asyncio.create_task(boom()); await asyncio.sleep(0.1)", "*LookupError: lost*"),
    ("asyncio.create_task(asyncio.sleep(100)); assert 1 == 2", "*assert 1 == 2*"),
])  # fmt: skip
def test_what_a_test_leaves_behind_fails_it_and_a_failure_shows_its_own_error(suite, body: str, told: str):
    result = suite(f"""
        import asyncio
        async def boom():
            raise LookupError("lost")
        async def test_leaves():
            {body}
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])
