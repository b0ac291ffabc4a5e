"""health: real processes on a real server."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.rpc.micro_service import MicroService, ServiceDescription
from gangline.bus.settings.connection import ConnectionSettings
from gangline.runtime.probes import ask_probe

from ..waiting import PATIENCE_S
from .conftest import until

pytestmark = [pytest.mark.server, pytest.mark.processes]


def test_a_worker_of_this_node_is_healthy_and_that_of_another_does_not_count(commands):
    commands.started("worker", "words:pool", "--id", "w1", "--node", "n1")
    done = commands.run("health", "--node", "n1")
    assert (done.returncode, done.stdout) == (0, "gangline-worker words w1\n")
    done = commands.run("health", "--node", "n2", "--timeout", "0.3")
    assert done.returncode == 3
    assert "nothing on node 'n2' answered" in done.stderr


def test_a_frozen_worker_that_is_named_is_not_healthy_though_others_of_its_node_are(commands):
    workers = {name: commands.start("worker", "words:pool", "--id", name, "--node", "n1") for name in ("w1", "w2")}
    for worker in workers.values():
        worker.await_output(r"worker\.started")
    done = commands.run("health", "--worker", "words.w1")
    assert (done.returncode, done.stdout) == (0, "gangline-worker words w1\n")
    workers["w1"].signal(signal.SIGSTOP)
    try:
        done = commands.run("health", "--worker", "words.w1", "--timeout", "0.3")
        assert (done.returncode, "worker words.w1 did not answer" in done.stderr) == (3, True)
        assert commands.run("health", "--node", "n1").returncode == 0
    finally:
        workers["w1"].signal(signal.SIGCONT)
    assert commands.run("health", "--worker", "w1").returncode == 2


def test_a_gateway_is_healthy_on_the_node_that_it_names_or_else_on_its_host(commands):
    commands.started("gateway", "--node", "n3")
    done = commands.run("health", "--node", "n3")
    assert (done.returncode, done.stdout) == (0, "gangline-gateway\n")


def answer(port: int, path: str) -> tuple[int, str]:
    return ask_probe(port, path, timeout_s=30)


def port_of(process) -> int:
    return int(process.await_output(r"probes +http://127\.0\.0\.1:\d+").rpartition(":")[2])


@pytest.mark.parametrize(
    ("arguments", "started", "metric"),
    [
        (("worker", "words:pool", "--id", "w1"), r"worker\.started", "gangline_worker_slots_total{"),
        (("coordinator",), r"coordinator\.leads", "gangline_coordinator_terms_total"),
        (("dispatcher",), r"dispatcher\.started", "python_info"),
        (("gateway",), r"gateway\.started", "python_info"),
    ],
)
def test_a_process_with_a_health_port_answers_probes_and_has_its_metrics(commands, arguments, started, metric):
    process = commands.start(*arguments, "--health-port", "0")
    port = port_of(process)
    process.await_output(started)
    until(lambda: answer(port, "/readyz")[0] == 200, "it is ready")
    assert answer(port, "/livez") == (200, "ok\n")
    status, text = answer(port, "/metrics")
    assert status == 200 and metric in text
    done = commands.run("health", "--port", str(port))
    assert (done.returncode, done.stdout) == (0, "ready\n")


def test_a_worker_that_drains_is_live_and_not_ready(commands):
    worker = commands.start("worker", "words:pool", "--id", "w1", "--health-port", "0", "--drain-grace", "60")
    port = port_of(worker)
    worker.await_output(r"worker\.started")
    commands.started("gateway")
    commands.start("call", "words.hold")
    commands.await_file("began")
    assert commands.run("drain", "words.w1").returncode == 0
    assert answer(port, "/livez")[0] == 200
    status, why = answer(port, "/readyz")
    assert (status, "words.w1 is draining" in why) == (503, True)
    done = commands.run("health", "--port", str(port))
    assert done.returncode == 3 and "is draining" in done.stderr


def test_a_port_that_nothing_answers_is_not_ready(commands):
    done = commands.run("health", "--port", "1")
    assert done.returncode == 3 and "--health-port" in done.stderr


PROBE = """
import sys
from gangline.cli import main
try:
    main()
except SystemExit as done:
    print(done.code, file=sys.stderr)
print(*sorted(sys.modules), sep="\\n")
"""


@pytest.mark.parametrize("arguments", [("--port", "{port}"), ("--port={port}",), ()])
def test_a_probe_imports_nothing_but_sockets(arguments):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        given = [each.format(port=port) for each in arguments]
        environment = {"GANGLINE_HEALTH_PORT": port, "PATH": ""}
        code = [sys.executable, "-c", PROBE, "health", *given]
        with subprocess.Popen(code, env=environment, stdout=-1, stderr=-1, text=True) as probe:
            link, _ = server.accept()
            with link:
                assert link.recv(1000).startswith(b"GET /readyz HTTP/1.0\r\n")
                link.sendall(b"HTTP/1.0 503 no\r\n\r\nnot \x1b[2J\nyet\n")
            out, err = probe.communicate(timeout=PATIENCE_S)
    assert err == "gangline: not ready: not ?[2J; yet\n3\n"
    heavy = {"click", "asyncio", "rich", "pydantic", "nats", "ssl", "http.client", "gangline.schemas.names", "json"}
    assert not heavy & set(out.split())


def test_a_process_is_found_by_its_id(commands):
    coordinator = commands.start("coordinator")
    id = coordinator.await_output(r"coordinator\.leads.*instance=\S+").rpartition("=")[2]
    done = commands.run("health", "--id", id)
    assert (done.returncode, done.stdout) == (0, "gangline-coordinator\n")
    done = commands.run("health", "--id", "nobody", "--timeout", "0.3")
    assert done.returncode == 3 and "no process with id 'nobody'" in done.stderr


def test_systemd_is_told_when_a_worker_is_ready_alive_and_stopping(commands, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(PATIENCE_S)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        worker = commands.start("worker", "words:pool", "--id", "w1", **told)
        heard: list[str] = []

        def hear(wanted: str) -> None:
            while wanted not in heard:
                heard.append(notify.recv(1000).decode())

        hear("READY=1")
        hear("WATCHDOG=1")
        worker.signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert worker.wait() == 0
    assert heard.index("STATUS=ready") < heard.index("STOPPING=1")


async def test_a_process_without_room_to_store_is_not_healthy_also_without_a_port(
    invoke, nats_url, namespace, monkeypatch
):
    bus = await connect(ConnectionSettings.from_url(nats_url), name="full")
    monkeypatch.setattr(bus, "impairments", lambda: ["no room in the stream GANGLINE_TASKS"])
    about = ServiceDescription(name="gangline-dispatcher", metadata={"namespace": namespace, "node": "here"})
    service = MicroService(bus, lambda: about)
    await service.start()
    where = ("--server", nats_url, "--namespace", namespace, "--node", "here", "--timeout", "500ms")
    done = await asyncio.to_thread(invoke, "health", *where)
    assert done.exit_code == 3
    assert "gangline-dispatcher is not ready: no room in the stream GANGLINE_TASKS" in done.output
    await bus.close()
