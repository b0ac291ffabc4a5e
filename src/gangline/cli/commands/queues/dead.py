"""`gangline dead ls|show|replay|rm`"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ....schemas.errors.base import GanglineError, InvalidRequest, JobError
from ...console.arguments import job_argument, reason_option
from ...console.completion import letters
from ...console.help import renamed
from ...console.options import Command, ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....dispatcher.jobs.dead_letters import DeadLetter

_ENDPOINT = click.option("--endpoint", metavar="NAME", help="Only dead letters of this endpoint.")


@click.group(short_help="Read, replay or remove dead letters: tasks that will not be retried.")
def command() -> None:
    """Dead letters: tasks that will not be retried, each with its reason, kept for thirty days.

    Their last attempt failed, their deadline passed, or they could not be read.
    """


@command.command(short_help="List dead letters.")
@_ENDPOINT
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=1000, show_default=True, help="How many to show, newest first."
)
@json_option
@connection_options
def ls(connection: ConnectionOptions, endpoint: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, oldest first."""
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.jobs import letter_json, letters_table

    letters = with_client(connection, "gangline dead", lambda client: client.dead_letters(endpoint, limit=limit))
    print_rows(letters, as_json, table=letters_table, empty="no dead letters", to_json=letter_json)


@command.command(short_help="Show one dead letter, with arguments and traceback.")
@job_argument
@json_option
@connection_options
def show(connection: ConnectionOptions, job: str, as_json: bool) -> None:
    """Show one dead letter: reason, attempts, arguments, last error with its traceback, trace. A unique prefix of the
    job's id is enough, as in the other commands."""
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.jobs import letter_json, letter_lines

    letter = with_client(connection, "gangline dead", lambda client: client.dead_letter(job))
    print_lines(letter_json(letter), letter_lines(letter), as_json)


def _which(function: Command) -> Command:
    """The letters of these jobs, or all of them, or all of an endpoint."""
    everything = click.option("--all", "everything", is_flag=True, help="All dead letters.")
    jobs = click.argument("jobs", metavar="JOB...", nargs=-1, shell_complete=letters)
    return jobs(everything(_ENDPOINT(function)))


@command.command(short_help="Requeue dead letters.")
@_which
@reason_option
@connection_options
def replay(connection: ConnectionOptions, reason: str, **which: Any) -> None:
    """Requeue dead letters under their job ids with a fresh set of attempts.

    JOB is a job's id, or its beginning.
    """
    _do(connection, "dead replay", reason, lambda client, letter: client.replay(letter), "is queued again", **which)


@command.command(short_help="Remove dead letters.")
@_which
@reason_option
@connection_options
def rm(connection: ConnectionOptions, reason: str, **which: Any) -> None:
    """Remove dead letters; their jobs stay dead.

    JOB is a job's id, or its beginning.
    """
    _do(connection, "dead rm", reason, lambda client, letter: client.drop(letter), "is removed", **which)


renamed(command, "drop", rm)


def _do(
    connection: ConnectionOptions,
    action: str,
    reason: str,
    do: Callable[[Client, str | DeadLetter], Awaitable[object]],
    done: str,
    *,
    jobs: tuple[str, ...],
    everything: bool,
    endpoint: str | None,
) -> None:
    """Do it with these jobs, or with all dead letters, and print what is `done`. The audit trail has whole ids."""
    if bool(jobs) == everything:
        raise click.UsageError("give job ids, or --all", click.get_current_context())
    if endpoint is not None and not everything:
        raise click.UsageError("--endpoint needs --all", click.get_current_context())
    from ....dispatcher.jobs.dead_letters import audited
    from ...console.session import audit_of, with_client

    async def work(client: Client) -> None:
        chosen: Sequence[str | DeadLetter]
        if jobs:
            chosen = [await _letter(client, job) for job in jobs]
            target = audited(chosen)
        else:
            chosen = await client.dead_letters(endpoint, limit=None, bodies=False)
            target = f"all of {endpoint or 'all endpoints'}"
        async with audit_of(client).noted(action, target, reason):
            await _each(chosen, lambda which: do(client, which), done)

    with_client(connection, f"gangline {action}", work)


async def _letter(client: Client, job: str) -> str | DeadLetter:
    """The letter of a job; if there is none, the text, so that the action fails and is recorded."""
    try:
        return await client.dead_letter(job)
    except (JobError, InvalidRequest):
        return job


async def _each(
    which: Sequence[str | DeadLetter], do: Callable[[str | DeadLetter], Awaitable[object]], done: str
) -> None:
    """A failure does not stop the others. Each is printed; the last one is raised."""
    failed: GanglineError | None = None
    for one in which:
        try:
            await do(one)
            echo(f"{one if isinstance(one, str) else one.title} {done}")
        except (JobError, InvalidRequest) as error:
            if failed is not None:
                echo(f"gangline: {failed.message}", err=True)
            failed = error
    if failed is not None:
        raise failed
