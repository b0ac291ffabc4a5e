"""`gangline console`"""

from __future__ import annotations

import dataclasses

import click

from ...console.options import ConnectionOptions, connection_options, logging_options


@click.command(short_help="Show the system in a browser: slots, what waits and why, gangs, queues.")
@click.option("--listen", metavar="HOST:PORT", help="Where to serve; port 0: any. [127.0.0.1:4280]")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve at this port of 127.0.0.1; 0: any free one.")
@click.option(
    "--auth",
    type=click.Choice(["token", "proxy"]),
    help="Who may look: who opens the printed link, or whom a proxy names. Required beyond this machine. [token]",
)
@click.option("--host", "hosts", multiple=True, metavar="HOST[:PORT]", help="Further names by which browsers reach it.")
@click.option("--root-path", default="", metavar="PATH", help="Path below which a proxy serves it, such as /ops.")
@click.option(
    "--trusted-proxy", "proxies", multiple=True, metavar="CIDR", help="Networks of proxies, for --auth proxy."
)
@click.option("--user-header", default="X-Forwarded-User", show_default=True, metavar="NAME", help="Names the user.")
@click.option(
    "--actions",
    metavar="NAMES",
    default="",
    help="Actions to allow: all, or some of drain,resize,cancel,release,replay,drop,route,scale,schedule. [none]",
)
@click.option("--actions-context", metavar="NAME", envvar="GANGLINE_ACTIONS_CONTEXT", help="Context for actions.")
@click.option("--actions-creds", metavar="FILE", envvar="GANGLINE_ACTIONS_CREDS", help="Credentials for actions.")
@click.option("--actions-nkey", metavar="FILE", envvar="GANGLINE_ACTIONS_NKEY", help="NKEY for actions.")
@click.option("--actions-user", metavar="NAME", envvar="GANGLINE_ACTIONS_USER", help="User for actions.")
@click.option(
    "--actions-password",
    metavar="TEXT",
    envvar="GANGLINE_ACTIONS_PASSWORD",
    help="Password of that user (prefer the variable).",
)
@click.option("--show-payloads", is_flag=True, help="Show arguments and results of tasks.")
@logging_options
@connection_options
def command(
    connection: ConnectionOptions,
    listen: str | None,
    port: int | None,
    auth: str | None,
    hosts: tuple[str, ...],
    root_path: str,
    proxies: tuple[str, ...],
    user_header: str,
    actions: str,
    show_payloads: bool,
    log_level: str,
    log_format: str,
    **given: str | None,
) -> None:
    """Show the system in a browser: slots, what waits and why, gangs, queues, dead letters.

    Prints a link that signs in one browser. It reads with the given connection, for which a user with the role
    `observer` is enough, and can do nothing. With --actions it can, on a second connection: give the user for it with
    --actions-creds or the like, unless the server has no users. Needs the extra gangline[console].
    """
    from ....telemetry.logs import configure_logging
    from ...console.session import run
    from ...serving.console import DEFAULT_PORT, serve

    if listen is not None and port is not None:
        raise click.UsageError("--listen and --port exclude each other: --listen has a port, too")
    if listen is None:
        listen = f"127.0.0.1:{DEFAULT_PORT if port is None else port}"
    configure_logging(level=log_level, fmt=log_format)  # type: ignore[arg-type]
    own = {name.removeprefix("actions_"): value for name, value in given.items() if value}
    operator = _operator(connection, own) if actions else None
    run(
        serve(
            connection,
            operator,
            listen=listen,
            auth=auth,
            hosts=hosts,
            root_path=root_path,
            trusted_proxies=proxies,
            user_header=user_header,
            actions=actions,
            show_payloads=show_payloads,
        )
    )


def _operator(connection: ConnectionOptions, own: dict[str, str]) -> ConnectionOptions:
    """The second connection: as the first, but as another user.

    Raises:
        UsageError: the first has an identity, and the second none of its own.
    """
    if not own:
        settings = connection.settings()
        if settings.credentials_file or settings.nkey_file or settings.user or settings.token:
            raise click.UsageError(
                "--actions needs a user of its own: give --actions-creds, --actions-nkey, --actions-user or "
                "--actions-context, so that the user that only looks cannot act"
            )
        return connection
    user = own.get("user")
    inbox = f"_INBOX.{user}" if user else None if "context" in own else connection.inbox_prefix
    return dataclasses.replace(
        connection,
        context=own.get("context"),
        creds=own.get("creds"),
        nkey=own.get("nkey"),
        user=user,
        password=own.get("password"),
        token=None,
        inbox_prefix=inbox,
    )
