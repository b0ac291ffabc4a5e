"""Example commands that call a pool's tasks, ready to paste, with arguments derived from the annotations."""

from __future__ import annotations

import inspect
import json
import shlex
import typing
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from ...schemas.names import Names
from ...worker.pool.pool import DeclaredTask, Pool

_DEEPEST: Final = 4
_BY_TYPE: Final[Mapping[str, object]] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
_BY_FORMAT: Final[Mapping[str, str]] = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00",
    "duration": "PT1M",
    "uuid": "6f1d4b0e-7d0c-4b8e-9f38-6a4f2f1f2c55",
    "binary": "aGVsbG8=",
    "base64": "aGVsbG8=",
    "path": "a.txt",
    "uri": "https://example.org/",
}


def example_arguments(task: DeclaredTask) -> dict[str, Any] | list[Any]:
    """Arguments that the task would (nearly always) accept; only those without a default.

    An object, or an array if some arguments are positional-only.
    """
    try:
        hints = typing.get_type_hints(task.function, include_extras=True)
    except NameError:
        hints = {}
    named: dict[str, Any] = {}
    by_place = False
    for parameter in inspect.signature(task.function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            named[parameter.name] = _example(hints.get(parameter.name, Any), parameter.name)
            by_place = by_place or parameter.kind is parameter.POSITIONAL_ONLY
    return list(named.values()) if by_place else named


def _example(annotation: Any, name: str) -> Any:
    try:
        schema = TypeAdapter(annotation).json_schema()
    except Exception:  # without a schema there is no example; the line is only a hint
        return name
    return _from_schema(schema, schema.get("$defs", {}), name, _DEEPEST)


def _from_schema(schema: Mapping[str, Any], defs: Mapping[str, Any], name: str, depth: int) -> Any:
    if "$ref" in schema:
        schema = defs.get(schema["$ref"].rpartition("/")[2], {})
    for key in ("examples", "enum", "anyOf", "oneOf", "allOf"):
        if schema.get(key):
            first = schema[key][0]
            return first if key in ("examples", "enum") else _from_schema(first, defs, name, depth)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    match schema.get("type"):
        case "string":
            return _BY_FORMAT.get(schema.get("format", ""), "text")
        case "array" if depth and schema.get("prefixItems"):
            return [_from_schema(item, defs, name, depth - 1) for item in schema["prefixItems"]]
        case "array" if depth:
            return [_from_schema(schema["items"], defs, name, depth - 1)] if schema.get("items") else []
        case "object" if depth:
            wanted = schema.get("required", ())
            return {
                k: _from_schema(v, defs, k, depth - 1) for k, v in schema.get("properties", {}).items() if k in wanted
            }
        case "array":
            return []
        case "object":
            return {}
        case str(kind):
            number = _BY_TYPE.get(kind)
            return max(number, schema.get("minimum", number)) if isinstance(number, int | float) else number
        case _:
            return name


def example_lines(pool: Pool, names: Names, url: str | None) -> list[tuple[str, str]]:
    """The `gangline call` and the `nats req` line of each task. `url` None: the default server."""
    server = f" -s {url}" if url else ""
    space = f" --namespace {names.namespace}" if names.namespace != "gangline" else ""
    lines = []
    for task in pool.tasks.values():
        arguments = example_arguments(task)
        body = shlex.quote(json.dumps(arguments, ensure_ascii=False)) if arguments else ""
        stream = " --stream" if task.streams else ""
        call = f"gangline call{server}{space}{stream} {task.full_name} {body}".rstrip()
        request = f"nats{server} req {names.call(pool.name, task.name)} {body or chr(39) * 2}"
        lines.append((call, request))
    return lines
