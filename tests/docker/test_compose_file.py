"""What compose.yaml starts, without a Docker engine: its command lines, environments, secrets and configuration files,
as processes on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gangline.bus.embedded.cluster import free_ports
from gangline.bus.embedded.process import ServerProcess
from gangline.bus.embedded.server import find_server
from gangline.bus.settings.connection import ConnectionSettings

from ..processes import ForkServer
from ..waiting import until
from .conftest import ROOT, make_secrets
from .plain import Identity, NoAnswer, greeting, request

SERVERS: Final = ("nats-1", "nats-2", "nats-3")
ROLES: Final = {
    "gateway": "gateway",
    "coordinator": "coordinator",
    "dispatcher": "dispatcher",
    "worker": "worker",
    "cli": "operator",
}
"""The user of each service."""
CALL: Final = "gangline.call.words.count"
BODY: Final = b'{"text": "lease a slot before you send"}'


def composition(secrets: Path) -> dict[str, Any]:
    """compose.yaml with its variables replaced."""
    given = {"GANGLINE_SECRETS": str(secrets)}
    text = re.sub(
        r"\$\{(\w+):-([^}]*)\}", lambda found: given.get(found[1], found[2]), (ROOT / "compose.yaml").read_text()
    )
    composed: dict[str, Any] = yaml.safe_load(text)
    return composed


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return dict(zip(SERVERS, free_ports(3), strict=True))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Path:
    """What `deploy/secrets.sh` writes."""
    return make_secrets(tmp_path_factory.mktemp("compose") / "secrets", ports)


def test_each_service_has_the_secrets_of_its_own_role_and_no_other(secrets):
    composed = composition(secrets)
    assert set(composed["services"]) == {*SERVERS, *ROLES}
    for name, user in ROLES.items():
        service = composed["services"][name]
        assert service["environment"]["NATS_CONTEXT"] == user
        ca, context = service["secrets"]
        assert (ca, context["source"]) == ("ca.pem", user)
        assert context["target"] == f"{service['environment']['XDG_CONFIG_HOME']}/nats/context/{user}.json"
        assert "env_file" not in service
    for name in SERVERS:
        service = composed["services"][name]
        assert service["secrets"] == ["ca.pem", "server.pem", "server.key"]
        assert service["env_file"] == [str(secrets / "servers.env")]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    for each in (*composed["secrets"].values(), *composed["configs"].values()):
        assert (ROOT / each["file"]).is_file()


def test_all_users_of_the_shipped_roles_get_a_context_with_a_password_of_their_own(secrets, ports):
    users = re.findall(r"\{ user: ([\w-]+),", (ROOT / "deploy" / "roles.conf").read_text())
    assert {path.stem for path in (secrets / "nats" / "context").iterdir()} == set(users)
    passwords = set[str]()
    for user in users:
        environment = {"XDG_CONFIG_HOME": str(secrets), "NATS_CONTEXT": user}
        settings = ConnectionSettings.from_environment(environment)
        assert settings.urls == tuple(f"tls://127.0.0.1:{port}" for port in ports.values())
        assert (settings.user, settings.inbox_prefix) == (user, f"_INBOX.{user}")
        assert settings.tls_ca == secrets / "ca.pem"
        assert len(settings.password) == 49
        passwords.add(settings.password)
    assert len(passwords) == len(users)
    assert {line.partition("=")[2] for line in (secrets / "servers.env").read_text().splitlines()} == passwords


def test_secrets_are_kept_from_other_users_never_overwritten_and_the_key_of_the_authority_is_gone(secrets):
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in secrets.rglob("*.key")] == ["server.key"]
    before = (secrets / "servers.env").read_text()
    script = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(secrets)]
    again = subprocess.run(script, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists: remove it first" in again.stderr
    assert (secrets / "servers.env").read_text() == before
    assert list(secrets.parent.iterdir()) == [secrets], "nothing is left behind"


class Containers:
    """Services of compose.yaml as processes: each has a folder in which its secrets and configuration files lie as they
    would in its container."""

    def __init__(self, folder: Path, secrets: Path, ports: dict[str, int], stack: ExitStack) -> None:
        self.secrets = secrets
        self.ports = ports
        self._composed = composition(secrets)
        self.folder = folder
        self._stack = stack
        self._inner = dict(zip(SERVERS, zip(free_ports(3), free_ports(3), strict=True), strict=True))
        """Of each server: the ports for other servers, and for the health check."""
        self._servers: dict[str, ServerProcess] = {}

    def _root(self, name: str, service: dict[str, Any]) -> Path:
        root = self.folder / name
        for kind, at in (("secrets", "/run/secrets"), ("configs", "")):
            for item in service.get(kind, ()):
                item = {"source": item} if isinstance(item, str) else item
                target = root / item.get("target", f"{at}/{item['source']}").lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text((ROOT / self._composed[kind][item["source"]]["file"]).read_text())
        return root

    def serve(self, name: str, environment: pytest.MonkeyPatch) -> None:
        """Start one of the servers, which finds its passwords in our environment."""
        service = self._composed["services"][name]
        root = self._root(name, service)
        for file in service["env_file"]:
            for line in Path(file).read_text().splitlines():
                environment.setenv(*line.split("=", 1))
        config = root / "etc/nats/gangline.conf"
        text = config.read_text().replace('"/run/', f'"{root}/run/')
        text = text.replace("127.0.0.1:8222", f"127.0.0.1:{self._inner[name][1]}")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self._inner[name][0]}")
        for other, (port, _) in self._inner.items():
            text = text.replace(f"nats://{other}:6222", f"nats://127.0.0.1:{port}")
        config.write_text(text)
        arguments = [str(argument).replace("=/", f"={root}/") for argument in service["command"]]
        here = ["--addr=127.0.0.1", f"--port={self.ports[name]}"]
        process = ServerProcess([str(find_server()), *arguments, *here], on_line=lambda _: None, on_end=lambda: None)
        process.start()
        self._stack.callback(process.stop, 5.0)
        self._servers[name] = process

    def route_port(self, name: str) -> int:
        return self._inner[name][0]

    def log(self, name: str) -> str:
        return self._servers[name].log_tail(200)

    async def healthy(self, name: str) -> None:
        """Wait for what the health check of compose.yaml asks."""
        asked = self._composed["services"][name]["healthcheck"]["test"][-1]
        url = asked.replace(":8222", f":{self._inner[name][1]}")

        def ask() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        await until(lambda: asyncio.to_thread(ask), lambda: f"{name} is healthy:\n{self.log(name)}")

    def started_by(self, name: str, number: int = 1) -> tuple[list[str], dict[str, str], Path]:
        """Command line, environment and folder of one of a service's containers."""
        service = self._composed["services"][name]
        root = self._root(f"{name}-{number}", service)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("NATS_", "GANGLINE_", "OTEL_"))}
        environment = {
            key: value.replace("/run/", f"{root}/run/", 1) if value.startswith("/") else value
            for key, value in service["environment"].items()
        }
        for server, port in self.ports.items():
            environment["NATS_URL"] = environment["NATS_URL"].replace(f"{server}:4222", f"127.0.0.1:{port}")
        # A container has a host name of its own.
        environment["GANGLINE_NODE"] = f"{name}-{number}"
        volume = next((volume for volume in service.get("volumes", ()) if volume.endswith(":/app:ro")), None)
        folder = ROOT / volume.partition(":")[0] if volume else root
        return service.get("command", []), {**clean, **environment}, folder

    def replicas(self, name: str) -> int:
        replicas: int = self._composed["services"][name].get("deploy", {}).get("replicas", 1)
        return replicas

    def user(self, name: str) -> Identity:
        return Identity.of(self.secrets, name)


