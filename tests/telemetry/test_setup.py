"""Exporters from the standard environment. Providers are global, so most of it runs in processes of its own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gangline.schemas.errors.base import InvalidSettings
from gangline.telemetry import setup

from ..processes import ForkServer

RUN = """
import sys, urllib.request
from gangline.telemetry.metrics.router_and_worker import RouterMetrics
from gangline.telemetry.setup import configure
from gangline.telemetry.tracing import tracer
metrics = RouterMetrics("n")
metrics.request("images", "images")
end = configure("gangline-test")
with tracer.span("work"):
    pass
print("enabled", tracer.enabled)
print("sdk", any(name.startswith("opentelemetry.sdk") for name in sys.modules))
for url in sys.argv[1:]:
    print(urllib.request.urlopen(url).read().decode())
end()
"""


@pytest.fixture
def run(forks: ForkServer) -> Callable[..., str]:
    """Runs `RUN` and gives what it printed."""

    def run(*args: str, **env: str) -> str:
        base = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
        done = forks.run(["-c", RUN, *args], environment={**base, **env})
        assert done.returncode == 0, done.stderr
        assert isinstance(done.stdout, str)
        return done.stdout

    return run


@pytest.fixture
def port() -> Iterator[int]:
    """A port that only a server with SO_REUSEADDR can bind: it is ours until the test ends, so that nobody else gets
    it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_nothing_is_set_up_and_the_sdk_is_not_even_imported_when_nothing_is_asked_for(run, env):
    out = run(**env)
    assert "enabled False" in out
    assert "sdk False" in out


def test_the_console_shows_spans_and_metrics_under_the_service_name(run):
    out = run(OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console")
    assert '"name": "work"' in out
    assert "gangline.router.requests" in out
    assert '"service.name": "gangline-test"' in out


def test_the_environments_service_name_wins(run):
    out = run(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert '"service.name": "mine"' in out
    out = run(OTEL_TRACES_EXPORTER="console", OTEL_RESOURCE_ATTRIBUTES="service.name=ours,team=a")
    assert '"service.name": "ours"' in out


def test_prometheus_scrapes_the_metrics(run, port):
    out = run(
        f"http://127.0.0.1:{port}/metrics",
        OTEL_METRICS_EXPORTER="prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(port),
    )
    assert 'gangline_router_requests_total{endpoint="images"' in out


def test_an_otlp_collector_gets_spans_and_metrics(run):
    got: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            got.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        out = run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "enabled True" in out
    assert set(got) == {"/v1/traces", "/v1/metrics"}


def test_an_unknown_exporter_is_refused_with_those_that_are_known():
    with pytest.raises(InvalidSettings, match=r"OTEL_TRACES_EXPORTER=zipkin is not supported: use otlp, console, none"):
        setup.configure("x", environ={"OTEL_TRACES_EXPORTER": "zipkin"})


@pytest.mark.parametrize(
    ("env", "package"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "opentelemetry-exporter-otlp-proto-http"),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "opentelemetry-exporter-otlp-proto-grpc",
        ),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, "opentelemetry-exporter-prometheus"),
    ],
)
def test_a_missing_exporter_is_named_with_its_package(monkeypatch, env, package):
    real = setup.importlib.import_module

    def without_exporters(name: str) -> object:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(f"No module named {name!r}")
        return real(name)

    monkeypatch.setattr(setup.importlib, "import_module", without_exporters)
    with pytest.raises(InvalidSettings, match=f"pip install {package}"):
        setup.configure("x", environ=env)


def test_an_unknown_otlp_protocol_is_refused():
    with pytest.raises(InvalidSettings, match="http/json"):
        setup.configure("x", environ={"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_a_prometheus_port_in_use_is_an_error_that_says_what_to_set():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = {
            "OTEL_METRICS_EXPORTER": "prometheus",
            "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(taken.getsockname()[1]),
        }
        with pytest.raises(InvalidSettings, match="set OTEL_EXPORTER_PROMETHEUS_PORT to a free port"):
            setup.configure("x", environ=env)


@pytest.mark.parametrize("port", ["many", "70000"])
def test_a_prometheus_port_that_is_none_is_refused(port):
    env = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port}
    with pytest.raises(InvalidSettings, match="OTEL_EXPORTER_PROMETHEUS_PORT"):
        setup.configure("x", environ=env)
