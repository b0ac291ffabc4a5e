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
from gangline.bus.port.subjects import SubjectPattern
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.cli.app import COMMANDS, gangline
from gangline.coordinator.election.election_core import ElectionSettings
from gangline.coordinator.model import gang as states
from gangline.coordinator.settings.settings import CoordinatorSettings, ServiceSettings
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
from gangline.schemas.permissions.nats_config import DEFAULT_USERS, configuration, imports_of, parse_user
from gangline.schemas.permissions.quotas import Quota
from gangline.schemas.permissions.roles import Role, User, permissions
from gangline.telemetry.metrics.catalogue import ATTRIBUTES, METRICS
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
    order = _classes()
    for child in sorted(root.__subclasses__(), key=lambda cls: order.get(cls, len(order))):
        yield from _walk(child, depth + 1)


def _classes() -> dict[object, int]:
    """Class -> its place in the source."""
    found: dict[object, int] = {}
    for module in (errors, port, stream_port):
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__ in (module.__name__, GanglineError.__module__):
                found.setdefault(each, len(found))
    return found


def errors_page() -> str:
    meanings, documented = _meanings(), _classes()
    rows = []
    for depth, cls in _walk(GanglineError):
        if cls not in documented:
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
            "`GANGLINE_MAX_BYTES`, of each bucket and stream but that of schedules. -1 reserves no fixed size: see",
            "[Give the server enough storage](../how-to/run-in-production.md#give-the-server-enough-storage).",
            "",
            *_settings_section(WorkerSettings, "Worker: `WorkerSettings`"),
            *_settings_section(RouterSettings, "Router, in clients and gateways: `RouterSettings`"),
            *_settings_section(GatewaySettings, "Gateway: `GatewaySettings`"),
            *_settings_section(Quota, "A tenant, in coordinators and gateways: `Quota`"),
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
            *_settings_section(HistorySettings, "The history: `HistorySettings`"),
            "From the environment: `GANGLINE_HISTORY` (`on` or `off`), `GANGLINE_HISTORY_MAX_AGE` (such as `7d`) and",
            "`GANGLINE_HISTORY_MAX_BYTES`; storage as for other streams. All processes should have the same.",
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
        inspect.cleandoc(command.help or about).replace("][", "]\\["),
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
        *_matrix(),
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


