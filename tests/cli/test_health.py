"""health: real processes on a real server."""

from __future__ import annotations

import signal

import pytest

pytestmark = [pytest.mark.server, pytest.mark.processes]


def test_a_worker_of_this_node_is_healthy_and_that_of_another_does_not_count(commands):
    worker = commands.start("worker", "words:pool", "--id", "w1", "--node", "n1")
    worker.await_output(r"worker\.started")
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
    gateway = commands.start("gateway", "--node", "n3")
    gateway.await_output(r"gateway\.started")
    done = commands.run("health", "--node", "n3")
    assert (done.returncode, done.stdout) == (0, "gangline-gateway\n")


def test_without_a_server_the_probe_fails(commands):
    done = commands.run("health", "--server", "nats://127.0.0.1:1")
    assert done.returncode == 3
