"""The system of compose.yaml, up for the tests of this folder, with secrets of its own.

Skipped only where no Docker engine runs; and with NATS=container, which claims that one does, not even there.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.bus.embedded.cluster import free_ports

from ..support.tools import no_docker
from .plain import Identity

ROOT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_S = 600


class ComposeProject:
    """One project of Docker Compose."""

    def __init__(self, project: str, ports: dict[str, int], secrets: Path) -> None:
        self.project = project
        self.ports = ports
        """Of each NATS server, on this machine."""
        self.secrets = secrets
        self.environment = os.environ | {
            "GANGLINE_IMAGE": "gangline-test",
            "GANGLINE_SECRETS": str(secrets),
            **{f"NATS_PORT_{name.removeprefix('nats-')}": str(port) for name, port in ports.items()},
        }

    def identity(self, user: str) -> Identity:
        return Identity.of(self.secrets, user)

    def command(self, *arguments: str) -> str:
        """What `gangline` prints, as operator."""
        return self.compose("run", "--rm", "-T", "cli", *arguments)

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


def make_secrets(folder: Path, ports: dict[str, int]) -> Path:
    """Run `deploy/secrets.sh`."""
    environment = os.environ | {f"NATS_PORT_{name.removeprefix('nats-')}": str(port) for name, port in ports.items()}
    script = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(folder)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def engine() -> None:
    reason = no_docker()
    if not reason:
        return
    if os.environ.get("NATS") == "container":
        pytest.fail(f"NATS=container needs a Docker engine: {reason}")
    pytest.skip(f"no Docker engine runs here: {reason}")


@pytest.fixture(scope="session")
def system(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    ports = {f"nats-{number}": port for number, port in enumerate(free_ports(3), 1)}
    secrets = make_secrets(tmp_path_factory.mktemp("compose") / "secrets", ports)
    made = ComposeProject(f"gangline-test-{os.getpid()}", ports, secrets)
    try:
        made.compose("up", "--build", "--detach", "--wait", timeout_s=UP_TIMEOUT_S)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5")
