"""Generate the reference pages from the code: errors, settings, commands, the states of a gang.

`python docs/generate.py` writes them, and the synchronous client (see generate_sync.py). Tests check that they are up
to date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import runpy
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import click

from gangline.bus.port import bus as port
from gangline.bus.port import stream as stream_port
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.app import COMMANDS, gangline
from gangline.coordinator.election.election_core import ElectionSettings
from gangline.coordinator.model import gang as states
from gangline.coordinator.settings.scheduling import CoordinatorSettings
from gangline.coordinator.settings.service import ServiceSettings
from gangline.dispatcher.calls.call import CallOptions, SubmitOptions
from gangline.dispatcher.durable.core import task as task_states
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.gangs.gang import GangOptions
from gangline.dispatcher.gateway.gateway import GatewaySettings
from gangline.dispatcher.jobs.storage import TaskStorage
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.catalogue import asyncapi
from gangline.schemas.errors import base as errors
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.limits import MAX_CONTAINERS
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import DEFAULT_USERS, configuration
from gangline.schemas.permissions.roles import Role, permissions
from gangline.worker.ledger.settings import WorkerSettings

REFERENCE = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the code: change it there. -->\n"


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


# -- errors -----------------------------------------------------------------------------------------------------------


def _meanings() -> dict[str, str]:
    """Class name -> its description in the trees of the modules' docstrings."""
    lines = (inspect.getdoc(errors) or "").splitlines()
    found = (re.match(r"[ │├└─]*([A-Z]\w+)(?: {2,}(.*))?$", line) for line in lines)
    return {match[1]: match[2] for match in found if match and match[2]}


def _walk(root: type[GanglineError], depth: int = 0) -> Iterator[tuple[int, type[GanglineError]]]:
    yield depth, root
    # In the order of the source, which does not depend on the order of imports.
    for child in sorted(root.__subclasses__(), key=_place):
        yield from _walk(child, depth + 1)


def _place(cls: type) -> tuple[int, int]:
    modules = [module.__name__ for module in (errors, port, stream_port)]
    return (modules.index(cls.__module__) if cls.__module__ in modules else len(modules), _line(cls))


def _line(cls: type) -> int:
    return inspect.getsourcelines(cls)[1]


def errors_page() -> str:
    meanings = _meanings()
    rows = []
    for depth, cls in _walk(GanglineError):
        if cls.__module__ not in {module.__name__ for module in (errors, port, stream_port)}:
            continue
        meaning = meanings.get(cls.__name__) or (inspect.getdoc(cls) or "").partition("\n\n")[0]
        name = "&nbsp;" * 4 * depth + f"`{cls.__name__}`"
        started = "may have" if cls.may_have_started else "no"
        rows.append(f"| {name} | `{cls.code}` | {cls.status} | {started} | {cell(meaning)} |")
    return "\n".join(
        [
            NOTE,
            "# Errors",
            "",
            "Every error is a `gangline.GanglineError`, and can be imported from `gangline.errors`. Its text says what",
            "to do next; `code` is stable and meant for programs; `status` is the number in",
            "`Nats-Service-Error-Code`; `may_have_started` says whether the",
            "task's side effects may exist (the table has the default; an instance may differ); `details` has",
            "more information. On the wire the body is `{code, message, may_have_started, details}`.",
            "",
            "| class | code | status | started? | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "The exit codes of the command line depend on these: see [commands](cli.md).",
            "",
        ]
    )


# -- settings ---------------------------------------------------------------------------------------------------------


def _field_texts(cls: type) -> dict[str, str]:
    """Field -> the docstring below it in the source."""
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in zip(node.body, node.body[1:], strict=False):
        target = before.targets[0] if isinstance(before, ast.Assign) else getattr(before, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr):
            value = after.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[target.id] = value.value
    return texts


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
        return f"`{value.value!r}`" if hasattr(value, "value") else f"`{value!r}`"
    if field.default_factory is dict:
        return "`{}`"
    return "see text" if field.default_factory is not dataclasses.MISSING else "required"


def _gang_default(name: str) -> str:
    field = AcquireRequest.model_fields.get(name)
    value = None if field is None else field.default
    return f"`{getattr(value, 'value', value)!r}`"


def _settings_section(cls: type, title: str, *, without: str = "") -> list[str]:
    texts = _field_texts(cls)
    if dataclasses.is_dataclass(cls):
        defaults = {field.name: _default(field) for field in dataclasses.fields(cls) if field.init}
    else:
        defaults = {name: _gang_default(name) for name in cls.__annotations__}
    rows = [
        f"| `{name}` | {default} | {cell(texts.get(name, ''))} |"
        for name, default in defaults.items()
        if name != without
    ]
    about = (inspect.getdoc(cls) or "").partition("\n\nRaises:")[0]
    return [f"## {title}", "", about, "", "| setting | default | meaning |", "|---|---|---|", *rows, ""]


