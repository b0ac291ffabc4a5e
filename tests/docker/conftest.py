"""The system of compose.yaml, up for the tests of this folder.

Skipped only where no Docker engine runs; and with NATS=container, which claims that one does, not even there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_S = 600


class System:
    """One project of Docker Compose."""

    def __init__(self, project: str, ports: dict[str, int]) -> None:
        self.project = project
        self.ports = ports
        """Of each NATS server, on this machine."""
        self.environment = os.environ | {
            "GANGLINE_IMAGE": "gangline-test",
            **{f"NATS_PORT_{name.removeprefix('nats-')}": str(port) for name, port in ports.items()},
        }

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        done = subprocess.run(
            ["docker", "compose", "--project-name", self.project, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"docker compose {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def containers(self, service: str) -> list[dict[str, object]]:
        """What Docker says of each container of a service, the ended ones too."""
        names = self.compose("ps", "--all", "--quiet", service).split()
        told: list[dict[str, object]] = json.loads(subprocess.check_output(["docker", "inspect", *names]))
        return told


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def engine() -> None:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=30, check=False)
        said = None if done.returncode == 0 else done.stderr.strip()
    except OSError as error:
        said = str(error)
    if said is None:
        return
    if os.environ.get("NATS") == "container":
        pytest.fail(f"NATS=container needs a Docker engine: {said}")
    pytest.skip(f"no Docker engine runs here: {said}")


@pytest.fixture(scope="session")
def system(engine: None) -> Iterator[System]:
    made = System(f"gangline-test-{os.getpid()}", {f"nats-{number}": free_port() for number in (1, 2, 3)})
    try:
        made.compose("up", "--build", "--detach", "--wait", timeout_s=UP_TIMEOUT_S)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5")
