"""`gangline worker`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import duration_option, given, labels_option, slots_by_pool, slots_option
from ...console.help import SectionedCommand
from ...console.options import ConnectionOptions, HealthAddress, connection_options, health_options, logging_options
from ...console.output import echo

if TYPE_CHECKING:
    from ....worker.pool.pool import Pool


ARGUMENTS = "gangline.worker.arguments"
HINTS = 3
"""Example calls are printed for this many tasks at most, so that they do not fill the screen."""


class WorkerCommand(SectionedCommand):
    """Remembers its arguments as given: `--processes` runs the same command in each process."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=WorkerCommand, short_help="Serve the tasks of pools with this process's slots.")
@click.argument("targets", metavar="MODULE:POOL...", nargs=-1, required=True)
@slots_option
@click.option("--id", metavar="NAME", help="Name within each pool. [a new one at each start]")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Run N worker processes, and restart those that die. Their ids are NAME-1, NAME-2 and so on.",
)
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
@health_options
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    targets: tuple[str, ...],
    slots: tuple[str, ...],
    processes: int,
    labels: dict[str, str],
    journal: Path | None,
    no_tracebacks: bool,
    hints: bool,
    health: HealthAddress,
    log_level: str,
    log_format: Any,
    **options: Any,
) -> None:
    """Serve the tasks of pools with this process's slots.

    MODULE:POOL is a module in the current folder (or an installed one) and the name of a gangline.Pool in it. Each of
    several pools has its own slots, and can be drained and resized on its own. If one of them fails, all leave.

    The first SIGTERM or Ctrl-C drains: nothing new is granted, running tasks finish, and the process exits with code
    0. A second one stops it at once.

    If the ledger does not exist, it is created with GANGLINE_STORAGE (memory, file) and GANGLINE_REPLICAS. Metrics and
    traces are configured by OpenTelemetry's variables (OTEL_METRICS_EXPORTER=prometheus, OTEL_EXPORTER_OTLP_ENDPOINT,
    ...).
    """
    from ....bus.port.bus import BucketSettings
    from ....bus.streams.history_recorder import HistorySettings
    from ....telemetry.logs import configure_logging
    from ....worker.context.task_context import add_task_ids
    from ....worker.ledger.settings import WorkerSettings
    from ...console.load import check_module, load_pool
    from ...console.session import run
    from ...serving.worker import serve_workers

    configure_logging(level=log_level, fmt=log_format, task_ids=add_task_ids)
    if processes > 1:
        for target in targets:
            check_module(target)
        _run_processes(processes, connection, options["id"], health)
        return
    settings = WorkerSettings(
        **given(options),
        labels=labels,
        send_tracebacks=not no_tracebacks,
        bucket=BucketSettings.from_environment(),
        history=HistorySettings.from_environment(),
    )
    pools = [load_pool(target) for target in targets]
    slots_of = slots_by_pool(slots, [pool.name for pool in pools])
    if hints:
        _print_hints(pools, connection)
    served = [(pool, replace(settings, slots=slots_of[pool.name])) for pool in pools]
    run(serve_workers(served, connection, health=health, journal=journal))


def _run_processes(processes: int, connection: ConnectionOptions, name: str | None, health: HealthAddress) -> None:
    """Run this very command in each of several processes. Probes of process 2 are on the next port, and so on."""
    from ...console.session import run
    from ...serving.supervisor import WorkerSupervisor

    given_arguments: list[str] = click.get_current_context().meta[ARGUMENTS]
    arguments = [
        [
            *(argument for argument in given_arguments if argument != "--hints" or number == 0),
            *("--processes", "1"),
            *(("--id", f"{name}-{number + 1}") if name else ()),
            *(("--health-port", str(health.port + number)) if health.port else ()),
        ]
        for number in range(processes)
    ]
    sys.exit(run(WorkerSupervisor(arguments, connection.environment()).run()))


def _print_hints(pools: Sequence[Pool], connection: ConnectionOptions) -> None:
    """How to call the first tasks of a worker that somebody runs to try it."""
    from ....bus.settings.connection import DEFAULT_URL
    from ....schemas.text import count_of
    from ...console.examples import example_lines

    (url,) = connection.settings().safe_urls[:1]
    lines = [
        each for pool in pools for each in example_lines(pool, connection.names, None if url == DEFAULT_URL else url)
    ]
    for call, request in lines[:HINTS]:
        echo(f"try       {call}", fg="green")
        echo(f"          {request}", fg="green", dim=True)
    if (more := len(lines) - HINTS) > 0:
        echo(f"          ... and {count_of(more, 'more task')}: 'gangline workers --tasks' lists them", fg="green")
