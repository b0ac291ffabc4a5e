"""`gangline when`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ...console.completion import waiting
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....board.outlook import Outlook
    from ....dispatcher.client.client import Client

_PARTS = ("ledger", "routes", "queues", "gangs")
"""What an estimate needs of the board."""


@click.command(short_help="Estimate when a gang or a submitted task can start, and show what it depends on.")
@click.argument("id", metavar="GANG|JOB", shell_complete=waiting)
@json_option
@connection_options
def command(connection: ConnectionOptions, id: str, as_json: bool) -> None:
    """Estimate when a waiting gang or submitted task can start, and show what it depends on: whose lease ends when,
    which tasks are before it, and which workers drain.

    "No later than" is a bound. For the gang at the head of the queue it holds if nobody renews the leases that it waits
    for. For a submitted task it holds if the tasks before it have time limits and keep them, and nobody else takes the
    slots. "About" is an estimate, from how long leases of the same owners, gangs, and tasks have lasted in the last day
    (GANGLINE_HISTORY); it is as good as these durations are regular. "Not before about" means that others wait for the
    same slots: these are free then, and the others may take them first. A task behind a limit or the order of its key
    is told when its turn comes.
    """
    from ....schemas.names import check_job
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.gangs import sentence_line

    check_job(id)
    found = with_client(connection, "gangline when", lambda client: _outlook(client, id))
    now = time.time()
    lines = [sentence_line(sentence, now) for sentence in found.sentences]
    print_lines({"id": id, **found.told}, lines, as_json)


async def _outlook(client: Client, id: str) -> Outlook:
    from ....board.durations import DurationHistory
    from ....board.feed import BoardFeed, following
    from ....board.outlook import gang_outlook, job_outlook
    from ....schemas.messages.jobs import JobWhyReply
    from .why import _ask

    history = DurationHistory(client)
    async with following(BoardFeed(client, _PARTS)) as feed:
        why, durations = await _ask(client, id, feed.board), await history.durations()
        if history.trouble:
            echo(f"without estimates, since the history cannot be read: {history.trouble}", err=True)
        if isinstance(why, JobWhyReply):
            return job_outlook(feed.board, why, durations, time.time())
        return gang_outlook(feed.board, why, durations, time.time())