def settings_page() -> str:
    return "\n".join(
        [
            NOTE,
            "# Settings",
            "",
            "Settings are frozen and checked when they are created: a value out of bounds raises `InvalidSettings`,",
            "which names the field and the bounds. Times are in seconds (`_s`), sizes in bytes (`_bytes`).",
            "",
            *_settings_section(ConnectionSettings, "Connection: `ConnectionSettings`"),
            *_settings_section(BucketSettings, "Ledger bucket: `BucketSettings`"),
            "From the environment: `GANGLINE_STORAGE` (`memory` or `file`), `GANGLINE_REPLICAS` (1 to 5) and",
            "`GANGLINE_MAX_BYTES` (of each bucket and stream but that of schedules; -1: no limit).",
            "",
            *_settings_section(WorkerSettings, "Worker: `WorkerSettings`"),
            *_settings_section(RouterSettings, "Router, in clients and gateways: `RouterSettings`"),
            *_settings_section(GatewaySettings, "Gateway: `GatewaySettings`"),
            "In the environment of all processes: `GANGLINE_MAX_CONTAINERS`, how many lists and maps the arguments of",
            f"one call or task may have, {MAX_CONTAINERS} if unset. See [limits](protocol.md#limits).",
            "",
            *_settings_section(CallOptions, "Calls: options of `client.options(...)`", without="submit"),
            *_settings_section(GangOptions, "Gangs: options of `client.gang(...)`"),
            *_settings_section(SubmitOptions, "Submitted tasks: options of `client.options(...).submit`"),
            *_settings_section(DispatcherSettings, "Dispatcher of submitted tasks: `DispatcherSettings`"),
            *_settings_section(TaskStorage, "Streams and buckets of submitted tasks: `TaskStorage`"),
            "From the environment: `GANGLINE_STORAGE` and `GANGLINE_REPLICAS`, as for the ledger; but `file` if unset.",
            "",
            *_settings_section(CoordinatorSettings, "Coordinator, decisions about gangs: `CoordinatorSettings`"),
            *_settings_section(ElectionSettings, "Coordinator, leader election: `ElectionSettings`"),
            *_settings_section(ServiceSettings, "Coordinator, process: `ServiceSettings`"),
        ]
    )


# -- commands ---------------------------------------------------------------------------------------------------------


def _option_row(context: click.Context, option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" `{cell(option.make_metavar(context))}`"
    variable = option.envvar if isinstance(option.envvar, str) else ", ".join(option.envvar or ())
    default = option.default if isinstance(option.default, str | int | float) and not option.is_flag else ""
    shown = [f"`{variable}`" if variable else "", f"`{default}`" if default != "" else ""]
    return f"| {names}{metavar} | {shown[0]} | {shown[1]} | {cell(option.help or '')} |"


def _command_section(name: str, shared: set[str]) -> list[str]:
    command = gangline.get_command(click.Context(gangline), name)
    assert command is not None
    lines = _section(command, name, "##", shared, COMMANDS[name])
    if isinstance(command, click.Group):
        for child, subcommand in command.commands.items():
            lines += _section(subcommand, f"{name} {child}", "###", shared, "")
    return lines


def _section(command: click.Command, name: str, heading: str, shared: set[str], about: str) -> list[str]:
    context = click.Context(command, info_name=f"gangline {name}")
    usage = command.get_usage(context).removeprefix("Usage: ")
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in shared and not option.hidden
    ]
    lines = [
        f"{heading} {name}",
        "",
        "```",
        " ".join(usage.split()),
        "```",
        "",
        inspect.cleandoc(command.help or about),
        "",
    ]
    if options:
        head = ["| option | environment | default | meaning |", "|---|---|---|---|"]
        lines += [*head, *(_option_row(context, option) for option in options), ""]
    return [line.replace("\b", "").replace("\f", "") for line in lines]


