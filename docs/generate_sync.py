"""Generate dispatcher/client/sync.py from the client's async classes: the same names and signatures as plain functions.

`python docs/generate.py` runs this as well; a test checks that the module is up to date.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType
from typing import Final, get_overloads

from gangline.dispatcher.client.client import Client, connect
from gangline.dispatcher.gangs.gang import Gang, GangAcquisition
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.leases.lease import Lease, LeaseAcquisition
from gangline.dispatcher.leases.selection import Selection, WorkerChoice

MODULE = Path(__file__).resolve().parents[1] / "dispatcher" / "client" / "sync.py"
_PACKAGE: Final = "gangline.dispatcher.client"
_PROXIES: Final = (Lease, Gang, Job)
_CONTEXTS: Final[dict[type, type]] = {WorkerChoice: Selection, LeaseAcquisition: Lease, GangAcquisition: Gang}
_ALL: Final = (*_PROXIES, *_CONTEXTS, Client)
_SYNC: Final = {cls.__name__: f"Sync{cls.__name__}" for cls in _ALL}
_ASYNC_ONLY: Final = {"Client.start", "Client.close", "Client.router"}
"""The first two are already defined in `OwningProxy`."""
_ON_LOOP: Final = {
    *("Lease.lost", "Lease.renew", "Lease.release"),
    *("Gang.state", "Gang.lost", "Gang.events", "Client.statistics"),
}
"""Plain functions that must still run on the loop's thread: they change state, or read values that change together."""

_HEAD: Final = '''"""The client for code without an event loop: the same names, plain functions.

A `SyncClient` runs an ordinary Client on a loop in a thread of its own. It may be used from many threads at once.

Written by docs/generate_sync.py from the async classes: change those, and run `make docs`.
"""

from __future__ import annotations
'''
_ABOUT_CLIENT: Final = """Client for plain code; see Client for what each method means and raises.

```python
with gangline.connect_sync("nats://127.0.0.1:4222") as client:
    client.call("images.thumbnail", path="a.png")
```

Ctrl-C during a call cancels the call. A forked child process must connect itself."""
_CONNECT: Final = '''def connect_sync({parameters}) -> SyncClient:
    """Connect to NATS from plain code; see `connect` for the arguments.

    Raises:
        ServerUnreachable: no server answered, or it refused us.
        InvalidSettings, InvalidName: what was given cannot be used.
    """

    async def open_client() -> Client:
        return await connect({arguments})

    with FRAMES_HIDDEN:
        return SyncClient(open_client)
'''


def text() -> str:
    """The whole module."""
    source = "\n\n".join([*map(_proxy, _PROXIES), *map(_context, _CONTEXTS), _proxy(Client), _connect_sync()])
    return _tidy(f"{_HEAD}\n{_imports(source)}\n\n{source}")


def _context(cls: type) -> str:
    entered = _CONTEXTS[cls].__name__
    given = _SYNC.get(entered, entered)
    lines = [f"class {_SYNC[cls.__name__]}(SyncContext[{given}]):", *_indented(_docstring(_about(cls)))]
    if given != entered:
        lines += [f"    def _entered(self, entered: {entered}) -> {given}:"]
        lines += [f"        return {given}(self._thread, entered)"]
    return "\n".join([*lines, ""])


def _proxy(cls: type) -> str:
    base, about = "SyncProxy", f"{cls.__name__} for plain code. {_about(cls)}"
    if cls is Client:
        base, about = "OwningProxy", _ABOUT_CLIENT
    variables = ", ".join(each.__name__ for each in getattr(cls, "__parameters__", ()))
    target, generic = (f"{cls.__name__}[{variables}]", f", Generic[{variables}]") if variables else (cls.__name__, "")
    lines = [f"class {_SYNC[cls.__name__]}({base}[{target}]{generic}):", *_indented(_docstring(about))]
    for name, member in _members(cls):
        lines += ["", *_indented(_function(cls, name, member))]
    return "\n".join([*lines, ""])


def _members(cls: type) -> Iterator[tuple[str, FunctionType | property]]:
    for each in cls.__mro__:
        for name, member in vars(each).items():
            public = isinstance(member, FunctionType | property) and not name.startswith("_")
            if public and f"{cls.__name__}.{name}" not in _ASYNC_ONLY:
                yield name, member


def _function(cls: type, name: str, member: FunctionType | property) -> list[str]:
    is_property = isinstance(member, property)
    node = _source(member.fget if isinstance(member, property) else member)
    returns = _return_type(node)
    full = f"{cls.__name__}.{name}"
    call = f"self._target.{name}" if is_property else f"self._target.{name}({_forwarded(node.args)})"
    if full in _ON_LOOP:
        call = f"self._thread.call({f'lambda: {call}' if is_property else call.removesuffix('()')})"
    given = _given(returns)
    if _ITEMS.fullmatch(returns):
        body = f"return iterate(self._thread, {call})"
    else:
        awaited = _AWAITED.fullmatch(returns)
        if awaited is not None or isinstance(node, ast.AsyncFunctionDef):
            call = f"self._thread.run({call})"
        body = _returned(cls, awaited[1] if awaited is not None else returns, call)
    overloads = [] if isinstance(member, property) else [_source(each) for each in get_overloads(member)]
    return [
        *(line for each in overloads for line in _overload(name, each)),
        *(["@property"] * is_property),
        f"def {name}({_plain(ast.unparse(node.args))}) -> {given}:",
        *_indented(_docstring(_about(member, full))),
        *_indented(["with FRAMES_HIDDEN:", f"    {body}"] if "self._thread.run(" in body else [body]),
    ]


