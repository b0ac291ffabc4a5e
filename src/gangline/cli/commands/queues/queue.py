"""`gangline queue ls|show`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.completion import endpoints
from ...console.options import ConnectionOptions, connection_options, json_option, watch_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....schemas.messages.jobs import QueueStats


@click.group(short_help="Show queues of submitted tasks: depth, oldest, running, idle slots.")
def command() -> None:
    """Queues of submitted tasks, one per endpoint. One dispatcher at a time runs a queue.

    'gangline why JOB' explains what a task is waiting for; a route's rules ('gangline route') set limits and pause
    a queue.
    """


@command.command(short_help="List all queues.")
@watch_option
@json_option
@connection_options
def ls(connection: ConnectionOptions, watch: bool, as_json: bool) -> None:
    """List queues that have tasks or a dispatcher. DONE and DEAD count since the dispatcher took the queue over.

    DEPTH is the number of tasks, including running ones (RUN). WAIT counts tasks that failed and wait for their next
    attempt, BLOCKED those that wait because of a limit or the order of their key. CREDIT shows idle and all slots
    leased for the queue. OLDEST is the age of the oldest task that has not started, BY the dispatcher that runs it,
    or 'impaired' if that has no room to store the end of tasks, or no right to.
    """
    from ....schemas.messages.jobs import PURGED
    from ....schemas.text import count_of
    from ...console.watching import ListView, Page, list_rows
    from ...views.jobs import queues_table

    async def read(client: Client) -> Page[QueueStats]:
        queues = await client.queues()
        notes = [f"{queue.endpoint}: {queue.unanswered}" for queue in queues if queue.unanswered][:1]
        notes += [f"{queue.endpoint}: {count_of(queue.purged, 'task')}: {PURGED}" for queue in queues if queue.purged][
            :1
        ]
        if not all(queue.dispatcher or queue.unanswered for queue in queues):
            notes.append("'nobody': start 'gangline dispatcher'")
        notes += [f"impaired: {reason}" for reason in dict.fromkeys(queue.impaired for queue in queues) if reason]
        return Page(queues, tuple(notes))

    view = ListView(
        item="queue",
        table=queues_table,
        empty="no queues: nothing is submitted, and no dispatcher runs",
        key=lambda queue: queue.endpoint,
        to_json=lambda queue: queue.model_dump(mode="json"),
        restless=frozenset({"oldest_s"}),
    )
    list_rows(connection, "gangline queue", read, view, watch=watch, as_json=as_json)


@command.command(short_help="Show one queue.")
@click.argument("endpoint", shell_complete=endpoints)
@json_option
@connection_options
def show(connection: ConnectionOptions, endpoint: str, as_json: bool) -> None:
    """Show one queue, with all counters of its dispatcher."""
    from ....schemas.errors.base import NoDispatcher
    from ....schemas.names import check_name
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.jobs import queue_lines

    check_name(endpoint, "endpoint")
    queues = with_client(connection, "gangline queue", lambda client: client.queues())
    found = [queue for queue in queues if queue.endpoint == endpoint]
    if not found:
        raise NoDispatcher(f"endpoint {endpoint!r} has neither tasks nor a dispatcher: 'gangline queue ls' shows all")
    print_lines(found[0].model_dump(mode="json"), queue_lines(found[0]), as_json)
