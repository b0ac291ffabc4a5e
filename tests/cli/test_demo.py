"""The demo as a newcomer runs it, on fewer files; and that it fails when something is wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.cli.demo.pools import library_files

from ..waiting import PATIENCE_S
from .conftest import plain_environment, wait_gone


def environment(folder: Path) -> dict[str, str]:
    return {**plain_environment(), "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}


def assert_ok(done: subprocess.CompletedProcess[str], files: int, folder: Path) -> None:
    """Of `gangline demo --files N` with its temporary files in that folder."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        rf"demo: ok  {3 * files + files // 4} tasks, \d+ MB, 4 workers, 1 killed, 1 drained; "
        r"3 gangs, 4 generations, 1 member killed; "
        rf"{files} durable tasks, 1 worker and 1 dispatcher killed, 2 dead letters; 0 lost, 0 over capacity, .+ s",
        last,
    )
    assert done.stdout.count("  ok    ") == 21
    assert "later generation 1 is torn down" in done.stdout
    assert "$ gangline why " in done.stdout and "is queued, number 1 in the queue" in done.stdout
    assert "$ gangline dead ls" in done.stdout and "/no/such/file" in done.stdout
    assert "FAIL" not in done.stdout
    assert list(folder.iterdir()) == [], "temporary folders are removed"


@pytest.mark.server
@pytest.mark.processes
def test_the_demo_ends_with_ok_and_leaves_nothing_behind(forks, tmp_path):
    command = ["-m", "gangline.cli", "demo", "--files", "40"]
    done = forks.run(command, environment=environment(tmp_path), forks_children=True, timeout=4 * PATIENCE_S)
    assert_ok(done, 40, tmp_path)


@pytest.mark.long
@pytest.mark.server
@pytest.mark.processes
def test_the_demo_runs_in_new_interpreters_of_its_own(tmp_path):
    command = [sys.executable, "-m", "gangline.cli", "demo", "--files", "120"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert_ok(done, 120, tmp_path)


@pytest.mark.server
@pytest.mark.processes
@pytest.mark.long
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path):
    """In new interpreters: what ties a child to its parent is how the one starts the other."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "gangline.cli", "demo", "--files", "40"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "call: " in line:
                break
        family = children(demo.pid)
        assert len(family) >= 5, "a server, a gateway, three workers"
        demo.send_signal(signal.SIGKILL)
        demo.stdout.read()
        assert demo.wait(PATIENCE_S) == -9
    for pid in family:
        wait_gone(pid)


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_the_corpus_is_the_standard_library_without_what_others_installed(tmp_path):
    (tmp_path / "lib" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "site-packages" / "theirs.py").write_text("")
    (tmp_path / "lib" / "mine.py").write_text("x = 1")
    (tmp_path / "lib" / "folder.py").mkdir()
    (tmp_path / "lib" / "data.txt").write_text("")
    (tmp_path / "lib" / "gone.py").symlink_to(tmp_path / "nowhere.py")
    assert [path.name for path in library_files(tmp_path / "lib")] == ["mine.py"]
    assert any(path.name == "asyncio" or path.parent.name == "asyncio" for path in library_files())
