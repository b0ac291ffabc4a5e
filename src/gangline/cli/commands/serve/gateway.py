"""`gangline gateway`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import duration_option, given, quotas_option
from ...console.options import ConnectionOptions, HealthAddress, connection_options, health_options, logging_options

if TYPE_CHECKING:
    from ....schemas.permissions.quotas import Quotas


@click.command(short_help="Answer plain NATS requests from any language.")
@duration_option("--timeout", "default_timeout_s", text="Timeout of calls that give none. [30s]")
@click.option("--max-pending", type=int, metavar="N", help="Maximum concurrent calls. [10000]")
@click.option("--max-pending-bytes", type=int, metavar="N", help="Maximum bytes of concurrent calls. [268435456]")
@duration_option(
    "--drain-grace", "drain_grace_s", text="Stop calls still running this long after the drain began. [30s]"
)
@click.option("--max-queued", type=int, metavar="N", help="Maximum calls waiting for a slot, per pool. [10000]")
@click.option(
    "--tenant-share",
    type=float,
    metavar="PART",
    help="How much of --max-pending one tenant may use. [0.5]",
)
@click.option(
    "--tenant-weight",
    "weights",
    multiple=True,
    metavar="TENANT=WEIGHT",
    help="Slots for tenants that wait for the same ones, relative to others. Repeatable. [1]",
)
@quotas_option
@click.option("--node", metavar="NAME", help="Prefer workers on this machine.")
@click.option("--zone", metavar="NAME", help="Prefer workers in this failure domain, after those on the machine.")
@health_options
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    max_queued: int | None,
    weights: tuple[str, ...],
    quotas: Quotas,
    node: str | None,
    zone: str | None,
    health: HealthAddress,
    log_level: str,
    log_format: Any,
    **options: Any,
) -> None:
    """Answer plain NATS requests on gangline.call.ENDPOINT.METHOD, from any language.

    The body is the task's arguments in JSON (or msgpack, by Content-Type), the answer is the bare result:

        nats req gangline.call.words.count '{"text": "a b c"}'

    Gateways of a namespace share the calls; run as many as you like. The first SIGTERM or Ctrl-C lets running calls
    finish, a second one stops them.
    """
    from ....dispatcher.gateway.gateway import GatewaySettings
    from ....dispatcher.routing.settings import RouterSettings
    from ....telemetry.logs import configure_logging
    from ...console.session import run
    from ...serving.worker import serve_gateway

    configure_logging(level=log_level, fmt=log_format)
    routing: dict[str, Any] = {"max_queued": max_queued, "node": node, "zone": zone, "quotas": quotas}
    if weights:
        routing["tenant_weights"] = dict(map(_weight, weights))
    run(
        serve_gateway(
            connection,
            GatewaySettings(**given(options)),
            RouterSettings(**given(routing)),
            health=health,
        )
    )


def _weight(text: str) -> tuple[str, float]:
    tenant, _, weight = text.partition("=")
    try:
        return tenant, float(weight)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not TENANT=WEIGHT, for example shop=3", param_hint="--tenant-weight"
        ) from None
