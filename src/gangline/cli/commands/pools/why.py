"""`gangline why`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ...console.completion import waiting
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....board.board_core import Board
    from ....dispatcher.client.client import Client
    from ....schemas.messages import gangs as gang_messages
    from ....schemas.messages import jobs


@click.command(short_help="Explain what a gang or a submitted task is waiting for.")
@click.argument("id", metavar="GANG|JOB", shell_complete=waiting)
@json_option
@connection_options
def command(connection: ConnectionOptions, id: str, as_json: bool) -> None:
    """Explain what a gang or a submitted task is waiting for.

    For a gang: its position in the queue, what is missing, the workers it is waiting for, and who holds their slots:
    gangs, leases with their expiry, tasks.

    For a submitted task: how many tasks of its queue are ahead, and what it is waiting for: slots and who has them, a
    limit, the order of its key, its next attempt, or its start time. For a limit over all workers, also which of them
    have its units.
    """
    from ....schemas.names import check_job
    from ...console.output import print_lines
    from ...console.session import with_client

    check_job(id)
    why = with_client(connection, "gangline why", lambda client: _ask(client, id))
    print_lines(why.model_dump(mode="json"), _lines(why), as_json)


def _lines(why: gang_messages.GangWhyReply | jobs.JobWhyReply) -> Iterable[str]:
    from ....schemas.messages import jobs
    from ...views import gangs as gang_tables
    from ...views import jobs as job_tables

    return job_tables.why_lines(why) if isinstance(why, jobs.JobWhyReply) else gang_tables.why_lines(why)


async def _ask(client: Client, id: str, board: Board | None = None) -> gang_messages.GangWhyReply | jobs.JobWhyReply:
    """Ask the coordinator for a gang, then dispatchers for a task, unless the id names an endpoint. `board` as in
    `why_job`."""
    from ....board.shares import why_job
    from ....schemas.errors.base import Unavailable, UnknownGang, UnknownJob
    from ....schemas.messages.gangs import GangQuery, GangWhyReply
    from ....schemas.messages.operations import parse_request
    from ....schemas.names import GangOperation, job_endpoint
    from ...views.gang_follow import ask_of

    if job_endpoint(id) is not None:
        return await why_job(client, await client.find_job(id), board)
    try:
        return await ask_of(client, GangWhyReply, GangOperation.WHY, parse_request(GangQuery, {"id": id}))
    except (UnknownGang, Unavailable) as error:
        try:
            return await why_job(client, await client.find_job(id), board)
        except UnknownJob as unknown:
            text = f"and there is no submitted task {id!r} either"
            raise type(error)(f"{error.message}; {text}", details=unknown.details) from error