# Operation -> a subject that it needs, to publish unless it begins with a plus sign. `images` is a pool and an
# endpoint, `w1` one of its workers, `j` a job. Tests try each of them as each role and from a tenant.
OPERATIONS = {
    "call an endpoint through a gateway": "gangline.call.images.double",
    "call another endpoint": "gangline.call.video.play",
    "ask for the items of a streamed call": "gangline.stream.g.s",
    "submit a task": "gangline.task.images.double",
    "submit to another endpoint": "gangline.task.video.play",
    "ask for a job's status": "gangline.queue.images.get",
    "cancel a job": "gangline.queue.images.cancel",
    "cancel a job of another endpoint": "gangline.queue.video.cancel",
    "read a stored result": "$JS.API.STREAM.MSG.GET.KV_GANGLINE_RESULTS",
    "read waiting tasks": "$JS.API.STREAM.MSG.GET.GANGLINE_TASKS",
    "hear results": "+$KV.GANGLINE_RESULTS.result.images.j",
    "hear results of another endpoint": "+$KV.GANGLINE_RESULTS.result.video.j",
    "follow a job": "+gangline.job.images.j.state",
    "follow a job of another endpoint": "+gangline.job.video.j.state",
    "answer calls": "+gangline.call.images.double gangline-gateway",
    "hear all calls": "+gangline.call.images.double",
    "answer queue requests": "+gangline.queue.images.get",
    "take tasks": "$JS.API.CONSUMER.MSG.NEXT.GANGLINE_TASKS.q",
    "acknowledge tasks": "$JS.ACK.GANGLINE_TASKS.q.1.1.1.1.0",
    "delete a task": "$JS.API.STREAM.MSG.DELETE.GANGLINE_TASKS",
    "write a result": "$KV.GANGLINE_RESULTS.result.images.j",
    "write a dead letter": "gangline.dead.images.double",
    "write a schedule": "gangline.sched.images.j",
    "write a job's state": "gangline.job.images.j.state",
    "write a job's progress": "gangline.job.images.j.progress",
    "call a worker": "gangline.worker.images.w1.frames",
    "call a worker on its channel": "_GANGLINE.gangline.worker.images.w1.x.frames",
    "lease a worker's slots": "gangline.worker.images.w1.reserve",
    "run a task on a lease or a gang's member": "gangline.worker.images.w1.dispatch",
    "hold a worker's slots for a gang": "gangline.worker.images.w1.hold",
    "drain a worker": "gangline.worker.images.w1.drain",
    "resize a worker": "gangline.worker.images.w1.resize",
    "ask a worker for its statistics": "gangline.worker.images.w1.stats",
    "answer as the worker": "+gangline.worker.images.w1.frames",
    "answer as another worker": "+gangline.worker.images.w2.frames",
    "hear a worker's channel": "+_GANGLINE.gangline.worker.images.w1.x.frames",
    "register the worker": "$KV.GANGLINE_LEDGER.reg.images.w1",
    "register as another worker": "$KV.GANGLINE_LEDGER.reg.images.w2",
    "write the worker's leases": "$KV.GANGLINE_LEDGER.lease.images.w1.t",
    "read the ledger": "$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER",
    "watch the ledger": "$JS.API.CONSUMER.CREATE.KV_GANGLINE_LEDGER.c",
    "create the ledger": "$JS.API.STREAM.CREATE.KV_GANGLINE_LEDGER",
    "hear leases come and go": "+$KV.GANGLINE_LEDGER.lease.images.w1.t",
    "hear which workers are alive": "+$KV.GANGLINE_LEDGER.alive.images.w1",
    "request a gang": "gangline.gang.acquire",
    "ask why a gang waits": "gangline.gang.why",
    "end anybody's gang": "gangline.gang.end",
    "report of a gang's member": "gangline.gang.report.images.w1",
    "report of another worker's member": "gangline.gang.report.images.w2",
    "answer requests for gangs": "+gangline.gang.acquire",
    "write gangs": "$KV.GANGLINE_LEDGER.gang.g",
    "be the leader": "$KV.GANGLINE_LEDGER.leader",
    "talk as a gang's member": "gangline.gang-talk.g.1.1.0",
    "set a route": "$KV.GANGLINE_ROUTES.images",
    "write the worker's history": "gangline-history.worker.images.w1",
    "write a coordinator's history": "gangline-history.coordinator.c",
    "read the history": "$JS.API.STREAM.MSG.GET.GANGLINE_HISTORY",
    "read the audit trail": "$JS.API.STREAM.MSG.GET.GANGLINE_AUDIT",
    "answer to a router's inbox": "_INBOX.router.r.1",
    "answer to anybody's inbox": "_INBOX.somebody.r.1",
    "hear others' inboxes": "+_INBOX.somebody.r.1",
    "delete a stream": "$JS.API.STREAM.DELETE.GANGLINE_TASKS",
    "purge the queue": "$JS.API.STREAM.PURGE.GANGLINE_TASKS",
    "purge the ledger": "$JS.API.STREAM.PURGE.KV_GANGLINE_LEDGER",
    "purge the routes": "$JS.API.STREAM.PURGE.KV_GANGLINE_ROUTES",
    "change a stream": "$JS.API.STREAM.UPDATE.GANGLINE_TASKS",
    "create any stream": "$JS.API.STREAM.CREATE.ANYTHING",
}
MATRIX_USERS = (*(role.value for role in Role if role is not Role.WORKER), "worker=worker:images.w1")
TENANTS = ("web@shop=producer:images", "batch@lab=owner:images", "gpu@gpus=worker:images.w1")
"""One of each role that a tenant's user may have, each in an account of its own."""


def matrix_users() -> list[User]:
    return [parse_user(text) for text in (*MATRIX_USERS, *TENANTS)]


