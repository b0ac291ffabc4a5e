"""How help is laid out, and what is said about a command that does not exist.

A command's own options come first, those of the connection in a section of their own. A command that was renamed is
hidden from help, works for one more release, and says its new name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ...schemas.text import nearest_name
from .output import echo


class SectionedOption(click.Option):
    """An option that is shown in a section of its own: one of the connection."""


class SectionedCommand(click.Command):
    """Shows its own options before those of the connection."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        connection: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                (connection if isinstance(parameter, SectionedOption) else own).append(record)
        for title, records in (("Options", own), ("Connection, as for the nats CLI", connection)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class SuggestingGroup(click.Group):
    """Says which command was perhaps meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_command(ctx, args[0], [name for name, command in self.commands.items() if not command.hidden], self)
        return super().resolve_command(ctx, args)


class RenamedCommand(SectionedCommand):
    """A command under its old name."""

    new_name = ""

    def invoke(self, ctx: click.Context) -> Any:
        group = ctx.parent.command_path if ctx.parent is not None else ""
        echo(f"'{group} {ctx.info_name}' is now '{group} {self.new_name}'; the old name goes soon", err=True)
        return super().invoke(ctx)


def renamed(group: click.Group, old: str, command: click.Command) -> None:
    """Let a command of a group be called by its old name, too."""
    assert command.name is not None
    alias = RenamedCommand(
        old,
        context_settings=dict(command.context_settings),
        callback=command.callback,
        params=command.params,
        help=command.help,
        epilog=command.epilog,
        short_help=command.short_help,
        hidden=True,
    )
    alias.new_name = command.name
    group.add_command(alias, old)


def in_sections(command: click.Command) -> click.Command:
    """The same command, or group of commands, with help in sections."""
    if isinstance(command, click.Group):
        if type(command) is click.Group:
            command.__class__ = SuggestingGroup
        for inner in command.commands.values():
            in_sections(inner)
    elif type(command) is click.Command:
        command.__class__ = SectionedCommand
    return command


def check_command(ctx: click.Context, name: str, known: Iterable[str], group: click.Group | None = None) -> None:
    """
    Raises:
        UsageError: there is no such command; says which one was perhaps meant.
    """
    known = list(known)
    if name in known or name.startswith("-") or ctx.resilient_parsing:
        return
    if group is not None and name in group.commands:
        return
    close = nearest_name(name, known)
    hint = f"did you mean {close!r}?" if close else f"'{ctx.command_path} --help' lists them"
    raise click.UsageError(f"there is no command {name!r}: {hint}", ctx)
