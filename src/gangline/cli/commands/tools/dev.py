"""`gangline dev`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...console.options import ConnectionOptions, connection_options, logging_options


@click.command(short_help="Run a NATS server, everything else and your worker in one terminal.")
@click.argument("target", metavar="MODULE:POOL")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the server's data in this folder.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the server; 0: any free one. [4222 if it is free]")
@click.option("--slots", type=int, metavar="N", help="Slots of the worker. [the pool's own]")
@click.option("--no-reload", is_flag=True, help="Do not restart the worker when a file changes.")
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    target: str,
    data: Path | None,
    port: int | None,
    slots: int | None,
    no_reload: bool,
    log_level: str,
    log_format: Any,
) -> None:
    """Run a NATS server, gateway, coordinator, dispatcher and your worker in one terminal; reload on code changes.

    When a Python file in the current folder changes, a new worker process takes over as soon as its lifespans have
    started and the old one finishes its tasks. If the new code fails to start, the old worker keeps serving. With
    --server or --context, it uses that server instead of starting one. Ctrl-C stops everything.
    """
    from ....telemetry.logs import configure_logging
    from ....worker.context.task_context import add_task_ids
    from ...console.load import check_module

    check_module(target)
    from ...console.session import run
    from ...serving.develop import develop

    configure_logging(level=log_level, fmt=log_format, task_ids=add_task_ids)
    options = ["--log-level", log_level, "--log-format", log_format]
    if slots is not None:
        options += ["--slots", str(slots)]
    run(develop(target, connection, data=data, port=port, reload=not no_reload, options=options))
