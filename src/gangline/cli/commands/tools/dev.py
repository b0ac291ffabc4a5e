"""`gangline dev`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...console.options import Connection, connection_options, logging_options


@click.command(short_help="A nats-server, all that serves and your worker in one terminal.")
@click.argument("target", metavar="MODULE:POOL")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the server's data in that folder.")
@click.option("--port", type=click.IntRange(0, 65535), help="Of the server; 0: a free one. [4222 if it is free]")
@click.option("--slots", type=int, metavar="N", help="Slots of the worker. [the pool's own]")
@click.option("--no-reload", is_flag=True, help="Do not restart the worker when a file changes.")
@logging_options
@connection_options
def command(
    connection: Connection,
    target: str,
    data: Path | None,
    port: int | None,
    slots: int | None,
    no_reload: bool,
    log_level: str,
    log_format: Any,
) -> None:
    """A nats-server, a gateway, a coordinator, a dispatcher and your worker in one terminal, reloaded on change.

    When a Python file in the current folder changes, a new worker process takes over as soon as its lifespans have
    begun, and the old one finishes what it runs; if the new code does not come up, the old goes on. All others stay.
    With --server or --context, that server is used instead of an own one. Ctrl-C ends everything.
    """
    from ....telemetry.log_format import configure_logging
    from ...console.load import check_module

    check_module(target)
    from ...console.session import run
    from ...serving.develop import develop

    configure_logging(level=log_level, fmt=log_format)
    options = ["--log-level", log_level, "--log-format", log_format]
    if slots is not None:
        options += ["--slots", str(slots)]
    run(develop(target, connection, data=data, port=port, reload=not no_reload, options=options))