def allows(user: User, subject: str) -> bool:
    """Whether a user's lists have the subject, written as in OPERATIONS, and its account reaches Gangline's with it."""
    if user.tenant:
        kind, name = ("stream", subject[1:]) if subject.startswith("+") else ("service", subject)
        reached = (each.local for each in imports_of([user], Names(), matrix_users()) if each.kind == kind)
        if not any(SubjectPattern(pattern).matches(name.partition(" ")[0]) for pattern in reached):
            return False
    return lists(user, subject)


def lists(user: User, subject: str) -> bool:
    """Whether a user's lists have the subject, written as in OPERATIONS."""
    allowed = user.permissions(Names())
    if not subject.startswith("+"):
        return any(SubjectPattern(pattern).matches(subject) for pattern in allowed.publish)
    subject, _, queue = subject[1:].partition(" ")
    patterns = (pattern.partition(" ") for pattern in allowed.subscribe)
    return any(SubjectPattern(pattern).matches(subject) and group in ("", queue) for pattern, _, group in patterns)


def _matrix() -> list[str]:
    users = matrix_users()
    columns = [f"{user.roles[0]} of a tenant" if user.tenant else user.name for user in users]
    lines = [
        "",
        "## Who may do what",
        "",
        "Each operation with one subject that it needs, for the users of",
        "",
        "```console",
        f"$ gangline roles {' '.join((*MATRIX_USERS, *TENANTS))}",
        "```",
        "",
        "The last columns are users of tenants. They show everything that can be reached from the tenants' accounts,",
        "regardless of the user's own permissions. Tests check every cell on a server.",
        "",
        f"| operation | subject |{''.join(f' {column} |' for column in columns)}",
        "|---|---|" + ":-:|" * len(users),
    ]
    for operation, subject in OPERATIONS.items():
        cells = "".join(" yes |" if allows(user, subject) else "  |" for user in users)
        lines.append(f"| {operation} | {'hear ' * (subject[0] == '+')}{_code(subject.removeprefix('+'))} |{cells}")
    return lines


def _code(subject: str | None) -> str:
    subject, _, queue = (subject or "").partition(" ")
    return f"`{subject}`" * bool(subject) + f", queue group `{queue}`" * bool(queue)


# -- metrics ----------------------------------------------------------------------------------------------------------

KINDS = {
    "counter": "counter: only grows",
    "level": "goes up and down",
    "gauge": "read at each collection",
    "histogram": "histogram",
}


def metrics_page() -> str:
    lines = [
        NOTE,
        "# Metrics",
        "",
        "All metrics of Gangline's processes, by OpenTelemetry's names and by those in Prometheus.",
        "[Observe](../how-to/observe.md) says how to export them. A process exports those of the parts that it has.",
        "",
        "| metric | in Prometheus | kind | attributes | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, info in sorted(METRICS.items()):
        attributes = ", ".join(f"`{attribute}`" for attribute in info.attributes)
        suffix = "_bucket, _sum, _count" if info.kind == "histogram" else ""
        shown = f"`{info.prometheus}`" + (f" ({suffix})" if suffix else "")
        unit = ", in seconds" if info.unit == "s" else ""
        lines.append(f"| `{name}` | {shown} | {KINDS[info.kind]} | {attributes} | {cell(info.description)}{unit} |")
    lines += ["", "## Attributes", "", "| attribute | meaning |", "|---|---|"]
    used = {attribute for info in METRICS.values() for attribute in info.attributes}
    lines += [f"| `{name}` | {cell(text)} |" for name, text in ATTRIBUTES.items() if name in used]
    lines += [
        "",
        "Callers can use names of endpoints and pools that nobody serves. When a router has seen more than a thousand",
        "names, those no longer in use are counted as `_other`, and so are the times of requests that were never sent",
        "to a worker.",
        "",
    ]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "gang-states.md": gang_states_page,
    "permissions.md": permissions_page,
    "metrics.md": metrics_page,
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
    runpy.run_path(str(REFERENCE.parent / "dashboards.py"), run_name="__main__")


if __name__ == "__main__":
    main()
