"""Imports go one way: schemas <- telemetry <- runtime <- bus <- {dispatcher, worker, coordinator}, within each from
room to room, and nowhere in a circle."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# What is read from each file is read once in a process.
pytestmark = pytest.mark.xdist_group("layering")

ROOT = Path(__file__).resolve().parents[1]
FACADE = ROOT / "src" / "gangline"

# What a folder may import, besides itself and what is not ours. The facade, the command line and the testing kit
# stand on top and may import everything.
ALLOWED: dict[str, set[str]] = {
    "schemas": set(),
    "telemetry": {"schemas"},
    "runtime": {"schemas", "telemetry"},
    "bus": {"schemas", "telemetry", "runtime"},
    "worker": {"schemas", "bus", "telemetry", "runtime"},
    "dispatcher": {"schemas", "bus", "telemetry", "runtime"},
    "coordinator": {"schemas", "bus", "telemetry", "runtime"},
}

# The rooms of each folder, from the top to the bottom: each may import those behind it. A module that stands in the
# folder itself is a room of its own.
ROOMS: dict[str, tuple[str, ...]] = {
    "schemas": (
        *("catalogue", "permissions", "messages", "records", "handles", "wire", "names"),
        *("schedules", "errors", "deadline", "limits", "text"),
    ),
    "telemetry": ("setup", "metrics", "tracing", "logs", "exceptions"),
    "runtime": (
        *("lifecycle", "probes", "service_manager", "loop_thread", "failure_detector", "tasks", "timers", "rate"),
        *("hooks", "tracebacks", "state_machine", "clock"),
    ),
    "bus": (
        *("embedded", "lifecycle", "memory", "nats_bus", "storage", "key_value", "jetstream", "streams"),
        *("rpc", "nats_client", "settings", "port"),
    ),
    "worker": (
        *("service", "server", "gangs", "wire", "registration", "execution"),
        *("execution/executors/processes", "execution/executors", "pool", "context", "ledger", "slots"),
    ),
    "dispatcher": (
        *("durable/service", "durable/operations", "durable/queue", "durable/persistence", "durable/ownership"),
        *("durable/workers", "durable/core", "durable/policies", "durable/messages"),
        *("client", "gateway", "router", "gangs", "leases", "traffic", "jobs", "calls", "pools"),
        *("transport", "routing"),
    ),
    "coordinator": (
        *("service", "leadership", "server", "core", "ledger", "model", "scheduling", "sharding"),
        *("election", "settings"),
    ),
}

# The same of the simulator.
SIMULATOR = FACADE / "testing" / "sim"
ROOMS_OF_THE_SIMULATOR = ("play", "actors", "stage", "durable", "gangs", "calls", "tasks", "plan", "history")

MOST_ENTRIES = 13
"""Of a folder: modules and folders, its `__init__.py` included."""

FOLDERS = [name for name in ALLOWED if (ROOT / name).is_dir()]
# What measures the others stands on top, too: of its folder this much is shipped, as `gangline.bench`.
MEASURING = {"bench": "../../bench/wire"}
TOP = {path.name for path in FACADE.iterdir() if path.is_dir() and not path.is_symlink()} - {"__pycache__"}


class Import:
    """One imported module: either a path inside `gangline`, or the top name of something else."""

    def __init__(self, file: Path, line: int, inside: tuple[str, ...] | None, outside: str) -> None:
        self.where = f"{file.relative_to(ROOT)}:{line}"
        self.inside = inside
        self.outside = outside


WAITS = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)


LONG_STRING = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)
IMPORT = re.compile(r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+)?import\b[ \t]*(?:\([^)]*\)|[^\n]*))", re.MULTILINE)


@functools.cache
def import_statements(file: Path) -> tuple[tuple[int, ast.Import | ast.ImportFrom], ...]:
    """Every import in `file` with its line, also those inside functions. Parsing the whole file takes much longer."""
    text = LONG_STRING.sub(lambda string: "\n" * string[0].count("\n"), file.read_text())
    statements = []
    for match in IMPORT.finditer(text):
        (statement,) = ast.parse(match[1]).body
        assert isinstance(statement, (ast.Import, ast.ImportFrom)), match[1]
        statements.append((text.count("\n", 0, match.start(1)) + 1, statement))
    return tuple(statements)


def waits_in(file: Path) -> list[str]:
    return [f"{file.name}:{node.lineno}" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, WAITS)]


def imports_of(file: Path, package: tuple[str, ...]) -> Iterator[Import]:
    """Every import in `file`; `package` is the package that the file is in."""
    for line, node in import_statements(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _absolute(file, line, alias.name)
        elif node.level == 0:
            for alias in node.names:
                yield _absolute(file, line, f"{node.module}.{alias.name}")
        else:
            base = package[: len(package) - (node.level - 1)]
            module = tuple((node.module or "").split(".")) if node.module else ()
            for alias in node.names:
                # `from .. import bus` names the folder last; `from ..bus import x` names it first.
                yield Import(file, line, (*base, *module, alias.name), "")


def _absolute(file: Path, line: int, module: str) -> Import:
    first, *rest = module.split(".")
    return Import(file, line, (first, *rest), "") if first == "gangline" else Import(file, line, None, first)


def imports_of_folder(folder: str) -> Iterator[Import]:
    root = ROOT / folder
    for file in sorted(root.rglob("*.py")):
        parents = file.relative_to(root).parent.parts
        yield from imports_of(file, ("gangline", folder, *parents))


def test_a_folder_imports_only_the_folders_below_it():
    wrong = [
        f"{found.where} imports {'.'.join(found.inside)}"
        for folder in FOLDERS
        for found in imports_of_folder(folder)
        if found.inside is not None and (len(found.inside) < 2 or found.inside[1] not in ALLOWED[folder] | {folder})
    ]
    assert wrong == []


def test_imports_between_the_folders_are_relative():
    """An absolute one would load a second copy of each class when the folder itself is on the path."""
    wrong = [
        found.where
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for found in imports_of(file, ("outside",))
        if found.inside is not None and found.inside[0] == "gangline"
    ]
    assert wrong == []


@functools.cache
def room_of(path: str) -> tuple[str, str]:
    """The folder and the room of a file, or of a module that is not a file: a package."""
    folder, *parts = path.removesuffix(".py").split("/")
    for end in range(len(parts), 0, -1):
        if "/".join(parts[:end]) in ROOMS[folder]:
            return folder, "/".join(parts[:end])
    return folder, ""


def imports_between_rooms(folder: str) -> Iterator[tuple[str, str]]:
    """Files, as pairs: who imports whom."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT)
        for found in imports_of(file, ("gangline", *path.parent.parts)):
            if found.inside is None or found.inside[1] != folder:
                continue
            for inside in (found.inside[1:], found.inside[1:-1]):
                named = ROOT.joinpath(*inside).with_suffix(".py")
                if named.is_file():
                    yield str(path), str(named.relative_to(ROOT))
                    break


