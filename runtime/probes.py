"""Answers probes over HTTP: does the event loop turn, is the process ready, and what do its metrics say.

It answers from a thread of its own, so a blocked event loop is reported at once instead of letting the probe time out.

============  ==========================================================================================
`/livez`      200 if the event loop has turned within LIVE_S, else 503
`/readyz`     200 if it is ready, else 503 and the reasons, one a line
`/metrics`    Prometheus's text format; 501 if the exporter is not installed
============  ==========================================================================================
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ..schemas.errors.base import InvalidSettings

LIVE_S: Final = 2.0
TURN_S: Final = 0.25
_READ_S: Final = 5.0
"""How long a client may take to send its request."""
_TEXT: Final = "text/plain; charset=utf-8"
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def ask_probe(port: int, path: str, *, timeout_s: float, most: int | None = None) -> tuple[int, str]:
    """The status and the text that a process on this machine answers; of a longer text, the first `most` bytes.

    Raises:
        OSError, http.client.HTTPException: nothing answers there in time, or not in HTTP.
    """
    link = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read(most).decode("utf-8", "replace")
    finally:
        link.close()


class ProbeServer:
    """Serves from `start` to `stop`. Both are called on the event loop that is watched."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], Sequence[str]],
        metrics: Callable[[], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            port: 0: a free one; see `port`.
            ready: why it is not ready; nothing if it is. Called from other threads, so it must only read.
            metrics: the text of `/metrics`; called from other threads. None: 501.
        """
        self.host = host
        self.port = port
        self._ready = ready
        self._metrics = metrics
        self._clock = clock
        self._turned_at = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """
        Raises:
            InvalidSettings: the address cannot be used.
        """
        try:
            server = _Server((self.host, self.port), _Handler)
        except (OSError, OverflowError) as error:
            raise InvalidSettings(
                f"probes cannot be answered on {self.host}:{self.port} ({error}): give another --health-port"
            ) from error
        server.probes = self
        self._server = server
        self.port = server.server_address[1]
        self._turn()
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="gangline probes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        self._server = self._thread = None

    def __repr__(self) -> str:
        return f"<ProbeServer {self.host}:{self.port}>"

    def _turn(self) -> None:
        self._turned_at = self._clock()
        self._timer = asyncio.get_running_loop().call_later(TURN_S, self._turn)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body. Called from other threads."""
        match path.partition("?")[0]:
            case "/livez":
                silent_s = self._clock() - self._turned_at
                if silent_s > LIVE_S:
                    return 503, _TEXT, f"the event loop has not turned for {silent_s:.1f} s\n".encode()
                return 200, _TEXT, b"ok\n"
            case "/readyz":
                reasons = list(self._ready())
                return (
                    (503, _TEXT, "".join(f"{each}\n" for each in reasons).encode())
                    if reasons
                    else (200, _TEXT, b"ok\n")
                )
            case "/metrics" if self._metrics is not None:
                return 200, _PROMETHEUS, self._metrics()
            case "/metrics":
                return 501, _TEXT, b"install opentelemetry-exporter-prometheus\n"
            case _:
                return 404, _TEXT, b"there are /livez, /readyz and /metrics\n"


_MOST_CLIENTS: Final = 16
"""So many are answered at a time; more are disconnected."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    probes: ProbeServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clients = threading.BoundedSemaphore(_MOST_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._clients.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._clients.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    def takes(self, host: str) -> bool:
        """Whether it answers requests with this header. On a loopback address, other names than those of this machine
        are those of a web page that somebody here has open (DNS rebinding)."""
        if not str(self.server_address[0]).startswith("127."):
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name in ("", "localhost", "[::1]") or name.replace(".", "").isdecimal()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _READ_S
    server_version = "gangline"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        if self.server.takes(self.headers.get("Host", "")):
            status, kind, body = self.server.probes.answer(self.path)
        else:
            status, kind, body = 421, _TEXT, b"ask 127.0.0.1 or localhost\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds."""
