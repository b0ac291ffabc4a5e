"""Programs of this machine that some tests need and skip without. `.ci/run` gets what it can."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from bench.console.browser import BROWSER

from .promtool import PROMTOOL

NATS: Final = os.environ.get("NATS_CLI") or shutil.which("nats") or ""
"""The path of the `nats` CLI; empty: there is none."""


def no_docker() -> str:
    """Why no Docker engine can be used; empty: it can."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or "docker info fails"


def missing() -> list[str]:
    """Their names."""
    there = {
        "browser": BROWSER,
        "nats CLI": NATS,
        "promtool": PROMTOOL,
        "Go": shutil.which("go"),
        "Docker": not no_docker(),
    }
    return [name for name, found in there.items() if not found]
