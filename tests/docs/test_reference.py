"""The reference says what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from gangline.cli.app import COMMANDS
from gangline.coordinator.model import gang as states
from gangline.dispatcher.durable.core import task as task_states
from gangline.schemas import limits
from gangline.schemas.errors.base import GanglineError, Unavailable
from gangline.schemas.messages import operations as messages
from gangline.schemas.names import Operation
from gangline.schemas.records import workers as records
from gangline.schemas.wire import frames, headers

from ..support.rows import case
from ..support.scripts import script

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROTOCOL = (DOCS / "reference" / "protocol.md").read_text()


generate, generate_sync = (script(f"{name}.py") for name in ("generate", "generate_sync"))


def test_the_drawing_of_a_gangs_states_is_up_to_date():
    page = generate.EXPLAINED.read_text()
    assert page == generate.with_diagram(page), "run: make docs"
    assert states.states_diagram() in page
    assert [step for step in states.GangStep if f"| `{step.value}` |" not in generate.gang_states_page()] == []


def test_the_drawing_of_a_tasks_steps_is_up_to_date():
    page = generate.EXPLAINED_TASKS.read_text()
    assert page == generate.with_task_diagram(page), "run: make docs"
    assert task_states.states_diagram() in page


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_generated_page_is_up_to_date(name):
    assert (DOCS / "reference" / name).read_text() == generate.PAGES[name](), "run: make docs"


def test_the_client_for_plain_code_is_up_to_date():
    assert generate_sync.MODULE.read_text() == generate_sync.text(), "run: make docs"


def test_the_servers_configuration_is_up_to_date():
    assert generate.ROLES.read_text() == generate.configuration(generate.Names(), generate.DEFAULT_USERS), "make docs"


def test_every_error_has_a_meaning():
    rows = [line for line in generate.errors_page().splitlines() if line.startswith("| ") and "`" in line]
    public = (GanglineError.__module__, "gangline.bus.port.bus")
    classes = [cls for _, cls in generate._walk(GanglineError) if cls.__module__ in public]
    assert [cls for cls in classes if not any(f"`{cls.__name__}`" in row for row in rows)] == []
    bases = {"GanglineError", "InvalidRequest", "Unavailable"}
    empty = [row for row in rows if row.endswith("|  |") and not any(f"`{base}`" in row for base in bases)]
    assert empty == []
    assert issubclass(generate.port.Conflict, Unavailable)


def test_every_setting_has_a_meaning():
    unexplained = re.findall(r"^\| `(\w+)` \| [^|]* \|  \|$", generate.settings_page(), re.MULTILINE)
    assert set(unexplained) <= {"user", "password", "token"}, "only these explain themselves"


def test_every_command_is_described():
    page = generate.cli_page()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in page] == []


def missing(*told):
    return [text for text in told if text not in PROTOCOL]


def test_the_protocol_names_every_operation_of_a_worker():
    assert missing(*(f"`<ns>.worker.<pool>.<worker>.{operation}`" for operation in Operation)) == []


def test_the_protocol_names_every_header():
    assert missing(*(f"`{value}`" for name, value in vars(headers).items() if name.isupper())) == []


def test_the_protocol_gives_every_frame_with_its_places():
    for operation, places in [*frames._REQUEST_PLACES.items(), *frames._ANSWER_PLACES.items()]:
        names = ", ".join([str(int(operation)), *(name for name, _ in places)])
        assert missing(f"| {operation.name} | `[{names}]`") == []


def test_the_protocol_names_every_reason():
    assert missing(*(f"`{reason}`" for reason in frames.Reason)) == []


REQUESTS: dict[str, type[messages.Request]] = {
    "reserve": messages.ReserveRequest,
    "dispatch": messages.DispatchRequest,
    "renew": messages.RenewRequest,
    "release": messages.ReleaseRequest,
    "drain": messages.DrainRequest,
    "resize": messages.ResizeRequest,
}


def test_the_protocol_names_every_field_of_a_request():
    for operation in REQUESTS:
        with case(operation):
            row = next(line for line in PROTOCOL.splitlines() if line.startswith(f"| `{operation}` |"))
            asked = row.split("|")[2]
            assert [name for name in REQUESTS[operation].model_fields if f"`{name}`" not in asked] == []
            required = [name for name, field in REQUESTS[operation].model_fields.items() if field.is_required()]
            assert re.findall(r"`(\w+)` \*required\*", asked) == required


def test_the_protocol_gives_the_version_and_the_bounds_of_the_code():
    assert f"Version {limits.WIRE_VERSION}." in PROTOCOL
    assert f"1 to {limits.MAX_NAME_CHARS} of" in PROTOCOL
    assert f"1 to {limits.MAX_TOKEN_CHARS} of them" in PROTOCOL
    assert f"nested {limits.MAX_DEPTH} levels deep" in PROTOCOL


def test_the_protocol_names_the_fields_of_a_record():
    for prefix, record in [("alive", records.Heartbeat), ("lease", records.LeaseRecord)]:
        with case(prefix, record):
            row = next(line for line in PROTOCOL.splitlines() if line.startswith(f"| `{prefix}."))
            told = set(re.findall(r"\w+", row))
            assert set(record.model_fields) - {"v", "pool", "worker"} <= told
            assert inspect.getdoc(record)