def cli_page() -> str:
    loaded = {name: gangline.get_command(click.Context(gangline), name) for name in COMMANDS}
    options = [
        {param.name for param in command.params if isinstance(param, click.Option) and param.name}
        for name, command in loaded.items()
        if command is not None and name in ("workers", "leases", "drain", "resize", "call")
    ]
    connecting = set.intersection(*options) - {"help", "as_json", "debug"}
    workers = loaded["workers"]
    assert workers is not None
    context = click.Context(workers)
    rows = [
        _option_row(context, param)
        for param in workers.params
        if isinstance(param, click.Option) and param.name in connecting
    ]
    sections = [line for name in COMMANDS for line in _command_section(name, connecting)]
    return "\n".join(
        [
            NOTE,
            "# Commands",
            "",
            "Tables are for people, `--json` is for programs. Errors are one line on stderr and say what to do next.",
            "",
            "| exit code | meaning |",
            "|---|---|",
            "| 0 | done |",
            "| 1 | the task or the operation failed |",
            "| 2 | the request itself is wrong: usage, names, arguments |",
            "| 3 | unavailable, nothing started: no server, no workers, all full |",
            "| 4 | the outcome is unknown, the task may have run |",
            "| 130 | interrupted |",
            "",
            "## Connection options",
            "",
            "All commands that connect to a server have these options.",
            "",
            "| option | environment | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
            *sections,
        ]
    )


# -- gangs ------------------------------------------------------------------------------------------------------------


def gang_states_page() -> str:
    texts = _field_texts(states.GangStep)
    rows = [f"| `{step.value}` | {cell(texts.get(step.name, ''))} |" for step in states.GangStep]
    return "\n".join(
        [
            NOTE,
            "# States of a gang",
            "",
            "The steps of a gang, as shown by `step` in answers and in `gangline gang ls`. The diagram is generated",
            "from the table of transitions; steps change in no other way.",
            "",
            "```mermaid",
            states.states_diagram().rstrip(),
            "```",
            "",
            "| step | meaning |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def asyncapi_document() -> str:
    return asyncapi.text(metadata.version("gangline"))


# -- permissions ------------------------------------------------------------------------------------------------------


def permissions_page() -> str:
    lines = [
        NOTE,
        "# Permissions",
        "",
        "The subjects that each role may publish and subscribe to in the namespace `gangline`; everything else is",
        "refused. Each user may also subscribe to its own inbox, `_INBOX.<user>.>`. `gangline roles` writes this",
        "as server configuration, limited to pools and workers; [permissions](../how-to/permissions.md) says how to",
        "use it.",
    ]
    texts = _field_texts(Role)
    for role in Role:
        # Show a placeholder where a user can be limited; a limited producer may do less, so show the unlimited one.
        allowed = permissions(role, Names(), pool="*" if role is Role.PRODUCER else "<pool>", worker="<worker>")
        lines += ["", f"## {role.value.capitalize()}", ""]
        if text := texts.get(role.name):
            lines += [text, ""]
        lines += ["| publish | subscribe |", "|---|---|"]
        rows = itertools.zip_longest(allowed.publish, allowed.subscribe)
        lines += [f"| {_code(published)} | {_code(heard)} |" for published, heard in rows]
        if allowed.answers_s:
            lines += ["", f"In addition, one answer to each request within {allowed.answers_s} s (`allow_responses`)."]
    return "\n".join([*lines, ""])


def _code(subject: str | None) -> str:
    subject, _, queue = (subject or "").partition(" ")
    return f"`{subject}`" * bool(subject) + f", queue group `{queue}`" * bool(queue)


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "gang-states.md": gang_states_page,
    "permissions.md": permissions_page,
    "asyncapi.json": asyncapi_document,
}
ROLES = REFERENCE.parent.parent / "deploy" / "roles.conf"


EXPLAINED = REFERENCE.parent / "explanation" / "gangs.md"
EXPLAINED_TASKS = REFERENCE.parent / "explanation" / "durable-tasks.md"


def with_diagram(page: str) -> str:
    """The page on gangs, with the current diagram of states between its two marks."""
    return _between_marks(page, "diagram", states.states_diagram())


def with_task_diagram(page: str) -> str:
    """The page on durable tasks, with the current diagram of states."""
    return _between_marks(page, "diagram of tasks", task_states.states_diagram())


def _between_marks(page: str, what: str, diagram: str) -> str:
    before, begin, rest = page.partition(f"<!-- {what}: written by docs/generate.py -->\n")
    _, end, after = rest.partition(f"<!-- end of {what} -->\n")
    assert begin and end, "the marks are missing"
    return f"{before}{begin}\n```mermaid\n{diagram}```\n\n{end}{after}"


def main() -> None:
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
    ROLES.write_text(configuration(Names(), DEFAULT_USERS))
    EXPLAINED.write_text(with_diagram(EXPLAINED.read_text()))
    EXPLAINED_TASKS.write_text(with_task_diagram(EXPLAINED_TASKS.read_text()))
    runpy.run_path(str(REFERENCE.parent / "generate_sync.py"), run_name="__main__")


if __name__ == "__main__":
    main()
