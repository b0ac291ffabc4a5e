"""`gangline dispatcher`"""

from __future__ import annotations

from typing import Any

import click

from ...console.arguments import duration_option, given, quotas_option
from ...console.options import ConnectionOptions, HealthAddress, connection_options, health_options, logging_options


@click.command(short_help="Run durable tasks: retries, priorities, limits, dead letters.")
@click.option("--node", metavar="NAME", envvar="GANGLINE_NODE", help="Name of this machine, for discovery. [host name]")
@click.option("--max-attempts", type=int, metavar="N", help="Attempts before a task becomes a dead letter. [5]")
@duration_option("--backoff", "backoff_s", text="Wait before the second attempt; doubles each time. [1s]")
@duration_option("--backoff-max", "backoff_max_s", text="Longest wait between attempts. [5m]")
@duration_option("--result-ttl", "result_ttl_s", text="How long to keep results. [1h]")
@duration_option(
    "--unknown-after", "unknown_after_s", text="How long a task for an unknown endpoint waits before it is dead. [30s]"
)
@click.option(
    "--window", "window_tasks", type=int, metavar="N", help="Prefetch window: tasks read ahead, per queue. [4096]"
)
@quotas_option
@health_options
@logging_options
@connection_options
def command(
    connection: ConnectionOptions, health: HealthAddress, log_level: str, log_format: Any, **options: Any
) -> None:
    """Run durable tasks: those submitted, or published to gangline.task.ENDPOINT.METHOD from any language.

    No task is lost, and none is started twice while it runs. Failed tasks are retried, and finally become dead letters
    with the reason. Run two or more: they share the endpoints, and take over from one that dies within three seconds.
    On the first SIGTERM or Ctrl-C a dispatcher hands its queues over and exits; running tasks continue.

        nats pub -J gangline.task.words.count '{"text": "a b c"}'

    Settings of a route or of a task override these options. TIME is 90, 500ms, 5m, 2h or 1d.
    """
    from ....bus.streams.history_recorder import HistorySettings
    from ....dispatcher.durable.policies.settings import DispatcherSettings
    from ....telemetry.logs import configure_logging
    from ...console.session import run
    from ...serving.dispatcher import serve_dispatcher

    configure_logging(level=log_level, fmt=log_format)
    settings = DispatcherSettings(**given(options), history=HistorySettings.from_environment())
    run(serve_dispatcher(connection, settings, health=health))
