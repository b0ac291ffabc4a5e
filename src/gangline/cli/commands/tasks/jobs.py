"""`gangline jobs ls`"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ...console import completion
from ...console.arguments import moment_option
from ...console.options import ConnectionOptions, connection_options, json_option, watch_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....dispatcher.jobs.listing import JobPage
    from ....schemas.messages.jobs import JobInfo

_STATES = ("scheduled", "queued", "waiting", "running", "done", "dead", "cancelled")


@click.group(short_help="List jobs: waiting, running and ended ones.")
def command() -> None:
    """Jobs: submitted tasks, from their submission until their results expire."""


@command.command(short_help="List jobs: waiting, running and ended ones.")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Show only this state; repeatable.")
@click.option("--endpoint", metavar="NAME", help="Show only this endpoint.", shell_complete=completion.endpoints)
@click.option("--key", metavar="TEXT", help="Show only jobs submitted with this key.")
@click.option(
    "--schedule", metavar="SCHEDULE", help="Show only runs of this schedule.", shell_complete=completion.schedules
)
@moment_option("--since", text="Show only jobs submitted or ended since: 14:03, 2030-01-31T14:03Z, or 2h ago: 2h.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of jobs to show."
)
@click.option("--cursor", metavar="TEXT", help="Go on from there; the previous page printed it.")
@watch_option
@json_option
@connection_options
def ls(
    connection: ConnectionOptions,
    states: tuple[str, ...],
    endpoint: str | None,
    key: str | None,
    schedule: str | None,
    since: float | None,
    limit: int,
    cursor: str | None,
    watch: bool,
    as_json: bool,
) -> None:
    """List jobs: unfinished ones in the order of submission, then delayed ones, then ended ones, the last first.

    An ended job is listed as long as its result is kept: one hour, unless it was submitted with another --result-ttl.
    'gangline dead ls' lists dead letters of the last thirty days. With --json: an object with 'jobs', 'next', the
    cursor of the next page, and 'unanswered', endpoints whose queues change hands.
    """
    if watch and cursor is not None:
        raise click.UsageError("--cursor cannot be combined with --watch")
    from ...console.output import print_json
    from ...console.session import with_client
    from ...console.watching import ListView, Page, list_rows
    from ...views.jobs import jobs_table

    start = None if since is None else datetime.fromtimestamp(since, UTC)

    def ask(client: Client) -> Coroutine[object, object, JobPage]:
        return client.jobs(
            states=states, endpoint=endpoint, key=key, schedule=schedule, since=start, limit=limit, cursor=cursor
        )

    async def read(client: Client) -> Page[JobInfo]:
        page = await ask(client)
        notes: list[str] = []
        if page.next is not None:
            full = len(page.jobs) == limit
            further = [*([] if watch else [f"--cursor {page.next}"]), *(["a higher --limit"] if full else [])]
            notes.append(f"there {'are' if full else 'may be'} more: {', or '.join(further) or 'far down the queues'}")
        for unanswered in page.unanswered:
            notes.append(
                f"no dispatcher says which tasks of {unanswered} are running: they are listed as queued or waiting"
            )
        return Page(page.jobs, tuple(notes))

    name = "gangline jobs"
    if as_json and not watch:
        page = with_client(connection, name, ask)
        print_json(
            {
                "jobs": [info.model_dump(mode="json") for info in page.jobs],
                "next": page.next,
                "unanswered": page.unanswered,
            }
        )
        return
    view = ListView(
        item="job",
        table=jobs_table,
        empty="no such jobs",
        key=lambda info: info.job,
        to_json=lambda info: info.model_dump(mode="json"),
    )
    list_rows(connection, name, read, view, watch=watch, as_json=as_json)
