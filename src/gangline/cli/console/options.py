"""Options that many commands share: connection, output, logging."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from .help import SectionedOption
from .output import echo

if TYPE_CHECKING:
    from ...bus.settings.connection import ConnectionSettings
    from ...schemas.names import Names

Command = Callable[..., object]
C = TypeVar("C", bound=Command)


_VARIABLES: Final = {
    "server": "NATS_URL",
    "context": "NATS_CONTEXT",
    "creds": "NATS_CREDS",
    "nkey": "NATS_NKEY",
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "token": "NATS_TOKEN",
    "tlscert": "NATS_CERT",
    "tlskey": "NATS_KEY",
    "tlsca": "NATS_CA",
    "inbox_prefix": "GANGLINE_INBOX_PREFIX",
}
"""Options and their environment variables; nearly all are those of the `nats` CLI."""

_IDENTITY: Final = ("creds", "nkey", "user", "password", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The connection options as given; the environment and the contexts of the `nats` CLI supply the rest."""

    server: str | None = None
    context: str | None = None
    creds: str | None = None
    nkey: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tlscert: str | None = None
    tlskey: str | None = None
    tlsca: str | None = None
    inbox_prefix: str | None = None
    tlsfirst: bool = False
    namespace: str = "gangline"
    debug: bool = False

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment with these options added: for a child process, since anybody can read its arguments.

        Credentials given as an option replace those of the environment, of whatever kind.
        """
        merged = dict(os.environ if environ is None else environ)
        given = {name: value for name in _VARIABLES if (value := getattr(self, name))}
        if any(name in given for name in _IDENTITY):
            for name in _IDENTITY:
                merged.pop(_VARIABLES[name], None)
        merged.update({_VARIABLES[name]: value for name, value in given.items()})
        merged["GANGLINE_NAMESPACE"] = self.namespace
        if self.tlsfirst:
            merged["GANGLINE_TLSFIRST"] = "1"
        return merged

    def settings(self, *, wait_for_server: bool = True) -> ConnectionSettings:
        """The connection settings for the bus.

        Args:
            wait_for_server: whether to keep trying while the server refuses connections, as a service does.

        Raises:
            InvalidSettings: no such context, unreadable files, or conflicting options.
        """
        from ...bus.settings.connection import ConnectionSettings

        more = {"wait_for_server": wait_for_server, **({"tls_first": True} if self.tlsfirst else {})}
        return ConnectionSettings.from_environment(self.environment(), **more)

    def only(self, url: str) -> ConnectionOptions:
        """A connection to that server only; it keeps just the namespace and `debug` of these options."""
        return ConnectionOptions(server=url, namespace=self.namespace, debug=self.debug)

    @property
    def names(self) -> Names:
        from ...schemas.names import Names

        return Names(self.namespace)


def plain_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without any connection settings: for children that use our own embedded server."""
    unwanted = {*_VARIABLES.values(), "GANGLINE_TLSFIRST"}
    return {name: value for name, value in (environ or os.environ).items() if name not in unwanted}


Completer = Callable[[click.Context, click.Parameter, str], list[str]]
"""Names that complete a word."""