def wrong_ways(folder: str) -> set[tuple[str, str]]:
    order = {room: place for place, room in enumerate(ROOMS[folder])}
    return {
        (who, whom)
        for who, whom in imports_between_rooms(folder)
        if order.get(room_of(who)[1], -1) > order.get(room_of(whom)[1], -1)
    }


def test_rooms_import_only_the_rooms_below_them():
    assert {folder: wrong for folder in FOLDERS if (wrong := wrong_ways(folder))} == {}


def test_every_module_is_in_a_room():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if file.name != "__init__.py"]
    assert [str(file) for file in files if room_of(str(file.relative_to(ROOT)))[1] == ""] == []


def test_rooms_of_the_simulator_import_only_the_rooms_below_them():
    wrong = []
    for place, room in enumerate(ROOMS_OF_THE_SIMULATOR):
        files = sorted((SIMULATOR / room).glob("*.py"))
        assert files, room
        below = {room, *ROOMS_OF_THE_SIMULATOR[place:]}
        inside = ("gangline", "testing", "sim")
        for file in files:
            for found in imports_of(file, (*inside, room)):
                if found.inside is not None and found.inside[:3] == inside and found.inside[3] not in below:
                    wrong.append(f"{found.where} imports {'.'.join(found.inside)}")
    assert wrong == []


def test_every_module_of_the_simulator_is_in_a_room():
    assert {path.name for path in SIMULATOR.iterdir() if any(path.glob("*.py"))} == set(ROOMS_OF_THE_SIMULATOR)
    assert {path.name for path in SIMULATOR.glob("*.py")} == {"__init__.py", "__main__.py", "run.py"}


def test_no_folder_is_crowded():
    folders = [ROOT / folder for folder in FOLDERS] + [ROOT / "src" / "gangline" / name for name in sorted(TOP)]
    crowded = {}
    for top in folders:
        for folder in (top, *(each for each in top.rglob("*") if each.is_dir())):
            entries = [each for each in folder.iterdir() if each.suffix == ".py" or any(each.glob("**/*.py"))]
            if len(entries) > MOST_ENTRIES:
                crowded[str(folder.relative_to(ROOT))] = len(entries)
    assert crowded == {}


def modules_in(tops: dict[tuple[str, ...], Path]) -> dict[tuple[str, ...], Path]:
    """Modules by the parts of their names; a package is the module of its `__init__.py`."""
    return {
        (*package, *(file.parent if file.name == "__init__.py" else file.with_suffix("")).relative_to(top).parts): file
        for package, top in tops.items()
        for file in sorted(top.rglob("*.py"))
        if not any(parent.is_symlink() for parent in file.parents if parent.is_relative_to(top))
    }


