"""A Python module of typed handles to the tasks of a pool, made of their JSON Schemas; for programs that cannot import
the tasks' code. Objects are typed dicts: the plain values that travel.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .task_schemas import TaskSchema

_WIDTH: Final = 120
_FORMATS: Final = {
    "date-time": ("datetime", "datetime"),
    "date": ("datetime", "date"),
    "time": ("datetime", "time"),
    "duration": ("datetime", "timedelta"),
    "uuid": ("uuid", "UUID"),
}
"""Format of a text -> module and name of the class that it is in Python."""
_PLAIN: Final = frozenset({"str", "int", "float", "bool", "bytes", "dict", "list", "tuple"})
_RESERVED: Final = _PLAIN | {"Any", "AsyncIterator", "Literal", "NotRequired", "TypedDict", "gangline"}
"""Names that the annotations use."""
_DEFAULT: Final = "_DEFAULT"
"""Default of parameters whose own default is not a plain value."""
_ANY: Final = "Any"


def python_stubs(tasks: Iterable[TaskSchema], *, about: str = "") -> str:
    """The text of the module. It passes `mypy --strict`.

    Args:
        about: first line of its docstring.
    """
    module = _Module()
    functions = [module.function(task) for task in tasks]
    first = module.first or "FUNCTION"
    uses = f"Name these functions where a client takes the name of a task: `await client.call({first}, ...)`."
    head = f'"""{about or "Typed handles to tasks."}\n\n{uses}\n"""\n\nfrom __future__ import annotations\n\n'
    return head + module.imports() + "\n\n\n" + "\n\n\n".join([*module.classes(), *functions]) + "\n"


class _Module:
    """What is written so far, and which names it uses."""

    def __init__(self) -> None:
        self.first = ""
        self._taken: set[str] = set(_RESERVED)
        self._imports: set[tuple[str, str]] = set()
        self._modules: set[str] = set()
        self._defaults = False
        """Whether a parameter has _DEFAULT."""
        self._classes: dict[str, str] = {}
        """Text of each class, by name."""
        self._named: dict[tuple[str, str], str] = {}
        """Name of the class of a definition: (its name there, its content) -> name here."""

    def imports(self) -> str:
        if self._defaults:
            self._imports.add(("typing", _ANY))
        by_module: dict[str, list[str]] = {}
        for module, name in sorted(self._imports):
            by_module.setdefault(module, []).append(name)
        lines = {module: f"from {module} import {', '.join(names)}" for module, names in by_module.items()}
        third = lines.pop("typing_extensions", "")
        # Under names that no field has: type checkers take the name of a field for the field.
        whole = [f"import {module} as _{module}" for module in sorted(self._modules)]
        blocks = ["\n".join([*whole, *lines.values()]), third, "import gangline"]
        if self._defaults:
            blocks.append(f'{_DEFAULT}: Any = None\n"""The worker has the default."""')
        return "\n\n".join(filter(None, blocks))

    def classes(self) -> list[str]:
        return list(self._classes.values())

    # -- functions --------------------------------------------------------------------------------------------------

    def function(self, task: TaskSchema) -> str:
        name = self._free(_identifier(task.method))
        self.first = self.first or name
        parameters = self._parameters(task)
        returns = self._result(task)
        start = "def" if task.info.streams else "async def"
        head = f"{start} {name}({', '.join(parameters)}) -> {returns}:"
        if len(head) > _WIDTH:
            head = f"{start} {name}(\n" + "".join(f"    {each},\n" for each in parameters) + f") -> {returns}:"
        lines = [f'@gangline.remote("{task.target}")', head]
        lines += [f"    {line}".rstrip() for line in _docstring(task.info.description)]
        return "\n".join([*lines, "    raise NotImplementedError"])

    def _parameters(self, task: TaskSchema) -> list[str]:
        types = _Types(self, task.definitions)
        schema = task.parameters
        properties: dict[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if task.body is None:
            self._imports.add(("typing", _ANY))
            return [f"*args: {_ANY}", f"**kwargs: {_ANY}"]
        positional = [name for name in schema.get("x-positional", ()) if name in properties and _is_name(name)]
        found: list[str] = []
        for name in positional:
            found.append(self._parameter(name, properties[name], name in required, types))
        named = [name for name in properties if name not in positional and _is_name(name)]
        if "x-rest" in schema:
            found.append(f"*args: {types.of(schema['x-rest'], 'Rest')}")
        elif named:
            found.append("*")
        for name in named:
            found.append(self._parameter(name, properties[name], name in required, types))
        more = schema.get("additionalProperties", False)
        if not all(map(_is_name, properties)):
            more = True  # as a parameter of another language
        if more is not False:
            found.append(f"**kwargs: {types.of({} if more is True else more, 'More')}")
        return found

    def _parameter(self, name: str, schema: Mapping[str, Any], required: bool, types: _Types) -> str:
        kind = types.of(schema, _camel(name))
        if required:
            return f"{name}: {kind}"
        value = schema.get("default")
        plain = value is None or isinstance(value, (str, int, float, bool))
        options = set(kind.split(" | "))
        known = kind == _ANY or kind.startswith("Literal[") or type(value).__name__ in options
        if "default" in schema and plain and (known or (value is None and "None" in options)):
            return f"{name}: {kind} = {value!r}"
        self._defaults = True
        return f"{name}: {kind} = {_DEFAULT}"

    def _result(self, task: TaskSchema) -> str:
        types = _Types(self, task.definitions)
        result = _ANY if task.body is None else types.of(task.result, _camel(task.method) + "Result")
        if result == _ANY:
            self._imports.add(("typing", _ANY))
        if not task.info.streams:
            return result
        self._imports.add(("collections.abc", "AsyncIterator"))
        return f"AsyncIterator[{result}]"

    # -- classes ----------------------------------------------------------------------------------------------------

    def use(self, module: str, name: str) -> str:
        """Import a name of a typing module."""
        self._imports.add((module, name))
        return name

    def member(self, module: str, name: str) -> str:
        """Import a module for one of its classes."""
        self._modules.add(module)
        return f"_{module}.{name}"

    def named(self, key: str, schema: Mapping[str, Any]) -> tuple[str, bool]:
        """The name of a definition's class or alias, and whether it is new."""
        content = (key, repr(schema))
        known = self._named.get(content)
        if known is not None:
            return known, False
        name = self._named[content] = self._free(_camel(key))
        return name, True

    def typed_dict(self, name: str, schema: Mapping[str, Any], types: _Types) -> None:
        """Add the class of an object."""
        self._classes[name] = ""  # keeps its place before those that it refers to
        self.use("typing_extensions", "TypedDict")
        required = set(schema.get("required", ()))
        fields: dict[str, str] = {}
        for field, its in schema.get("properties", {}).items():
            kind = types.of(its, name + _camel(field))
            if field not in required:
                kind = f"{self.use('typing_extensions', 'NotRequired')}[{kind}]"
            fields[field] = kind
        about = _docstring(str(schema.get("description", "")))
        if all(_is_name(field) and field not in _RESERVED for field in fields):
            body = [*about, *([""] if about and fields else [])]
            body += [f"{field}: {kind}" for field, kind in fields.items()]
            lines = [f"class {name}(TypedDict):", *(f"    {line}".rstrip() for line in body)]
        else:
            lines = [f'{name} = TypedDict(\n    "{name}",', "    {"]
            lines += [f"        {field!r}: {kind!r}," for field, kind in fields.items()]
            lines += ["    },", ")"]
        self._classes[name] = "\n".join(lines)

    def _free(self, name: str) -> str:
        found, number = name, 2
        while found in self._taken:
            found, number = f"{name}{number}", number + 1
        self._taken.add(found)
        return found


