"""What systemd is told, over its socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gangline.runtime.service_manager import ServiceManager


@pytest.fixture
def heard(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = tmp_path / "notify"
        listening.bind(str(path))
        listening.settimeout(30)
        yield str(path), lambda: listening.recv(1000).decode()


def test_it_is_told_in_its_words(heard):
    path, read = heard
    manager = ServiceManager({"NOTIFY_SOCKET": path})
    assert manager and manager.watchdog_s is None
    manager.ready()
    manager.alive()
    manager.status("not\nready")
    manager.stopping()
    assert [read() for _ in range(4)] == ["READY=1", "WATCHDOG=1", "STATUS=not ready", "STOPPING=1"]


def test_an_abstract_socket_is_found():
    name = f"gangline-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(30)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_it_names(environ, expected):
    assert ServiceManager({"NOTIFY_SOCKET": "/run/x", **environ}).watchdog_s == expected


def test_without_systemd_and_with_a_manager_that_is_gone_nothing_happens(tmp_path):
    assert not ServiceManager({})
    ServiceManager({}).ready()
    gone = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.ready()
    gone.alive()