def circle_of(modules: dict[tuple[str, ...], Path]) -> list[str]:
    """Modules of which each imports the next, and the last is the first; also inside functions, and for type checkers
    only. Empty: there are none."""
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for name, file in modules.items():
        package = name if file.name == "__init__.py" else name[:-1]
        named = (found.inside for found in imports_of(file, package) if found.inside is not None)
        # The last part may be a name in the module, or the module itself.
        graph[name] = {target if target in modules else target[:-1] for target in named} & modules.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [".".join(name) for name in reversed(error.args[1])]
    return []


def test_no_modules_import_each_other_in_a_circle():
    modules = modules_in({("gangline",): FACADE, **{("gangline", folder): ROOT / folder for folder in FOLDERS}})
    assert {("gangline",), ("gangline", "cli", "demo", "stage"), ("gangline", "bus", "port", "bus")} <= modules.keys()
    assert circle_of(modules) == []


def test_only_the_bus_imports_nats():
    files = [file for folder in (*FOLDERS, "src/gangline") for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    importers = {
        str(file.relative_to(ROOT))
        for file in files
        for found in imports_of(file, ("outside",))
        if found.outside in ("nats", "nkeys")
    }
    outside = {name for name in importers if not name.startswith("bus/")}
    assert outside == set()
    assert "bus/nats_client/client.py" in importers
    assert "bus/memory/server.py" not in importers


CORES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*_core.py"))
IMPURE = {"asyncio", "time", "random", "secrets", "logging", "os", "socket", "threading", "uuid", "datetime"}


def pure_part(core: Path) -> list[Path]:
    """A core and the modules of its folder and of `runtime` that it stands on, directly or not."""
    folder = core.relative_to(ROOT).parts[0]
    found, todo = [core], [core]
    while todo:
        importer = todo.pop()
        for named in imports_of(importer, ("gangline", *importer.relative_to(ROOT).parent.parts)):
            if named.inside is None or named.inside[1] not in (folder, "runtime"):
                continue
            # The last part may be a name in the module, or the module itself.
            for path in (named.inside[1:], named.inside[1:-1]):
                file = ROOT.joinpath(*path).with_suffix(".py")
                # Settings look at the environment for their defaults: when a shell makes them, not when a core reads
                # them.
                if file.is_file() and file.name != "settings.py" and file not in found:
                    found.append(file)
                    todo.append(file)
    return found


def test_a_core_stands_only_on_the_schemas_and_pure_parts_of_the_standard_library():
    wrong = []
    for folder, file in [(each.relative_to(ROOT).parts[0], file) for each in CORES for file in pure_part(each)]:
        for found in imports_of(file, ("gangline", *file.relative_to(ROOT).parent.parts)):
            if found.inside is not None:
                if found.inside[1] not in ("schemas", "runtime", folder):
                    wrong.append(f"{found.where} imports {'.'.join(found.inside)}")
            elif found.outside not in sys.stdlib_module_names or found.outside in IMPURE:
                wrong.append(f"{found.where} imports {found.outside}")
    assert wrong == []


def test_a_core_never_waits():
    assert [waits for file in {file for core in CORES for file in pure_part(core)} if (waits := waits_in(file))] == []


def test_every_folder_of_the_package_is_known_here():
    linked = {path.name: str(path.readlink()) for path in FACADE.iterdir() if path.is_symlink()}
    assert linked == {**{name: f"../../{name}" for name in FOLDERS}, **MEASURING}
    assert {"board", "cli", "console", "testing"} >= TOP


def test_the_board_stands_only_on_the_schemas_and_its_shell_alone_does_io():
    board = FACADE / "board"
    for file in (board / "board_core.py", board / "rank_times.py", board / "rows.py", board / "slots.py"):
        found = list(imports_of(file, ("gangline", "board")))
        assert found
        inside = [each.inside[1] for each in found if each.inside is not None and len(each.inside) > 2]
        assert set(inside) <= {"schemas", "board"}, file
        assert {each.outside for each in found if each.inside is None} <= set(sys.stdlib_module_names) - IMPURE, file
        assert waits_in(file) == []


def test_no_folder_of_tests_takes_the_name_of_a_package_that_tests_import():
    # With an __init__.py, pytest would import tests/bench as `bench`, and then `bench.faults` is not found.
    taken = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert [file for file in (ROOT / "tests").glob("*/__init__.py") if file.parent.name in taken] == []


def test_nobody_asks_a_timer_when_it_is_due() -> None:
    """uvloop returns a handle without `when` for what is due already. The in-memory bus runs on other loops."""
    asks = [
        str(path)
        for folder in ("bus", "coordinator", "dispatcher", "runtime", "telemetry", "worker")
        for path in (ROOT / folder).rglob("*.py")
        if "memory" not in path.parts and ".when()" in path.read_text()
    ]
    assert asks == []