_ITEMS: Final = re.compile(r"AsyncGenerator\[(.*), None\]")
_AWAITED: Final = re.compile(r"Coroutine\[Any, Any, (.*)\]")


def _overload(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    returns = _return_type(node)
    return ["@overload", f"def {name}({_plain(ast.unparse(node.args))}) -> {_given(returns)}: ...", ""]


def _return_type(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    assert node.returns is not None
    return ast.unparse(node.returns)


def _given(returns: str) -> str:
    """What the synchronous form returns."""
    if items := _ITEMS.fullmatch(returns):
        return f"Generator[{items[1]}, None, None]"
    awaited = _AWAITED.fullmatch(returns)
    return _plain(awaited[1] if awaited is not None else returns)


def _returned(cls: type, value: str, call: str) -> str:
    """The statement that returns the result of `call`, in its synchronous form."""
    value = re.sub(r"\bJob\[\w+\]", "Job", value)
    if value == "None":
        return call
    if value == cls.__name__ == "Client":
        return f"return self._with({call})"
    if value in _SYNC:
        return f"return {_SYNC[value]}(self._thread, {call})"
    if (items := re.fullmatch(r"list\[(\w+)\]", value)) and items[1] in _SYNC:
        return f"return [{_SYNC[items[1]]}(self._thread, each) for each in {call}]"
    return f"return {call}"


def _source(function: object) -> ast.FunctionDef | ast.AsyncFunctionDef:
    assert isinstance(function, FunctionType)
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def _forwarded(arguments: ast.arguments) -> str:
    """The arguments of a method, as passed on."""
    found = [each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self"]
    found += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    found += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    found += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(found)


def _connect_sync() -> str:
    arguments = _source(connect).args
    # Injected randomness is for tests, which have a loop.
    kept = [number for number, each in enumerate(arguments.kwonlyargs) if each.arg != "ambient"]
    arguments.kwonlyargs = [arguments.kwonlyargs[number] for number in kept]
    arguments.kw_defaults = [arguments.kw_defaults[number] for number in kept]
    return _CONNECT.format(parameters=ast.unparse(arguments), arguments=_forwarded(arguments))


# -- words ------------------------------------------------------------------------------------------------------------


def _plain(code: str) -> str:
    """Types as seen by synchronous code."""
    return re.sub(r"\w+", lambda word: _SYNC.get(word[0], word[0]), code)


def _about(member: object, full_name: str = "") -> str:
    """The first paragraph of a docstring, and a reference to the others."""
    first, _, rest = (inspect.getdoc(member) or "").partition("\n\n")
    if rest and full_name:
        first += f" See {full_name}."
    return re.sub(r"\basync (?=with|for)|\bawait ", "", " ".join(first.split()))


def _docstring(about: str) -> list[str]:
    if not about:
        return []
    paragraphs = [
        "\n".join(textwrap.wrap(each, 104, break_on_hyphens=False)) if "    " not in each else each
        for each in about.split("\n\n")
    ]
    end = "\n" * (len(paragraphs) > 1)
    return ('"""' + "\n\n".join(paragraphs) + end + '"""').split("\n")


def _indented(lines: list[str]) -> list[str]:
    return [line and f"    {line}" for line in lines]


# -- imports ----------------------------------------------------------------------------------------------------------


def _imports(source: str) -> str:
    """An import for each name that the code uses and does not define."""
    known = {"Generator": "collections.abc", "TYPE_CHECKING": "typing", "connect": connect.__module__}
    known |= dict.fromkeys(("Generic", "overload"), "typing")
    known |= dict.fromkeys(("OwningProxy", "SyncContext", "SyncProxy", "iterate"), "gangline.runtime.loop_thread")
    for_types: dict[str, str] = {}
    for module in {each.__module__ for cls in _ALL for each in cls.__mro__[:-1]}:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        known |= {node.name: module for node in tree.body if isinstance(node, ast.ClassDef)}
        known |= _imported(module, tree.body)
        blocks = [node for node in tree.body if isinstance(node, ast.If)]
        for_types |= _imported(module, [line for block in blocks for line in block.body])
    known |= {each.__name__: each.__module__ for each in (*_ALL, *_CONTEXTS.values())}
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)} | {"TYPE_CHECKING"}
    lines = [f"from {_relative(known[name])} import {name}" for name in sorted(used & known.keys())]
    only_types = sorted(used & (for_types.keys() - known.keys()))
    block = [f"    from {_relative(for_types[name])} import {name}" for name in only_types]
    return "\n".join([*lines, "", "if TYPE_CHECKING:", *block])


def _imported(module: str, body: list[ast.stmt]) -> dict[str, str]:
    """Name -> module, for the names imported by these lines of a module."""
    return {
        alias.name: resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _relative(module: str) -> str:
    here, there = _PACKAGE.split("."), module.split(".")
    if there[0] != here[0]:
        return module
    shared = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), len(here))
    return "." * (len(here) - shared + 1) + ".".join(there[shared:])


def _tidy(source: str) -> str:
    """The source as `make format` would write it."""
    ruff = (sys.executable, "-m", "ruff")
    for command in (("check", "--select", "I", "--fix-only"), ("format",)):
        source = subprocess.run(
            (*ruff, *command, "--quiet", "--stdin-filename", str(MODULE), "-"),
            input=source,
            capture_output=True,
            text=True,
            check=True,
            cwd=MODULE.parents[2],
        ).stdout
    return source


def main() -> None:
    MODULE.write_text(text())


if __name__ == "__main__":
    main()
