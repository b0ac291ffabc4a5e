"""`gangline asyncapi`"""

from __future__ import annotations

import click

from ...console.options import ConnectionOptions, connection_options
from ...console.output import echo


@click.command(short_help="Describe the tasks of pools as AsyncAPI 3.0, with the schemas of their bodies.")
@click.argument("pools", nargs=-1, required=True, metavar="POOL...")
@click.option("--title", metavar="TEXT", help="Title of the application. Default: the names of the pools.")
@click.option("--app-version", default="1.0.0", show_default=True, metavar="TEXT", help="Version of the application.")
@connection_options
def command(connection: ConnectionOptions, pools: tuple[str, ...], title: str | None, app_version: str) -> None:
    """Print an AsyncAPI 3.0 document of the tasks of each POOL: subjects, and JSON Schemas of arguments and results.

    For each task there are two channels: requests that are answered with the result, and submissions of durable tasks.
    Schemas are those of the newest worker of each pool.

    \b
    gangline asyncapi words images --title Shop > asyncapi.json
    """
    from ....schemas.catalogue.application import application_text
    from ...console.session import with_client
    from ...views.task_schemas import read_schemas

    tasks = with_client(connection, "gangline asyncapi", lambda client: read_schemas(client, pools))
    names = connection.names
    echo(application_text(tasks, names, title=title or ", ".join(pools), version=app_version), nl=False)
