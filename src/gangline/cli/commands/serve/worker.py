"""`gangline worker`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import duration_option, given, labels_option
from ...console.options import ConnectionOptions, connection_options, logging_options

if TYPE_CHECKING:
    from ....worker.pool.pool import Pool


HINTS = 6
"""Example calls are printed for this many tasks at most, so that they do not fill the screen."""


@click.command(short_help="Serve a pool's tasks with this process's slots.")
@click.argument("target", metavar="MODULE:POOL")
@click.option("--slots", type=int, metavar="N", help="Initial number of slots. [the pool's own]")
@click.option("--id", metavar="NAME", help="Name within the pool. [a new one at each start]")
@click.option("--node", metavar="NAME", help="Machine, for routing (GANGLINE_NODE). [host name]")
@click.option("--zone", metavar="NAME", help="Failure domain, for routing (GANGLINE_ZONE).")
@click.option("--address", metavar="HOST:PORT", help="Where others can reach this process; shown to callers.")
@labels_option("K=V", "A label that callers can select by; repeatable.")
@duration_option(
    "--drain-grace", "drain_grace_s", text="Cancel tasks still running this long after the drain began. [30s]"
)
@duration_option(
    "--freeze-after", "freeze_after_s", text="Invalidate all leases if the process stalls for longer than this. [1s]"
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append every change of slots to this file, as JSON.",
)
@click.option("--no-tracebacks", is_flag=True, help="Do not send tracebacks of failed tasks to callers.")
@click.option("--hints", is_flag=True, hidden=True, help="Print lines that call the tasks.")
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    target: str,
    labels: dict[str, str],
    journal: Path | None,
    no_tracebacks: bool,
    hints: bool,
    log_level: str,
    log_format: Any,
    **options: Any,
) -> None:
    """Serve a pool's tasks with this process's slots.

    MODULE:POOL is a module in the current folder (or an installed one) and the name of a gangline.Pool in it.

    The first SIGTERM or Ctrl-C drains: nothing new is granted, running tasks finish, and the process exits with code
    0. A second one stops it at once.

    If the ledger does not exist, it is created with GANGLINE_STORAGE (memory, file) and GANGLINE_REPLICAS. Metrics and
    traces are configured by OpenTelemetry's variables (OTEL_METRICS_EXPORTER=prometheus, OTEL_EXPORTER_OTLP_ENDPOINT,
    ...).
    """
    from ....bus.port.bus import BucketSettings
    from ....telemetry.logs import configure_logging
    from ....worker.context.task_context import add_task_ids
    from ....worker.ledger.settings import WorkerSettings
    from ...console.load import load_pool
    from ...console.session import run
    from ...serving.worker import serve_worker

    configure_logging(level=log_level, fmt=log_format, task_ids=add_task_ids)
    settings = WorkerSettings(
        **given(options), labels=labels, send_tracebacks=not no_tracebacks, bucket=BucketSettings.from_environment()
    )
    pool = load_pool(target)
    if hints:
        _print_hints(pool, connection)
    run(serve_worker(pool, connection, settings, journal=journal))


def _print_hints(pool: Pool, connection: ConnectionOptions) -> None:
    """Run a worker, also for `gangline dev`."""
    from ....bus.settings.connection import DEFAULT_URL
    from ...console.examples import example_lines

    (url,) = connection.settings().safe_urls[:1]
    lines = example_lines(pool, connection.names, None if url == DEFAULT_URL else url)
    for call, request in lines[:HINTS]:
        click.secho(f"try       {call}", fg="green")
        click.secho(f"          {request}", fg="green", dim=True)
    if len(lines) > HINTS:
        click.secho(f"          ... and {len(lines) - HINTS} more tasks: 'gangline workers' lists them", fg="green")