def _contexts(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of the contexts of the nats CLI."""
    with contextlib.suppress(Exception):
        from ...bus.settings.connection import context_names

        return [name for name in context_names() if name.startswith(incomplete)]
    return []


def _option(*names: str, metavar: str, text: str, complete: Completer | None = None) -> Callable[[Command], Command]:
    return click.option(*names, cls=SectionedOption, metavar=metavar, help=text, shell_complete=complete)


_CONNECTION: Final[tuple[Callable[[Command], Command], ...]] = (
    _option("-s", "--server", metavar="URL", text="Server, or a comma-separated list (NATS_URL)."),
    _option("--context", metavar="NAME", text="Context of the nats CLI (NATS_CONTEXT).", complete=_contexts),
    _option("--creds", metavar="FILE", text="User credentials (NATS_CREDS)."),
    _option("--nkey", metavar="FILE", text="User NKEY (NATS_NKEY)."),
    _option("--user", metavar="NAME", text="User name (NATS_USER)."),
    _option("--password", metavar="TEXT", text="Password (prefer NATS_PASSWORD)."),
    _option("--token", metavar="TEXT", text="Token (prefer NATS_TOKEN)."),
    _option("--tlscert", metavar="FILE", text="TLS certificate of this client (NATS_CERT)."),
    _option("--tlskey", metavar="FILE", text="Private key of that certificate (NATS_KEY)."),
    _option("--tlsca", metavar="FILE", text="Certificate authorities to trust (NATS_CA)."),
    _option("--inbox-prefix", metavar="TEXT", text="Prefix of reply subjects (GANGLINE_INBOX_PREFIX)."),
    click.option(
        "--tlsfirst",
        cls=SectionedOption,
        is_flag=True,
        envvar="GANGLINE_TLSFIRST",
        help="Do the TLS handshake first (server: handshake_first).",
    ),
    click.option(
        "--namespace",
        cls=SectionedOption,
        envvar="GANGLINE_NAMESPACE",
        default="gangline",
        show_default=True,
        metavar="NAME",
        help="First token of all subjects (GANGLINE_NAMESPACE).",
    ),
    click.option(
        "--debug", cls=SectionedOption, is_flag=True, envvar="GANGLINE_DEBUG", help="Show tracebacks of errors."
    ),
)


def connection_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the connection options; the command gets them as one `connection: Connection`.

    An error that leaves the command is printed as one line and becomes an exit code.
    """
    names = [field.name for field in fields(ConnectionOptions)]

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> object:
        connection = ConnectionOptions(**{name: kwargs.pop(name) for name in names})

        def checked() -> object:
            _ = connection.names  # report an invalid namespace before anything is done
            return command(*args, connection=connection, **kwargs)

        return reporting(checked, connection.debug)()

    decorated: Command = wrapper
    for option in reversed(_CONNECTION):
        decorated = option(decorated)
    return decorated


def reporting(command: Command, debug: bool) -> Command:
    """Run a command; any error is printed as one line on stderr and becomes an exit code."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> object:
        try:
            if debug:
                from ...runtime.tracebacks import all_frames

                with all_frames():
                    return command(*args, **kwargs)
            return command(*args, **kwargs)
        except (click.exceptions.Exit, click.Abort, SystemExit, BrokenPipeError):
            raise
        except click.ClickException as error:
            if debug and error.__cause__ is not None:
                from .exits import report

                raise SystemExit(report(error, debug=True)) from None
            if error.__cause__ is not None:
                from .load import users_traceback

                if told := users_traceback(error):
                    echo(told, err=True)
            raise
        except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
            from .exits import report

            raise SystemExit(report(error, debug=debug)) from None

    return wrapper


def watch_option(command: C) -> C:
    """`--watch` of a list that is read every two seconds."""
    text = "Stay, and read the list every 2 seconds: redraw the table on a terminal, otherwise print each change."
    return click.option("-w", "--watch", is_flag=True, help=text)(command)


def json_option(command: C) -> C:
    """`--json`: passed as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAddress:
    """Where a process answers probes."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: nowhere. 0: a free one."""


def health_options(command: Callable[..., object]) -> Callable[..., object]:
    """`--health-port` and `--health-host`, for commands that keep running; the command gets one `health:
    HealthAddress`."""

    @click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        envvar="GANGLINE_HEALTH_PORT",
        metavar="PORT",
        help="Answer /livez, /readyz and /metrics over HTTP there; 0: on a free port.",
    )
    @click.option(
        "--health-host",
        default="127.0.0.1",
        show_default=True,
        envvar="GANGLINE_HEALTH_HOST",
        metavar="ADDRESS",
        help="Address of the health port; 0.0.0.0 for probes from other machines.",
    )
    @functools.wraps(command)
    def wrapped(*arguments: object, health_port: int | None, health_host: str, **options: object) -> object:
        return command(*arguments, health=HealthAddress(host=health_host, port=health_port), **options)

    return wrapped


def logging_options(command: C) -> C:
    """`--log-level` and `--log-format`, for commands that keep running."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        envvar="GANGLINE_LOG_LEVEL",
        help="Lowest level to log.",
    )
    fmt = click.option(
        "--log-format",
        type=click.Choice(["human", "json"]),
        default="human",
        show_default=True,
        envvar="GANGLINE_LOG_FORMAT",
        help="Text, or one JSON object per line.",
    )
    return level(fmt(command))
