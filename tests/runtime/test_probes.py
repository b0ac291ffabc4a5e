"""Probes: live while the loop turns, ready while there is no reason against it, metrics in Prometheus's format."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gangline.runtime import probes
from gangline.runtime.probes import LIVE_S, ProbeServer
from gangline.schemas.errors.base import InvalidSettings

from ..waiting import until

pytestmark = pytest.mark.server  # on real time


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request(method, path)
        answer = link.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        link.close()


@contextmanager
def probing(ready: Callable[[], Iterable[str]] = list, **others: Any) -> Iterator[ProbeServer]:
    server = ProbeServer("127.0.0.1", 0, ready=ready, **others)
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def told(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    return await asyncio.to_thread(ask, server.port, path, method)


async def test_it_tells_of_life_readiness_and_metrics():
    reasons: list[str] = ["not connected to a nats-server", "worker images.w1 is starting"]
    with probing(ready=lambda: reasons, metrics=lambda: b"gangline_x 1\n") as server:
        assert server.port > 0
        assert await told(server, "/livez") == (200, "text/plain; charset=utf-8", "ok\n")
        status, _, body = await told(server, "/readyz")
        assert (status, body) == (503, "not connected to a nats-server\nworker images.w1 is starting\n")
        reasons.clear()
        assert (await told(server, "/readyz?verbose"))[0] == 200
        assert await told(server, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", "gangline_x 1\n")
        assert (await told(server, "/livez", "HEAD"))[::2] == (200, "")
        assert (await told(server, "/"))[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert (await told(server, "/readyz", method))[0] == 501
    server.stop()
    with pytest.raises(OSError):
        await told(server, "/livez")


async def test_a_loop_that_does_not_turn_is_reported_while_it_does_not():
    clock = Clock()
    with probing(clock=clock) as server:
        # This blocks the loop: only the server's own thread can answer.
        assert ask(server.port, "/livez")[0] == 200
        clock.now += LIVE_S + 5
        status, _, body = ask(server.port, "/livez")
        assert status == 503 and "not turned for 7.0 s" in body
        assert ask(server.port, "/readyz")[0] == 200
        turned = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, turned.set)
        await turned.wait()
        assert (await told(server, "/livez"))[0] == 200


async def test_without_the_exporter_metrics_say_what_to_install():
    with probing() as server:
        status, _, body = await told(server, "/metrics")
        assert status == 501 and "opentelemetry-exporter-prometheus" in body


async def test_a_port_that_is_taken_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidSettings, match="--health-port"):
            ProbeServer("127.0.0.1", taken.getsockname()[1], ready=list).start()


async def test_a_client_that_sends_rubbish_or_nothing_blocks_nobody():
    with probing() as server, socket.create_connection(("127.0.0.1", server.port)) as silent:
        with socket.create_connection(("127.0.0.1", server.port)) as rude:
            rude.sendall(b"\x00\xff rubbish\r\n\r\n")
            assert rude.recv(1000)
        assert (await told(server, "/livez"))[0] == 200
        silent.sendall(b"G")


async def test_clients_that_send_nothing_take_a_bounded_number_of_threads(monkeypatch):
    monkeypatch.setattr(probes._Handler, "timeout", 300.0)
    with probing() as server:
        threads = threading.active_count()
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        with pytest.raises((OSError, http.client.HTTPException)):
            await told(server, "/livez")
        assert threading.active_count() <= threads + 20
        for each in idle:
            each.close()
        await until(lambda: _answers(server), "they are gone")


async def _answers(server: ProbeServer) -> bool:
    try:
        return (await told(server, "/livez"))[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:4281", 200), ("localhost", 200), ("[::1]:4281", 200), ("evil.example:4281", 421), ("1.evil", 421)],
)
async def test_a_web_page_elsewhere_reads_nothing_by_a_name_that_leads_here(host, status):
    with probing() as server:

        def asked() -> int:
            link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            link.request("GET", "/metrics?", headers={"Host": host})
            return link.getresponse().status

        assert await asyncio.to_thread(asked) == (status if status != 200 else 501)
