"""The README's example and its two commands."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def example() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return found


def test_the_example_is_short():
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_example_is_the_one_in_the_examples():
    def code(text: str) -> str:
        without = re.sub(r'^"""(.*?)"""\n', "", text, flags=re.DOTALL)
        return re.sub(r'\n    """[^"]*"""', "", re.sub(r"\n\n+", "\n", without)).strip()

    assert code(example()) == code((ROOT / "examples" / "words.py").read_text())


def test_the_commands_of_the_readme_exist():
    targets = set(re.findall(r"^\$ make (\w+)", README, re.MULTILINE))
    assert targets == {"demo", "test"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


async def _serving(worker: asyncio.subprocess.Process) -> None:
    """Wait until its log says so."""
    assert worker.stderr is not None
    while line := await worker.stderr.readline():
        if b"worker.started" in line:
            return
    raise AssertionError("the worker ended")


@pytest.mark.processes
async def test_the_example_prints_what_the_readme_says(tmp_path, nats_server):
    # On a server of this test's own; everything else is as a reader would have it.
    told = re.search(r"\$ python words\.py\n(.*?)\$ ", README, re.DOTALL)
    assert told is not None
    (tmp_path / "words.py").write_text(example().replace("nats://127.0.0.1:4222", nats_server.url))
    environment = {"NATS_URL": nats_server.url, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ}
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gangline.cli",
        "worker",
        "words:pool",
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await _serving(worker)
        program = await asyncio.create_subprocess_exec(
            sys.executable, "words.py", cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await program.communicate()
    finally:
        worker.terminate()
        _, log = await worker.communicate()
    assert printed.decode() == told[1], log.decode()
    assert program.returncode == 0
    assert worker.returncode == 0