class _Types:
    """Types of the schemas of one task."""

    def __init__(self, module: _Module, definitions: Mapping[str, Any]) -> None:
        self._module = module
        self._definitions = definitions
        self._inside: set[str] = set()
        """Definitions that are being written: one without a class that contains itself is Any inside."""

    def of(self, schema: Any, name: str) -> str:
        """The type of a schema; `name`: of its class, if it needs one."""
        if not isinstance(schema, Mapping) or not schema:
            return self._any()
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]))
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            if all(value is None or isinstance(value, (str, int, bool)) for value in values) and values:
                return f"{self._module.use('typing', 'Literal')}[{', '.join(map(repr, values))}]"
            return self._any()
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union([self.of(each, name) for each in schema[union]])
        if len(schema.get("allOf", ())) == 1:
            return self.of(schema["allOf"][0], name)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([self.of({**schema, "type": each}, name) for each in kind])
        return self._plain(kind, schema, name)

    def _plain(self, kind: object, schema: Mapping[str, Any], name: str) -> str:
        match kind:
            case "string":
                if schema.get("contentEncoding") == "base64":
                    return "bytes"
                known = _FORMATS.get(str(schema.get("format")))
                return "str" if known is None else self._module.member(*known)
            case "integer":
                return "int"
            case "number":
                return "float"
            case "boolean":
                return "bool"
            case "null":
                return "None"
            case "array":
                return self._array(schema, name)
            case "object":
                return self._object(schema, name)
            case _:
                return self._any()

    def _array(self, schema: Mapping[str, Any], name: str) -> str:
        items = schema.get("prefixItems")
        if items and schema.get("maxItems") == len(items):
            return f"tuple[{', '.join(self.of(each, f'{name}{n}') for n, each in enumerate(items, 1))}]"
        return f"list[{self.of(schema.get('items', {}), name + 'Item')}]"

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        if not schema.get("properties"):
            more = schema.get("additionalProperties", True)
            return f"dict[str, {self._any() if isinstance(more, bool) else self.of(more, name + 'Value')}]"
        found, new = self._module.named(name, schema)
        if new:
            self._module.typed_dict(found, schema, self)
        return found

    def _reference(self, reference: str) -> str:
        key = reference.rpartition("/")[2]
        schema = self._definitions.get(key)
        if schema is None or key in self._inside:
            return self._any()
        if schema.get("type") == "object" and schema.get("properties"):
            return self._object(schema, key)
        self._inside.add(key)
        found = self.of(schema, key)
        self._inside.discard(key)
        return found

    def _union(self, members: list[str]) -> str:
        found = list(dict.fromkeys(members))
        if _ANY in found:
            return _ANY
        # `None` last, as people write it.
        return " | ".join(sorted(found, key=lambda each: each == "None"))

    def _any(self) -> str:
        return self._module.use("typing", _ANY)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _identifier(name: str) -> str:
    """A method's name as Python allows it."""
    found = re.sub(r"\W", "_", name)
    if not found.isidentifier():
        found = f"_{found}"
    return f"{found}_" if keyword.iskeyword(found) or found in _RESERVED else found


def _camel(name: str) -> str:
    """The name of a class."""
    return _identifier("".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name) if part) or "Value")


def _docstring(about: str) -> list[str]:
    words = " ".join(about.replace("\\", "\\\\").replace('"""', "'''").split())
    if not words:
        return []
    lines = textwrap.wrap(words, _WIDTH - 10)
    if len(lines) == 1:
        return [f'"""{lines[0]}{" " if lines[0].endswith(chr(34)) else ""}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']
