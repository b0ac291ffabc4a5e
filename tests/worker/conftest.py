"""Child processes of the executor, cheaply: forked in the quick suite, new interpreters in the whole one."""

from __future__ import annotations

import os
import subprocess
import types
from collections.abc import Sequence

import pytest

from gangline.worker.execution.executors.processes import child_handle as process_handle

from ..processes import ForkedProcess
from ..scale import repetitions

ALWAYS_NEW = bool(repetitions(0, whole=1))

AS_FORKED = """
import os, sys
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
link = os.dup(0)
with open(os.devnull) as nothing:
    os.dup2(nothing.fileno(), 0)
"""


@pytest.fixture
def new_interpreters() -> None:
    """The children of this test are what users get, in the quick suite too."""


@pytest.fixture(autouse=True)
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children run the same code as in a new interpreter, but do not import Gangline again: the fork server has."""
    if ALWAYS_NEW or "new_interpreters" in request.fixturenames:
        return

    def popen(command: Sequence[str], *, stdin: int, pass_fds: Sequence[int], start_new_session: bool) -> ForkedProcess:
        assert stdin == subprocess.DEVNULL and start_new_session, "as the fork server does it"
        (link,) = pass_fds
        _, _, code, _ = command
        entry = f"main({link}, {os.getpid()})"
        assert entry in code
        code = AS_FORKED + code.replace(entry, "main(link, os.getppid())")
        started: ForkedProcess = request.getfixturevalue("forks").start(["-c", code], stdin=link)
        return started

    fake = types.SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(process_handle, "subprocess", fake)
