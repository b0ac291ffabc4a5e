"""`gangline demo`"""

from __future__ import annotations

import click

from ...console.options import reporting


@click.command(short_help="Run a real workload with faults, and check it.")
@click.option("--files", type=click.IntRange(min=20), metavar="N", help="Use only this many files. [all]")
@click.option("--console", is_flag=True, help="Serve the web console meanwhile, and until Ctrl-C.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Export the metrics of all its processes there, for Prometheus, and wait now and then until they were read; "
    "0: on a free port.",
)
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", help="Show tracebacks of errors.")
def command(files: int | None, console: bool, metrics_port: int | None, debug: bool) -> None:
    """Run a real workload on a real nats-server, with faults, and check every claim.

    Starts an embedded nats-server, a gateway and three workers with four slots each, and compresses and hashes every
    Python file of the standard library, by call, by choose_worker and dispatch, by held leases and by plain NATS
    requests. One worker is killed and one drained on the way.

    Then, with a coordinator and three other workers, a gang of four counts the words of the same files while the
    process of a member is killed, and two gangs of two take turns on three free slots.

    Finally, the same files are submitted as durable tasks while a worker and a dispatcher are killed, together with two
    tasks that cannot succeed and become dead letters.

    Needs nothing but this package with its `server` extra.

    The last line is `demo: ok` with the figures (exit code 0), or what failed (exit code 1).
    """
    from ....telemetry.logs import configure_logging
    from ...console.session import run
    from ...demo.play import perform
    from ...demo.screen import Screen

    # Warnings of the router (a lost worker, for example) belong to the demo, which reports them itself.
    configure_logging(level="warning" if debug else "error")

    def play() -> bool:
        return run(perform(Screen(), "demo", limit=files, console=console, metrics_port=metrics_port))

    if not reporting(play, debug)():
        raise SystemExit(1)
