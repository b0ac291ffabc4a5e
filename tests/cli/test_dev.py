"""`gangline dev` and `gangline gateway`: everything in one terminal, and plain requests answered."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from urllib.parse import urlsplit

import pytest

from gangline.bus.embedded.server import EmbeddedServer
from gangline.schemas.names import Names

from .conftest import alive, request, wait_gone

pytestmark = [pytest.mark.server, pytest.mark.processes]


def call(url, namespace, target, body):
    return request(url, Names(namespace).call(*target.split(".")), body)


@pytest.fixture
def dev(commands):
    """`gangline dev words:pool` on a server of its own."""
    for name in ("NATS_URL", "GANGLINE_NAMESPACE"):
        del commands.environment[name]
    running = commands.start("dev", "words:pool", "--port", "0")
    running.await_output(r"^watching ")
    running.url = re.search(r"^server +(\S+)", running.output, re.MULTILINE).group(1)
    commands.environment["NATS_URL"] = running.url
    return running


def server_id(url: str) -> str | None:
    """Of the server that listens there; None: there is none."""
    address = urlsplit(url)
    try:
        with (
            socket.create_connection((address.hostname, address.port)) as connection,
            connection.makefile("rb") as lines,
        ):
            name: str = json.loads(lines.readline().removeprefix(b"INFO "))["server_id"]
            return name
    except ConnectionRefusedError:
        return None


async def test_dev_serves_calls_and_plain_requests_and_prints_lines_to_paste(commands, dev):
    line = dev.await_output(r"^try +gangline (call .* words\.shout .*)$")
    assert 'words.shout \'{"text": "text"}\'' in line
    assert f'nats -s {dev.url} req gangline.call.words.shout \'{{"text": "text"}}\'' in dev.output
    assert "--stream words.each" in dev.output
    assert commands.run("call", "words.shout", '{"text": "a"}').stdout == "A\n"
    assert commands.run("call", "--gateway", "words.shout", '["a"]').stdout == "A\n"
    assert commands.run("call", "--gateway", "--stream", "words.each", '["a b"]').stdout == '"a"\n"b"\n'
    answer = await call(dev.url, "gangline", "words.count", b'{"text": "a b"}')
    assert answer.data == b"2"


def test_a_change_is_taken_over_without_a_gap_and_a_broken_one_is_not(commands, dev):
    source = commands.folder / "words.py"
    good = source.read_text()
    source.write_text(good.replace("text.upper()", "text.upper() + '!'"))
    dev.await_output(r"the new worker is serving")
    assert commands.run("call", "words.shout", '["a"]').stdout == "A!\n"
    dev.await_output(r"worker\.left .* worker=dev-1")
    source.write_text(good + "\ndef f(:\n")
    dev.await_output(r"the previous version keeps serving")
    assert "SyntaxError" in dev.output
    assert commands.run("call", "words.shout", '["a"]').stdout == "A!\n"
    source.write_text(good)
    dev.await_output(r"the new worker is serving", times=2)
    assert commands.run("call", "words.shout", '["a"]').stdout == "A\n"


def test_a_signal_ends_worker_gateway_and_server(commands, dev):
    (row,) = commands.json("workers")
    server = server_id(dev.url)
    dev.signal(signal.SIGINT)
    assert dev.wait() == 0
    assert not alive(row["pid"])
    assert "worker.left" in dev.output and "gateway.stopped" in dev.output
    assert server_id(dev.url) != server, "the server is gone, too; another one may have its port by now"


def test_a_killed_dev_leaves_no_worker_behind(commands, dev):
    (row,) = commands.json("workers")
    dev.signal(signal.SIGKILL)
    dev.process.wait()
    wait_gone(row["pid"])


def test_dev_on_a_pool_that_does_not_load_waits_for_a_change(commands):
    del commands.environment["NATS_URL"]
    source = commands.folder / "words.py"
    good = source.read_text()
    source.write_text(good + "\nimport not_installed\n")
    running = commands.start("dev", "words:pool", "--port", "0")
    running.await_output(r"words imports 'not_installed', which is not installed here")
    running.await_output(r"waiting for the next file change")
    running.await_output(r"^watching")
    source.write_text(good)
    running.await_output(r"worker\.started")


def test_dev_on_a_module_that_is_not_there_says_so_and_ends(commands):
    done = commands.run("dev", "nosuch:pool", "--port", "0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no module 'nosuch' in" in done.stderr


def test_the_old_version_serves_until_the_lifespans_of_the_new_one_have_begun(commands, dev):
    source = commands.folder / "words.py"
    good = source.read_text()
    lifespan = """
