"""What all processes of the demo export, on one port for Prometheus; and waiting until it was read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Final

from ...runtime.probes import ProbeServer, ask_probe
from ...schemas.errors.base import InvalidSettings
from ...telemetry.setup import scrape
from ...testing.kit.processes import ChildProcess, holds_within
from .screen import Screen

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

OURS: Final = "demo"
"""The process that calls, submits and reads the answers."""
READ_S: Final = 30.0
"""A longer wait for a reader is given up: nobody reads."""
_ANSWER_S: Final = 5.0
_PORT: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


def own_metrics() -> tuple[MetricReader, Callable[[], bytes]]:
    """A reader for this process's meter provider, and a function for its text.

    Raises:
        InvalidSettings: the exporter is not installed.
    """
    text = scrape()
    if text is None:
        raise InvalidSettings("--metrics-port needs a package: pip install opentelemetry-exporter-prometheus")
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    return PrometheusMetricReader(), text


class DemoMetrics:
    """Reads what each process exports whenever it is read itself."""

    def __init__(self, screen: Screen, running: Mapping[str, ChildProcess], own: Callable[[], bytes]) -> None:
        """
        Args:
            running: the other processes, by name, at any time.
            own: what this process exports.
        """
        self._screen = screen
        self._running = running
        self._own = own
        self._read = 0
        """How often it has been read with what `read` waits for."""
        self._wanted = ""
        self._unread = False
        """Nobody has read it when the demo waited."""

    def text(self) -> bytes:
        """Of all processes that answer, each with a label `process`. Called from other threads."""
        found = [(OURS, self._own().decode())]
        for name, process in list(self._running.items()):
            port = _PORT.search(process.log_text())
            if port is not None:
                with contextlib.suppress(OSError, HTTPException):
                    found.append((name, ask_probe(int(port[1]), "/metrics", timeout_s=_ANSWER_S)[1]))
        text = merged(found)
        self._read += self._wanted in text
        return text.encode()

    async def read(self, metric: str = "") -> None:
        """Wait until it was read twice from now on, so that Prometheus knows what is now; a read that goes on now does
        not count. Gives up if nobody reads.

        Args:
            metric: only reads count that have it: some are measured once a second.
        """
        self._wanted, enough = metric, self._read + 3
        if not self._unread and not await holds_within(READ_S, lambda: self._read >= enough, pause_s=0.02):
            self._unread = True
            self._screen.note("Nobody reads the metrics: the demo goes on without.")


@asynccontextmanager
async def exporting(metrics: DemoMetrics, screen: Screen, port: int) -> AsyncIterator[None]:
    """Export during the block; 0: on a free port.

    Raises:
        InvalidSettings: the port cannot be used.
    """
    server = ProbeServer("127.0.0.1", port, ready=tuple, metrics=metrics.text)
    server.start()
    screen.note(f"Metrics of all processes: http://127.0.0.1:{server.port}/metrics")
    try:
        yield
    finally:
        server.stop()


def merged(texts: Iterable[tuple[str, str]]) -> str:
    """Prometheus's texts of several processes as one: the samples of a metric stand together, and say by `process`
    whose they are."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for process, text in texts:
        metric = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, metric, *_ = line.split(" ", 3)
                heads.setdefault(metric, {}).setdefault(kind, line)
            elif line:
                name, bracket, rest = re.split(r"([{ ])", line, maxsplit=1)
                labelled = f'{name}{{process="{process}"' + (f",{rest}" if bracket == "{" else f"}} {rest}")
                samples.setdefault(metric, []).append(labelled)
    lines = [line for metric, head in heads.items() for line in (*head.values(), *samples.get(metric, ()))]
    return "".join(f"{line}\n" for line in lines)
