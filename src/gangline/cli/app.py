"""The command group. Command modules are imported only when their command runs, so that `--help` is fast.

At their top, command modules import only click and the light modules of this folder. Modules that import the bus,
pydantic or rich are imported inside functions. A test enforces this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, Final

import click

from .console.help import check_command, in_sections
from .console.output import echo

SECTIONS: Final = {
    "Start": {
        "init": "Write a new project: a pool, its test, a Dockerfile and a compose file.",
        "dev": "Run a NATS server, everything else and your worker in one terminal; reload on change.",
        "demo": "Run a real workload with faults, and check it. Takes under a minute.",
        "bench": "Measure speed on this machine, against raw NATS. Takes under a minute.",
    },
    "Serve": {
        "worker": "Serve a pool's tasks with this process's slots.",
        "gateway": "Answer plain NATS requests on gangline.call.> from any language.",
        "coordinator": "Grant gangs: slots over many workers, all or nothing. Run two, one stands by.",
        "dispatcher": "Run durable tasks: retries, priorities, limits, dead letters. Run two.",
    },
    "Tasks": {
        "call": "Run one task and print its result.",
        "submit": "Submit a durable task: it runs now or later, even if this process exits.",
        "result": "Wait for the result of a submitted task and print it.",
        "status": "Show the state of a submitted task.",
        "cancel": "Cancel submitted tasks, queued or running.",
        "jobs": "List jobs: waiting, running and ended ones.",
        "schedules": "List, pause, resume and remove recurring tasks.",
        "queue": "Show queues of submitted tasks: depth, oldest, running, idle slots.",
        "dead": "Read, replay or remove dead letters: tasks that will not be retried.",
    },
    "Gangs": {
        "gang": "List, acquire, remove and follow gangs.",
        "gangset": "Declare, scale, roll back and remove sets of standing gangs.",
    },
    "Operate": {
        "console": "Show slots, waits, gangs, queues and dead letters in a browser.",
        "top": "Watch slots, and what waits and why, in the terminal.",
        "workers": "List workers: what they serve and how busy they are.",
        "leases": "List leases: who holds which slots.",
        "stats": "Show one worker's slots, leases and counters.",
        "drain": "Drain workers: they finish their work and exit.",
        "resize": "Change a worker's number of slots while it runs.",
        "route": "Split, mirror, limit or pause an endpoint's traffic.",
        "why": "Explain what a gang or a submitted task is waiting for.",
        "when": "Estimate when a gang or a submitted task can start, and show what it depends on.",
        "audit": "List what operators did: who, when, what and why.",
        "history": "Show what happened: leases, gangs, jobs, drains, leaders, routes, operators.",
        "health": "Check that a process on this machine, or one worker, answers; for probes.",
    },
    "Generate": {
        "stubs": "Write a Python module of typed handles to a pool's tasks.",
        "asyncapi": "Describe the tasks of pools as AsyncAPI 3.0, with the schemas of their bodies.",
        "roles": "Write users and permissions for a nats-server, as configuration to include.",
        "completion": "Print the completion script of a shell: bash, zsh or fish.",
    },
}
"""Sections of `gangline --help`, with the name and the help line of each command."""
COMMANDS: Final = {name: text for commands in SECTIONS.values() for name, text in commands.items()}
"""Each is a module below `commands` with a `command`."""

_ROOMS: Final = {
    "tasks": ("call", "submit", "status", "result", "cancel", "jobs"),
    "pools": ("workers", "leases", "stats", "drain", "resize", "why", "when", "health", "top"),
    "gangs": ("gang", "gangset"),
    "routes": ("route",),
    "queues": ("queue", "schedules", "dead"),
    "serve": ("worker", "gateway", "coordinator", "dispatcher"),
    "tools": (
        "init",
        "dev",
        "demo",
        "bench",
        "roles",
        "audit",
        "history",
        "stubs",
        "asyncapi",
        "completion",
        "console",
    ),
}
_MODULES: Final = {name: f".commands.{room}.{name}" for room, names in _ROOMS.items() for name in names}


class OneLine(click.ClickException):
    """A usage error in one line: what is wrong, and what to do next."""

    def __init__(self, error: click.ClickException) -> None:
        message = error.format_message().rstrip(".")
        if isinstance(error, click.UsageError) and error.ctx is not None and "--help" not in message:
            message = f"{message} ('{error.ctx.command_path} --help' shows how)"
        super().__init__(message)

    def show(self, file: IO[Any] | None = None) -> None:
        echo(f"gangline: {self.message}", err=True, file=file)


class OneLineUsage(OneLine):
    """The same for an error in the request itself."""

    exit_code = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    try:
        yield
    except OneLine:
        raise
    except click.exceptions.NoArgsIsHelpError:
        raise
    except KeyboardInterrupt:
        # Ctrl-C while a command is imported. click would print "Aborted!" and exit with 1.
        echo("gangline: interrupted", err=True)
        raise SystemExit(130) from None
    except click.ClickException as error:
        raise (OneLineUsage if error.exit_code == 2 else OneLine)(error) from error


class LazyGroup(click.Group):
    """Finds commands by name in `COMMANDS` and imports only the requested one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if os.environ.get("NO_COLOR"):  # https://no-color.org; click does not know it
            extra.setdefault("color", False)
        with one_line_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(_MODULES[cmd_name], __package__).command
        if not isinstance(command, click.Command):
            raise TypeError(f"commands.{cmd_name}.command is not a click command")
        return in_sections(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_command(ctx, args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


_EPILOG: Final = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage or arguments, 3 unavailable (nothing started),
4 outcome unknown (the task may have run), 130 interrupted.
Connections are configured like those of the nats CLI: --server or NATS_URL, --context or NATS_CONTEXT, ...
"""


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        echo(f"gangline {version('gangline')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def gangline() -> None:
    """Dispatch tasks over NATS to workers with a limited number of slots.

    Start with `gangline demo`, or with a pool of your own: `gangline dev MODULE:POOL`.
    """
