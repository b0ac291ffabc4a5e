"""The pytest plugin, in runs of pytest as users have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ..processes import ForkServer
from ..waiting import PATIENCE_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
POOL = """
import asyncio, os, time
import pytest
import gangline

pool = gangline.Pool("words", slots=4)

@pool.task(idempotent=True)
async def count(text: str) -> int:
    return len(text.split())

@pool.task
async def where() -> str:
    return gangline.current_task().worker

@pool.task(idempotent=True)
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return gangline.current_task().worker

other = gangline.Pool("other", slots=4)  # its children take long to start on a real loop

@other.task(executor="process")
def heavy(n: int) -> int:
    return n * n

@other.task(executor="process")
async def heavy_wait(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()

@pool.task(executor="thread")
async def thread_wait(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
"""


@pytest.fixture
def run(tmp_path: Path, forks: ForkServer):
    """Runs pytest on these tests; returns how many passed and failed, and what it printed."""

    def run_pytest(tests: str, *arguments: str, conftest: str = "") -> tuple[dict[str, int], str]:
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "words.py").write_text(POOL)
        (tmp_path / "test_words.py").write_text(f"from words import *\n\n{tests}")
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
        plugins = ("-p", "gangline.pytest_plugin")
        done = forks.run(
            ("-m", "pytest", "-q", *plugins, *arguments),
            cwd=tmp_path,
            environment={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
            timeout=4 * PATIENCE_S,
        )
        words = done.stdout.strip().splitlines()[-1].replace(",", "").split() if done.stdout.strip() else []
        counts = {what: int(number) for number, what in zip(words, words[1:], strict=False) if number.isdigit()}
        return counts, done.stdout + done.stderr

    return run_pytest


def test_async_tests_get_a_client_and_plain_ones_a_sync_client(run):
    counts, told = run(
        """
pytestmark = pytest.mark.gangline(pool)

async def test_async(gangline_client):
    assert isinstance(gangline_client, gangline.Client)
    assert await gangline_client.call(count, text="a b") == 2

def test_plain(gangline_client):
    assert isinstance(gangline_client, gangline.SyncClient)
    assert gangline_client.call(count, text="a b") == 2

async def test_without_fixtures():
    assert asyncio.get_running_loop() is not None

class TestClass:
    async def test_method(self, gangline_client):
        assert await gangline_client.call("words.count", "a") == 1

@pytest.mark.parametrize("text", ["a b", "a"])
async def test_with_parameters(gangline_client, text):
    assert await gangline_client.call(count, text) == len(text.split())
"""
    )
    assert counts == {"passed": 6}, told


def test_a_failure_is_a_failure_and_the_next_test_is_not_touched_by_it(run):
    counts, told = run(
        """
pytestmark = pytest.mark.gangline(pool)

async def test_fails(gangline_client):
    assert await gangline_client.call(count, text="a b") == 3

async def test_leaves_a_task(gangline_client):
    asyncio.ensure_future(gangline_client.call(slow, 60))
    await asyncio.sleep(0)

async def test_works(gangline_client):
    assert await gangline_client.call(count, text="a b") == 2
"""
    )
    assert counts == {"failed": 1, "passed": 2}, told
    assert "assert 2 == 3" in told


@pytest.mark.long
def test_virtual_time_takes_no_time_in_tasks_of_all_executors(run):
    counts, told = run(
        """
pytestmark = pytest.mark.gangline(pool, other, dispatcher=True, virtual_time=True)

async def test_executors(gangline_client):
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await gangline_client.call(heavy, 5) == 25
    assert await gangline_client.call(heavy_wait, 60) == os.getpid()  # in this process
    assert await gangline_client.call(thread_wait, 60) == 60
    await gangline_client.call(slow, 60)
    assert loop.time() - began >= 180

async def test_delays_and_schedules(gangline_cluster, gangline_client):
    loop = asyncio.get_running_loop()
    began = loop.time()
    job = await gangline_client.options(delay_s=120).submit(count, "a b c")
    assert await job.result() == 3
    assert loop.time() - began >= 119
    every = await gangline_client.options(cron="@every 1m").submit(count, "a")
    await gangline_cluster.advance(130)
    await every.cancel()

def test_plain(gangline_cluster, gangline_client):
    job = gangline_client.options(delay_s=120).submit(count, "a b")
    assert job.status().state.value == "scheduled"
    gangline_cluster.advance(121)
    assert job.status().state.value == "done"
    assert job.result() == 2
"""
    )
    assert counts == {"passed": 3}, told


ACCIDENTS = """
pytestmark = pytest.mark.gangline(pool, workers=2{more})

async def test_a_killed_worker(gangline_cluster, gangline_client):
    assert set(gangline_cluster.workers) == {{"words.w1", "words.w2"}}
    await gangline_cluster.kill("words.w1")
    assert set(gangline_cluster.workers) == {{"words.w2"}}
    for _ in range(4):
        assert await gangline_client.call(where) == "words.w2"
    await gangline_cluster.kill("words.w1")
    with pytest.raises(gangline.errors.InvalidRequest, match="there is no process 'words.w9'"):
        await gangline_cluster.kill("words.w9")

async def test_a_frozen_worker_goes_on(gangline_cluster, gangline_client):
    gangline_cluster.freeze("words.w1")
    gangline_cluster.freeze("words.w2")
    call = asyncio.ensure_future(gangline_client.options(timeout_s=20).call(count, "a b"))
    await asyncio.sleep(0.2)
    assert not call.done()
    gangline_cluster.thaw("words.w1")
    gangline_cluster.thaw("words.w2")
    assert await call == 2

async def test_a_cut_client_comes_back(gangline_cluster, gangline_client):
    gangline_cluster.cut("client")
    with pytest.raises(gangline.GanglineError):
        await gangline_client.options(timeout_s=0.5).call(count, "a")
    gangline_cluster.restore("client")
    assert await gangline_client.options(timeout_s=20).call(count, "a") == 1
"""


@pytest.mark.parametrize("more", ["", ", virtual_time=True"], ids=["real", "virtual"])
def test_accidents(run, more):
    counts, told = run(ACCIDENTS.format(more=more))
    assert counts == {"passed": 3}, told


def test_async_fixtures_run_on_the_loop_of_their_test(run):
    counts, told = run(
        """
pytestmark = pytest.mark.gangline(virtual_time=True)

@pytest.fixture
async def number(gangline_client):
    yield await gangline_client.call(count, "a b")
    assert await gangline_client.call(count, "a") == 1

@pytest.fixture
async def text():
    await asyncio.sleep(60)
    return "a b c"

async def test_fixtures(gangline_client, number, text):
    assert await gangline_client.call(count, text) == number + 1
""",
        conftest="import pytest\nfrom words import pool\n\n@pytest.fixture\ndef gangline_pools():\n    return pool\n",
    )
    assert counts == {"passed": 1}, told


def test_mistakes_are_told(run):
    counts, told = run(
        """
async def test_no_pool(gangline_client): ...

@pytest.mark.gangline(pool, worker=2)
async def test_unknown_option(gangline_client): ...
"""
    )
    assert counts == {"errors": 2}, told
    assert "has no pool: mark it with @pytest.mark.gangline(pool)" in told
    assert "has no option 'worker'" in told


@pytest.mark.long
def test_it_works_with_xdist_and_anyio(run):
    counts, told = run(
        """
@pytest.mark.gangline(pool)
async def test_ours(gangline_client):
    assert await gangline_client.call(count, text="a b") == 2

@pytest.mark.anyio
async def test_of_anyio(anyio_backend_name):
    assert anyio_backend_name == "asyncio"

@pytest.mark.anyio
@pytest.mark.gangline(pool)
async def test_both(gangline_client):
    assert await gangline_client.call(count, text="a b") == 2
""",
        *("-p", "anyio.pytest_plugin", "-p", "xdist.plugin", "-n", "2"),
        conftest="import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n",
    )
    assert counts == {"passed": 3}, told


def test_a_run_without_these_tests_imports_nothing_of_gangline(run):
    counts, told = run(
        """
def test_plain(): ...
""".replace("from words import *", ""),
        conftest="",
    )
    assert counts == {"passed": 1}, told
    code = "import sys, gangline.pytest_plugin; print(sorted(n for n in sys.modules if n.startswith('gangline')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gangline', 'gangline.pytest_plugin']"


@pytest.mark.long
def test_the_tests_on_the_page_about_testing_pass(run, tmp_path):
    page = (ROOT / "docs" / "how-to" / "test-your-tasks.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    samples = "\n\n".join(block for block in blocks if not re.search(r"^await ", block, re.MULTILINE))
    marked = "@pytest.mark.gangline\nasync def test_"  # those that use no fixture have no mark on the page
    samples = re.sub(r"(?<!\)\n)^async def test_", marked, samples, flags=re.MULTILINE)
    counts, told = run(samples)
    assert counts == {"passed": samples.count("def test_")} and counts["passed"] >= 9, told


def test_the_distribution_declares_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gangline": "gangline.pytest_plugin"}
