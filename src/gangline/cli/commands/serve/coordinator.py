"""`gangline coordinator`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import duration_option, given, quotas_option
from ...console.options import ConnectionOptions, HealthAddress, connection_options, health_options, logging_options

if TYPE_CHECKING:
    from ....schemas.permissions.quotas import Quotas


@click.command(short_help="Grant gangs: slots over many workers, all or nothing.")
@click.option("--node", metavar="NAME", envvar="GANGLINE_NODE", help="Name of this machine, for discovery. [host name]")
@click.option(
    "--shard", metavar="NAME", envvar="GANGLINE_SHARD", help="Name of the shard that manages --pools only. [all]"
)
@click.option(
    "--pools", metavar="POOL,...", envvar="GANGLINE_POOLS", help="Pools of the shard. No pool is in two shards."
)
@duration_option("--starve-after", "starve_after_s", text="Reserve slots for a gang that has waited this long. [5s]")
@click.option("--max-queued", type=int, metavar="N", help="Maximum number of waiting gangs. [10000]")
@quotas_option
@duration_option("--sweep", "sweep_s", text="How often to look for leaked records. [30s]")
@health_options
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    node: str | None,
    shard: str | None,
    pools: str | None,
    starve_after_s: float | None,
    max_queued: int | None,
    quotas: Quotas,
    sweep_s: float | None,
    health: HealthAddress,
    log_level: str,
    log_format: Any,
) -> None:
    """Grant gangs: slots over many workers, all or nothing, that live, fail and restart together.

    Run two or more: one leads, the others stand by, and gangs keep running while the leader changes. On the first
    SIGTERM or Ctrl-C it hands over leadership and exits.

    If one leader is overloaded, give each set of pools its own coordinators: start all those of one shard with the same
    --shard and --pools. Callers do not need to know.

        nats req gangline.gang.acquire '{"pool": "train", "size": 4}'
    """
    from ....bus.port.bus import BucketSettings
    from ....bus.streams.history_recorder import HistorySettings
    from ....coordinator.settings.settings import CoordinatorSettings, ServiceSettings
    from ....coordinator.sharding.shards import Shard
    from ....telemetry.logs import configure_logging
    from ...console.session import run
    from ...serving.coordinator import serve_coordinator

    configure_logging(level=log_level, fmt=log_format)
    core: dict[str, Any] = {"starve_after_s": starve_after_s, "max_queued": max_queued, "quotas": quotas}
    shell: dict[str, Any] = {"node": node, "sweep_s": sweep_s}
    run(
        serve_coordinator(
            connection,
            CoordinatorSettings(**given(core)),
            ServiceSettings(
                bucket=BucketSettings.from_environment(),
                history=HistorySettings.from_environment(),
                **given(shell),
            ),
            Shard.of(shard, [pool.strip() for pool in pools.split(",")] if pools else None),
            health=health,
        )
    )
