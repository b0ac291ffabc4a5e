"""`gangline dead ls|show|replay|drop`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..arguments import job_argument
from ..options import Connection, connection_options, json_option

if TYPE_CHECKING:
    from ...dispatcher.dead_letters import DeadLetter

_ENDPOINT = click.option("--endpoint", metavar="NAME", help="Only its letters.")


@click.group(short_help="Dead letters: tasks that will not be tried again. Read, replay, drop.")
def command() -> None:
    """Dead letters: tasks that will not be tried again, each with its reason, for thirty days.

    They failed at their last attempt, passed their deadline, or could not be understood at all.
    """


@command.command(short_help="All of them.")
@_ENDPOINT
@click.option("-n", "--limit", type=click.IntRange(1), default=1000, show_default=True, help="The newest so many.")
@json_option
@connection_options
def ls(connection: Connection, endpoint: str | None, limit: int, as_json: bool) -> None:
    """All dead letters, oldest first."""
    from ..output import console, print_json
    from ..session import run

    letters = run(_read(connection, endpoint, limit))
    if as_json:
        from ..job_tables import letter_json

        print_json([letter_json(letter) for letter in letters])
    elif not letters:
        click.echo("no dead letters", err=True)
    else:
        from ..job_tables import letters_table

        console().print(letters_table(letters))


@command.command(short_help="One of them, with arguments and traceback.")
@job_argument
@json_option
@connection_options
def show(connection: Connection, job: str, as_json: bool) -> None:
    """One dead letter: reason, attempts, arguments, last error with its traceback, trace."""
    from ..job_tables import letter_json, letter_lines
    from ..output import print_json
    from ..session import run

    letter = run(_find(connection, job))
    if as_json:
        print_json(letter_json(letter))
        return
    for line in letter_lines(letter):
        click.echo(line)


def _jobs(ctx: click.Context, jobs: tuple[str, ...], everything: bool, endpoint: str | None) -> None:
    if bool(jobs) == everything:
        raise click.UsageError("name the jobs, or give --all", ctx)
    if endpoint is not None and not everything:
        raise click.UsageError("--endpoint goes with --all", ctx)


@command.command(short_help="Submit them anew.")
@click.argument("jobs", metavar="JOB...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_ENDPOINT
@connection_options
@click.pass_context
def replay(
    ctx: click.Context, connection: Connection, jobs: tuple[str, ...], everything: bool, endpoint: str | None
) -> None:
    """Submit dead letters anew, as the same jobs, with all their attempts before them."""
    from ..session import run

    _jobs(ctx, jobs, everything, endpoint)
    run(_replay(connection, jobs, endpoint))


@command.command(short_help="Throw them away.")
@click.argument("jobs", metavar="JOB...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_ENDPOINT
@connection_options
@click.pass_context
def drop(
    ctx: click.Context, connection: Connection, jobs: tuple[str, ...], everything: bool, endpoint: str | None
) -> None:
    """Throw dead letters away."""
    from ..session import run

    _jobs(ctx, jobs, everything, endpoint)
    run(_drop(connection, jobs, endpoint))


async def _read(connection: Connection, endpoint: str | None, limit: int) -> list[DeadLetter]:
    from ..session import open_client

    async with open_client(connection, "gangline dead") as client:
        return await client.dead_letters(endpoint, limit=limit)


async def _find(connection: Connection, job: str) -> DeadLetter:
    from ..session import open_client

    async with open_client(connection, "gangline dead") as client:
        return await client.dead_letter(job)


async def _replay(connection: Connection, jobs: tuple[str, ...], endpoint: str | None) -> None:
    from ..session import open_client

    async with open_client(connection, "gangline dead") as client:
        for job in jobs or [letter.job for letter in await client.dead_letters(endpoint)]:
            again = await client.replay(job)
            click.echo(f"{again.id} is queued again")


async def _drop(connection: Connection, jobs: tuple[str, ...], endpoint: str | None) -> None:
    from ..session import open_client

    async with open_client(connection, "gangline dead") as client:
        for job in jobs or [letter.job for letter in await client.dead_letters(endpoint)]:
            await client.drop(job)
            click.echo(f"{job} is dropped")