@pytest.fixture
def containers(tmp_path: Path, secrets: Path, ports: dict[str, int]) -> Iterator[Containers]:
    with ExitStack() as stack:
        yield Containers(tmp_path, secrets, ports, stack)


@pytest.mark.server
async def test_a_server_lets_in_its_users_over_tls_and_nobody_else(containers, monkeypatch):
    containers.serve("nats-1", monkeypatch)
    port, producer = containers.ports["nats-1"], containers.user("producer")

    async def answers() -> str:
        with pytest.raises(NoAnswer) as caught:
            await request(port, producer, CALL)
        return str(caught.value)

    # Let in: nobody serves yet.
    await until(lambda: _says(answers, "no responders"))
    refused = {
        "Permissions Violation": [
            (producer, "$JS.API.STREAM.DELETE.GANGLINE_TASKS"),
            (producer, "gangline.worker.a.b.drain"),
        ],
        "Authorization Violation": [
            (replace(producer, user="", password=""), CALL),
            (replace(producer, password="guessed"), CALL),
            (replace(producer, password=containers.user("worker").password), CALL),
        ],
        "NoAnswer|TLS|IncompleteReadError": [(replace(producer, trusted=None), CALL)],
        "certificate verify failed": [(replace(producer, trusted=ssl.create_default_context()), CALL)],
    }
    for reason, attempts in refused.items():
        for identity, subject in attempts:
            with pytest.raises(NoAnswer, match=reason):
                await request(port, identity, subject)


