"""`gangline roles`"""

from __future__ import annotations

import click

from ...console.options import reporting


@click.command(short_help="Write users and permissions for a nats-server, as configuration to include.")
@click.argument("users", nargs=-1, metavar="[USER]...")
@click.option("--account", default="GANGLINE", show_default=True, metavar="NAME", help="Account of the users.")
@click.option(
    "--namespace",
    envvar="GANGLINE_NAMESPACE",
    default="gangline",
    show_default=True,
    metavar="NAME",
    help="First token of all subjects (GANGLINE_NAMESPACE).",
)
@click.option("--nkeys", is_flag=True, help="Give users nkeys instead of passwords.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="[ACCOUNT:]LIMIT=NUMBER",
    help="Limit an account, or all tenants: connections (in all), subscriptions (of a connection), payload (bytes of a "
    "message); for Gangline's own account also JetStream's memory and store (bytes), streams, consumers. Repeatable.",
)
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", help="Show tracebacks of errors.")
def command(
    users: tuple[str, ...], account: str, namespace: str, nkeys: bool, limits: tuple[str, ...], debug: bool
) -> None:
    """Print nats-server configuration for the given users, each limited to what its roles need. Write it to a file and
    include the file in the server's configuration; no server is contacted.

    A USER is NAME[@TENANT]=ROLE[+ROLE...][:POOL[.WORKER]], or a role alone. Roles are producer (submits, and calls
    through gateways), router (a Python client), owner (gangs by plain requests), gateway, worker, dispatcher,
    coordinator and operator. Without USER: one user per role, except owner.

    Each TENANT gets its own account, which imports only what its producers and owners need from Gangline's account. Use
    one for callers you do not trust. Each is limited to 256 connections, 1000 subscriptions and messages of 1 MiB.

    \b
    gangline roles > roles.conf
    gangline roles gateway dispatcher operator shop=router+producer gpu-1=worker:images.w1 gpu-2=worker:images.w2
    gangline roles dispatcher operator images=worker:images billing=producer:invoices
    gangline roles gateway dispatcher operator worker web@shop=producer:images batch@lab=producer:video
    gangline roles --limit connections=20 --limit lab:payload=65536 --limit GANGLINE:store=50000000000 ...
    """
    reporting(_print, debug)(users, account, namespace, nkeys, limits)


def _print(users: tuple[str, ...], account: str, namespace: str, nkeys: bool, limits: tuple[str, ...]) -> None:
    import shlex

    from ....schemas.names import Names, check_name
    from ....schemas.permissions.nats_config import DEFAULT_USERS, configuration, parse_limit, parse_user

    check_name(account, "account")
    chosen = tuple(map(parse_user, users)) or DEFAULT_USERS
    options = [f"--account={account}"] * (account != "GANGLINE") + [f"--namespace={namespace}"] * (
        namespace != "gangline"
    )
    options += ["--nkeys"] * nkeys + [f"--limit={limit}" for limit in limits]
    line = shlex.join(["gangline", "roles", *options, *users])
    text = configuration(
        Names(namespace), chosen, command=line, account=account, nkeys=nkeys, limits=map(parse_limit, limits)
    )
    click.echo(text, nl=False)
