"""`gangline schedules ls|show|pause|resume|rm`"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import click

from ...console.arguments import reason_option
from ...console.completion import endpoints, schedules
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....dispatcher.jobs.stored import Schedule

_schedule_argument = click.argument("schedule", metavar="SCHEDULE", shell_complete=schedules)


@click.group(short_help="List, pause, resume and remove recurring tasks.")
def command() -> None:
    """Schedules: recurring tasks. The server keeps them, and each run is a job of its own.

    'gangline submit --cron' declares one. SCHEDULE is its name (the --idempotency-key that it was submitted with), its
    id, or the beginning of the id. Names are per endpoint: ENDPOINT.NAME tells two of the same name apart.
    """


@command.command(short_help="List schedules and their next runs.")
@click.option("--endpoint", metavar="NAME", help="Show only schedules of this endpoint.", shell_complete=endpoints)
@json_option
@connection_options
def ls(connection: ConnectionOptions, endpoint: str | None, as_json: bool) -> None:
    """List schedules and their next runs, paused ones included.

    A schedule appears when a dispatcher has taken its task.
    """
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.schedules import schedule_json, schedules_table

    found = with_client(connection, "gangline schedules", lambda client: client.schedules(endpoint))
    empty = "no schedules: 'gangline submit --cron' declares one"
    print_rows(found, as_json, table=schedules_table, empty=empty, to_json=schedule_json)


@command.command(short_help="Show one schedule, with its arguments and next runs.")
@_schedule_argument
@json_option
@connection_options
def show(connection: ConnectionOptions, schedule: str, as_json: bool) -> None:
    """Show one schedule, with its arguments and next runs."""
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.schedules import schedule_json, schedule_lines

    found = with_client(connection, "gangline schedules", lambda client: client.schedule(schedule))
    print_lines(schedule_json(found), schedule_lines(found), as_json)


@command.command(short_help="Pause a schedule: no further runs until it is resumed.")
@_schedule_argument
@reason_option
@json_option
@connection_options
def pause(connection: ConnectionOptions, schedule: str, reason: str, as_json: bool) -> None:
    """Pause a schedule: no further runs until it is resumed, also if a program declares it again. Runs that have begun
    continue."""
    _change(connection, "pause", schedule, reason, as_json, "is paused", lambda client: client.pause_schedule(schedule))


@command.command(short_help="Resume a paused schedule.")
@_schedule_argument
@reason_option
@json_option
@connection_options
def resume(connection: ConnectionOptions, schedule: str, reason: str, as_json: bool) -> None:
    """Resume a paused schedule. Runs that it missed are not made up for."""
    _change(
        connection, "resume", schedule, reason, as_json, "is resumed", lambda client: client.resume_schedule(schedule)
    )


@command.command(short_help="Remove a schedule.")
@_schedule_argument
@reason_option
@json_option
@connection_options
def rm(connection: ConnectionOptions, schedule: str, reason: str, as_json: bool) -> None:
    """Remove a schedule. Runs that have begun continue.

    One that a task declares with cron= comes back within seconds: a dispatcher stores it again. To stop it, use
    'gangline schedules pause', or remove cron=.
    """
    _change(connection, "rm", schedule, reason, as_json, "is removed", lambda client: client.delete_schedule(schedule))


def _change(
    connection: ConnectionOptions,
    action: str,
    which: str,
    reason: str,
    as_json: bool,
    told: str,
    change: Callable[[Client], Coroutine[object, object, Schedule]],
) -> None:
    from ...console.output import print_lines
    from ...console.session import as_operator
    from ...views.schedules import COMES_BACK, next_run, schedule_json, title

    found = as_operator(connection, f"schedules {action}", which, reason, change)
    more = f": next run {next_run(found)}" if action == "resume" else ""
    if action == "rm" and found.in_code:
        more = f". But {COMES_BACK}"
    print_lines(schedule_json(found), [f"{title(found)} {told}{more}"], as_json)
