"""What all processes of the demo export, on one port for Prometheus; and waiting until it was read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import urlopen

from ...runtime.probes import ProbeServer
from ...schemas.errors.base import InvalidSettings
from ...telemetry.setup import scrape
from ...testing.kit.processes import holds_within

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from .stage import Stage

OURS: Final = "demo"
"""The process that calls, submits and reads the answers."""
READ_S: Final = 30.0
"""A longer wait for a reader is given up: nobody reads."""
_ANSWER_S: Final = 5.0
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")


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

    def __init__(self, stage: Stage, own: Callable[[], bytes]) -> None:
        """
        Args:
            own: what this process exports.
        """
        self._stage = stage
        self._own = own
        self._read = 0
        """How often it has been read."""
        self._unread = False
        """Nobody has read it when the demo waited."""

    def text(self) -> bytes:
        """Of all processes that answer, each with a label `process`. Called from other threads."""
        found = [(OURS, self._own().decode())]
        for name, process in list(self._stage.running.items()):
            address = _ADDRESS.search(process.log_text())
            if address is not None:
                with contextlib.suppress(URLError, OSError), urlopen(f"{address[0]}/metrics", timeout=_ANSWER_S) as one:
                    found.append((name, one.read().decode()))
        self._read += 1
        return merged(found).encode()

    async def read(self) -> None:
        """Wait until it was read twice from now on, so that Prometheus knows what is now; a read that goes on now does
        not count. Gives up if nobody reads."""
        enough = self._read + 3
        if not self._unread and not await holds_within(READ_S, lambda: self._read >= enough, pause_s=0.02):
            self._unread = True
            self._stage.screen.note("Nobody reads the metrics: the demo goes on without.")


@asynccontextmanager
async def exporting(stage: Stage, port: int, own: Callable[[], bytes]) -> AsyncIterator[None]:
    """Export during the block; 0: on a free port. The processes that start meanwhile take part.

    Raises:
        InvalidSettings: the port cannot be used.
    """
    stage.environment = {**stage.environment, "GANGLINE_HEALTH_PORT": "0"}
    metrics = DemoMetrics(stage, own)
    server = ProbeServer("127.0.0.1", port, ready=tuple, metrics=metrics.text)
    server.start()
    stage.metrics = metrics
    stage.screen.note(f"Metrics of all processes: http://127.0.0.1:{server.port}/metrics")
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