import asyncio, contextlib, os

@pool.lifespan
@contextlib.asynccontextmanager
async def loads():
    print("loads", flush=True)
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    if open("go").read():
        raise RuntimeError("weights missing")
    yield
"""
    source.write_text(good.replace("text.upper()", "text.upper() + '!'") + lifespan)
    dev.await_output(r"^loads")
    assert commands.run("call", "words.shout", '["a"]').stdout == "A\n"
    (commands.folder / "fail").write_text("fail")
    (commands.folder / "fail").rename(commands.folder / "go")  # at once: it is read as soon as it is there
    dev.await_output(r"the previous version keeps serving")
    assert commands.run("call", "words.shout", '["a"]').stdout == "A\n"


def test_dev_on_a_port_that_is_taken_says_so_in_one_line(commands, dev):
    del commands.environment["NATS_URL"]
    port = dev.url.rpartition(":")[2]
    done = commands.run("dev", "words:pool", "--port", port)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"gangline: port {port} is in use: give another one, or 0 for a free one")


def test_dev_keeps_its_data_in_a_folder_when_asked(commands):
    del commands.environment["NATS_URL"]
    running = commands.start("dev", "words:pool", "--port", "0", "--data", "kept", "--no-reload")
    running.await_output(r"worker\.started")
    assert "data in kept" in running.output
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    assert (commands.folder / "kept" / "jetstream").is_dir()


def test_a_server_that_ends_is_started_again_and_serves_as_before(commands, dev):
    dev.await_output(r"worker\.started")
    port = dev.url.rpartition(":")[2]
    listening = subprocess.run(["pgrep", "-P", str(dev.process.pid), "nats-server"], capture_output=True, text=True)
    os.kill(int(listening.stdout), signal.SIGKILL)
    dev.await_output(rf"^server +has exited: restarting it on port {port}$")
    dev.await_output(r"bus\.reconnected", times=2)
    assert commands.run("call", "words.shout", '{"text": "a"}').stdout == "A\n"


def test_a_worker_that_ends_by_itself_is_told_of_and_the_next_change_starts_another(commands, dev):
    dev.await_output(r"worker\.started")
    os.kill(commands.json("workers")[0]["pid"], signal.SIGKILL)
    dev.await_output(r"^worker +was killed by SIGKILL: waiting for the next file change$")
    source = commands.folder / "words.py"
    source.write_text(source.read_text() + "\n")
    dev.await_output(r"worker\.started", times=2)
    assert commands.run("call", "words.shout", '{"text": "a"}').stdout == "A\n"


def test_dev_uses_a_server_that_is_named(commands, nats_url, namespace):
    running = commands.start("dev", "words:pool", "-s", nats_url, "--no-reload")
    running.await_output(r"worker\.started")
    assert "nats-server" not in running.output
    assert [row["worker"] for row in commands.json("workers")] == ["dev-1"]


@pytest.mark.parametrize("option", [("--port", "0"), ("--data", "here")])
def test_dev_with_a_server_that_is_named_refuses_options_of_its_own_server(commands, option):
    refused = commands.run("dev", "words:pool", "-s", "nats://127.0.0.1:1", *option)
    assert refused.returncode == 2
    assert f"{option[0]} is for the server that this starts, and --server uses another one" in refused.stderr


def test_a_gateway_does_not_start_on_a_server_without_jetstream(commands):
    with EmbeddedServer(jetstream=False) as server:
        done = commands.run("gateway", "--server", server.url)
    assert (done.returncode, "has no JetStream" in done.stderr) == (3, True)


def test_it_grants_gangs(dev, commands):
    dev.await_output(r"coordinator\.leads")
    gang = commands.json("gang", "acquire", "words", "3", "--ttl", "30")
    assert (gang["state"], {seat["worker"] for seat in gang["seats"]}) == ("formed", {"dev-1"})
    assert commands.run("gang", "rm", gang["id"], "--owner-token", gang["owner_token"]).returncode == 0
