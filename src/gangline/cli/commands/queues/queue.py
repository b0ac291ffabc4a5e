"""`gangline queue ls|show`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....schemas.messages.jobs import QueueStats


@click.group(short_help="Show queues of submitted tasks: depth, oldest, running, idle slots.")
def command() -> None:
    """Queues of submitted tasks, one per endpoint. One dispatcher at a time runs a queue.

    'gangline why JOB' explains what a task is waiting for; a route's rules ('gangline route') set limits and pause
    a queue.
    """


@command.command(short_help="List all queues.")
@json_option
@connection_options
def ls(connection: ConnectionOptions, as_json: bool) -> None:
    """List queues that have tasks or a dispatcher.

    DEPTH is the number of tasks, including running ones (RUN). WAIT counts tasks that failed and wait for their next
    attempt, BLOCKED those that wait because of a limit or the order of their key. CREDIT shows idle and all slots
    leased for the queue. OLDEST is the age of the oldest task that has not started, BY the dispatcher that runs it.
    """
    from ...console.output import print_rows
    from ...views.jobs import queues_table

    queues = _read(connection)
    empty = "no queues: nothing is submitted, and no dispatcher runs"
    print_rows(queues, as_json, table=queues_table, empty=empty)
    if not as_json and not all(queue.dispatcher for queue in queues):
        click.echo("'nobody': start 'gangline dispatcher'", err=True)


@command.command(short_help="Show one queue.")
@click.argument("endpoint")
@json_option
@connection_options
def show(connection: ConnectionOptions, endpoint: str, as_json: bool) -> None:
    """Show one queue, with all counters of its dispatcher."""
    from ....schemas.errors.base import NoDispatcher
    from ....schemas.names import check_name
    from ...console.output import print_lines
    from ...views.jobs import queue_lines

    check_name(endpoint, "endpoint")
    found = [queue for queue in _read(connection) if queue.endpoint == endpoint]
    if not found:
        raise NoDispatcher(f"endpoint {endpoint!r} has neither tasks nor a dispatcher: 'gangline queue ls' shows all")
    print_lines(found[0].model_dump(mode="json"), queue_lines(found[0]), as_json)


def _read(connection: ConnectionOptions) -> list[QueueStats]:
    from ...console.session import with_client

    return with_client(connection, "gangline queue", lambda client: client.queues())