@pytest.mark.server
async def test_only_who_has_the_servers_certificate_joins_the_cluster(containers, monkeypatch):
    containers.serve("nats-1", monkeypatch)
    # Later than "Server is ready", which is about clients.
    await until(lambda: "Listening for route connections" in containers.log("nats-1"), lambda: containers.log("nats-1"))
    stranger = ssl.create_default_context(cafile=containers.secrets / "ca.pem")
    assert "SSL" in await greeting(containers.route_port("nats-1"), stranger)
    stranger.load_cert_chain(containers.secrets / "server.pem", containers.secrets / "server.key")
    assert (await greeting(containers.route_port("nats-1"), stranger)).startswith("INFO ")


async def _says(ask, text: str) -> bool:
    return text in await ask()


@pytest.mark.server
@pytest.mark.processes
@pytest.mark.long  # tests/roles has each role's flows, the tests above have the files
async def test_the_whole_system_works_with_the_permissions_of_each_service(containers, forks: ForkServer, monkeypatch):
    for name in SERVERS:
        containers.serve(name, monkeypatch)
    for name in SERVERS:
        await containers.healthy(name)
    running = []
    try:
        for name in ("gateway", "coordinator", "dispatcher", "worker"):
            for number in range(1, containers.replicas(name) + 1):
                command, environment, folder = containers.started_by(name, number)
                environment["GANGLINE_HEALTH_PORT"] = str(free_ports(1)[0])  # they share this machine's
                log = containers.folder / f"{name}-{number}.log"
                with log.open("w") as output:
                    process = forks.start(
                        ["-m", "gangline.cli", *command],
                        environment=environment,
                        cwd=folder,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                running.append(process)
                await until(lambda environment=environment: _healthy(forks, environment), log.read_text, pause_s=0.5)
        await _everything_is_done(containers, forks)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    refused = [line for name in SERVERS for line in containers.log(name).splitlines() if "iolation" in line]
    assert refused == []


async def _healthy(forks: ForkServer, environment: dict[str, str]) -> bool:
    done = await asyncio.to_thread(forks.run, ["-m", "gangline.cli", "health"], environment=environment)
    return done.returncode == 0


async def _everything_is_done(containers: Containers, forks: ForkServer) -> None:
    producer, router = containers.user("producer"), containers.user("router")

    async def gangline(*arguments: str) -> str:
        _, environment, folder = containers.started_by("cli")
        what = ["-m", "gangline.cli", *arguments]
        done = await asyncio.to_thread(forks.run, what, environment=environment, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = json.loads(await gangline("workers", "--json"))
    assert [(row["pool"], row["slots"]) for row in rows] == [("words", 4), ("words", 4)]
    for port in containers.ports.values():
        assert (await request(port, producer, CALL, BODY, timeout_s=30)).body == b"6"
    port = containers.ports["nats-1"]
    asked = json.dumps({"pool": "words", "size": 4, "strategy": "spread", "ttl_s": 5}).encode()
    gang = (await request(port, router, "gangline.gang.acquire", asked, timeout_s=30)).json()
    assert isinstance(gang, dict)
    assert (gang["state"], len(gang["seats"])) == ("formed", 4)
    owned = json.dumps({"id": gang["id"], "owner_token": gang["owner_token"]}).encode()
    released = (await request(port, router, "gangline.gang.release", owned, timeout_s=30)).json()
    assert isinstance(released, dict)
    assert released["state"] == "ended"
    stored = (await request(port, producer, "gangline.task.words.count", b'{"text": "a b c"}', timeout_s=30)).json()
    assert isinstance(stored, dict)
    assert (await gangline("result", str(stored["seq"]), "--timeout", "30s")).strip() == "3"
    stream = "$JS.API.STREAM.INFO.KV_GANGLINE_LEDGER"
    ledger = (await request(port, containers.user("operator"), stream, timeout_s=30)).json()
    assert isinstance(ledger, dict)
    assert (ledger["config"]["num_replicas"], ledger["config"]["storage"]) == (3, "file")
