"""`gangline stubs`"""

from __future__ import annotations

import click

from ...console.options import ConnectionOptions, connection_options
from ...console.output import echo


@click.command(short_help="Write a Python module of typed handles to a pool's tasks.")
@click.argument("pools", nargs=-1, required=True, metavar="POOL...")
@connection_options
def command(connection: ConnectionOptions, pools: tuple[str, ...]) -> None:
    """Write a Python module of typed handles to the tasks of each POOL, for programs that cannot import their code.

    Type checkers then check arguments and know results: `await client.call(count, text="a b")`. The module is made from
    the JSON Schemas of the newest worker of each pool, and needs only gangline itself. Write it again when the tasks
    change.

    \b
    gangline stubs words > words_client.py
    """
    from ....schemas.catalogue.python_stubs import python_stubs
    from ...console.session import with_client
    from ...views.task_schemas import read_schemas

    tasks = with_client(connection, "gangline stubs", lambda client: read_schemas(client, pools))
    line = f"gangline stubs {' '.join(pools)}"
    echo(python_stubs(tasks, about=f"Written by `{line}`: do not edit."), nl=False)
