"""Errors as one line on stderr, and as exit codes."""

from __future__ import annotations

import traceback
from enum import IntEnum
from typing import Final

import click

from ...schemas.errors.base import (
    DeadlineExceeded,
    GangImpossible,
    GanglineError,
    InvalidRequest,
    JobDead,
    JobError,
    LeaseError,
    NoWorkers,
    ServerUnreachable,
    TaskError,
    TaskFailed,
    Unavailable,
    WorkerUnhealthy,
)
from .load import users_traceback
from .output import echo

NEAR: Final = "near"
"""Among an error's details: the pool or worker that was perhaps meant."""


class Exit(IntEnum):
    """Meaning of the exit codes of all commands."""

    OK = 0
    FAILED = 1
    """The task raised, crashed or was cancelled; or the operation was refused."""
    USAGE = 2
    """The request itself is wrong; repeating it does not help."""
    UNAVAILABLE = 3
    """Nothing started; repeating it may succeed later."""
    UNKNOWN = 4
    """No answer; the task may have run."""
    INTERRUPTED = 130


refusals: list[str] = []
"""What the server forbade while the command ran, in the words of the log. They are shown only if the command fails
without naming one itself."""


def exit_code_of(error: BaseException) -> Exit:
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case InvalidRequest() | click.ClickException():
            return Exit.USAGE
        case TaskError() | LeaseError() | JobError() | WorkerUnhealthy():
            return Exit.FAILED
        case GanglineError() if error.may_have_started:
            return Exit.UNKNOWN
        case Unavailable() | DeadlineExceeded():
            return Exit.UNAVAILABLE
        case _:
            return Exit.FAILED


def next_step(error: BaseException, *, debug: bool = False) -> str:
    """What to do next, if the error's own text does not say it. `debug`: tracebacks were shown."""
    match error:
        case NoWorkers() | GangImpossible() if NEAR in error.details:
            return f"did you mean {error.details[NEAR]!r}?"
        case ServerUnreachable() if str(error).startswith("cannot connect"):
            return "'gangline dev MODULE:POOL' starts one, --server and --context name yours"
        case NoWorkers() if "gangline workers" not in str(error):
            return "'gangline worker MODULE:POOL' starts one, 'gangline workers' shows who serves"
        case JobDead():
            return f"'gangline dead show {error.details.get('job', 'JOB')}' shows details, 'dead replay' retries it"
        case TaskFailed() if error.remote_traceback and not debug:
            return "--debug shows the task's traceback"
        case _:
            return ""


def one_line(error: BaseException, *, debug: bool = False) -> str:
    """The error as one line: what is wrong, and what to do next. `debug`: tracebacks were shown."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, TaskFailed) and error.remote_type and error.remote_type not in text:
        text = f"{error.remote_type}: {text}"
    elif not isinstance(error, GanglineError | click.ClickException | OSError):
        text = f"{type(error).__name__}: {text}"
    step = next_step(error, debug=debug)
    return f"{text.rstrip('.')} ({step})" if step else text


def report(error: BaseException, *, debug: bool) -> Exit:
    """Print the error to stderr, after the traceback of the user's code if it comes from there; return the exit
    code."""
    if debug:
        if isinstance(error, TaskFailed) and error.remote_traceback:
            echo(error.remote_traceback.rstrip(), err=True)
        echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    elif told := users_traceback(error):
        echo(told, err=True)
    if getattr(error, "code", "") != "not_permitted":
        for line in dict.fromkeys(refusals):
            echo(line, err=True)
    echo(f"gangline: {one_line(error, debug=debug)}", err=True)
    return exit_code_of(error)
