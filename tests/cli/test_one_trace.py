"""One call is one trace, from the caller's process to the worker's, at a real OTLP collector."""

from __future__ import annotations

import gzip
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

pytestmark = [pytest.mark.server, pytest.mark.processes]


@pytest.fixture
def collector():
    """Spans by the name of the service that sent them."""
    spans: list[tuple[str, Span]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {item.key: item.value.string_value for item in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        spans.extend((names["service.name"], span) for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.spans = spans  # type: ignore[attr-defined]
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ancestors(span: Span, spans: list[Span]) -> list[bytes]:
    """Span ids from its parent upwards."""
    by_id = {other.span_id: other for other in spans}
    found = []
    while span.parent_span_id:
        found.append(span.parent_span_id)
        span = by_id[span.parent_span_id]
    return found


def test_caller_and_worker_share_a_trace_and_a_failure_is_marked_on_both(commands, collector):
    commands.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    worker = commands.started("worker", "words:pool", "--id", "w1")
    assert commands.run("call", "words.count", '["a b"]').stdout == "2\n"
    assert commands.run("call", "words.fail", '["why"]').returncode == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    spans = collector.spans
    ours = {span.name: span for service, span in spans if service == "gangline-call"}
    theirs = {span.name: span for service, span in spans if service == "gangline-worker"}
    for task in ("words.count", "words.fail"):
        (call,) = [span for name, span in ours.items() if name.endswith(task)]
        (run,) = [span for name, span in theirs.items() if name.endswith(task)]
        assert run.trace_id == call.trace_id
        assert call.span_id in ancestors(run, [span for _, span in spans])
        assert (call.kind, run.kind) == (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER)
        failed = task == "words.fail"
        assert (call.status.code == 2) is failed and (run.status.code == 2) is failed
