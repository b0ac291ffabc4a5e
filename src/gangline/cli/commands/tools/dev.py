"""`gangline dev`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...console.arguments import slots_option
from ...console.options import ConnectionOptions, HealthAddress, connection_options, health_options, logging_options


@click.command(short_help="Run a NATS server, everything else and your worker in one terminal.")
@click.argument("targets", metavar="MODULE:POOL...", nargs=-1, required=True)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the server's data in this folder.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the server; 0: any free one. [4222 if it is free]")
@slots_option
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Run N worker processes, so that gangs over several workers can form.",
)
@click.option("--no-reload", is_flag=True, help="Do not restart the worker when a file changes.")
@health_options
@click.option(
    "--console/--no-console", default=None, help="Serve the web console, too. [if gangline[console] is installed]"
)
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    targets: tuple[str, ...],
    data: Path | None,
    port: int | None,
    slots: tuple[str, ...],
    workers: int,
    no_reload: bool,
    health: HealthAddress,
    console: bool | None,
    log_level: str,
    log_format: Any,
) -> None:
    """Run a NATS server, gateway, coordinator, dispatcher and your worker in one terminal; reload on code changes.

    The worker serves all pools that are named. When a Python file in the current folder changes, a new worker process
    takes over as soon as its lifespans have started, and the old one finishes its tasks. If the new code fails to
    start, the old worker keeps serving. With --server or --context, it uses that server instead of starting one. Ctrl-C
    stops everything.
    """
    from ....telemetry.logs import configure_logging
    from ....worker.context.task_context import add_task_ids
    from ...console.load import check_module

    if connection.server or connection.context:
        where = "--server" if connection.server else "--context"
        for name, value in (("--port", port), ("--data", data)):
            if value is not None:
                raise click.UsageError(f"{name} is for the server that this starts, and {where} uses another one")
    for target in targets:
        check_module(target)
    from ...console.session import run
    from ...serving.develop import develop

    configure_logging(level=log_level, fmt=log_format, task_ids=add_task_ids)
    options = ["--log-level", log_level, "--log-format", log_format]
    for each in slots:
        options += ["--slots", each]
    run(
        develop(
            targets,
            connection,
            data=data,
            port=port,
            reload=not no_reload,
            workers=workers,
            options=options,
            health=health,
            console=console,
        )
    )
