"""The AsyncAPI 3.0 document of an application: the tasks of its pools, with the schemas of their arguments and results.

For each task there are two channels: requests that are answered with the result, and durable submissions. The document
of Gangline's own wire, which is the same for all applications, is made by `asyncapi`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..names import Names
from .asyncapi import ERROR_SCHEMA, PUBLISH_ACK_SCHEMA
from .catalogue import CALL_HEADERS, TASK_HEADERS
from .task_schemas import TaskSchema

_REF: Final = "#/components/schemas/"


def application(tasks: Iterable[TaskSchema], names: Names, *, title: str, version: str) -> dict[str, Any]:
    """The document, JSON-compatible.

    Args:
        title: of the application.
        version: of the application.
    """
    found: dict[str, dict[str, Any]] = {"channels": {}, "operations": {}, "messages": {}, "schemas": {}}
    found["schemas"]["Error"] = ERROR_SCHEMA
    found["schemas"]["PublishAck"] = PUBLISH_ACK_SCHEMA
    for task in tasks:
        _add(found, task, names)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": title,
            "version": version,
            "description": "Tasks that Gangline runs. A request to `call` is answered with the result, by a gateway; a "
            "message to `task` is stored, and runs later. Bodies are JSON (bytes are base64 text), or msgpack with the "
            "header `Content-Type: application/msgpack`. A failure has the header `Nats-Service-Error`; its body is an "
            "Error.",
        },
        "defaultContentType": "application/json",
        "channels": found["channels"],
        "operations": found["operations"],
        "components": {"messages": found["messages"], "schemas": dict(sorted(found["schemas"].items()))},
    }


def application_text(tasks: Iterable[TaskSchema], names: Names, *, title: str, version: str) -> str:
    """The text of the file."""
    return json.dumps(application(tasks, names, title=title, version=version), indent=1) + "\n"


def _add(found: dict[str, dict[str, Any]], task: TaskSchema, names: Names) -> None:
    id = task.target
    about = task.info.description or f"The task {id}."
    schemas, messages = found["schemas"], found["messages"]
    for key, schema in task.definitions.items():
        schemas[_definition(task, key)] = _moved(schema, task)
    result = _moved(task.result, task)
    schemas[f"{id}.arguments"] = _arguments(task)
    schemas[f"{id}.result"] = {"type": "array", "items": result} if task.info.streams else result
    arguments = {"$ref": f"{_REF}{id}.arguments"}
    for kind, address, headers, reply, what in (
        ("call", names.call(task.pool, task.method), CALL_HEADERS, f"{id}.result", "Run it and wait for its result."),
        ("task", names.task(task.pool, task.method), TASK_HEADERS, "PublishAck", "Submit it: it runs now or later."),
    ):
        channel = f"{id}.{kind}"
        messages[channel] = {
            "name": channel,
            "payload": arguments,
            "headers": {"type": "object", "properties": {header: {"type": "string"} for header in headers}},
        }
        refers = {"$ref": f"{_REF}{reply}"}
        answer = {"anyOf": [refers, {"$ref": f"{_REF}Error"}]} if kind == "call" else refers
        messages[f"{channel}.reply"] = {"name": f"{channel}.reply", "payload": answer}
        at = f"#/channels/{_pointer(channel)}"
        found["channels"][channel] = {
            "address": address,
            "description": f"{about} {what}" if about.endswith((".", "!", "?")) else f"{about}. {what}",
            "messages": {
                "request": {"$ref": f"#/components/messages/{_pointer(channel)}"},
                "reply": {"$ref": f"#/components/messages/{_pointer(channel)}.reply"},
            },
        }
        found["operations"][channel] = {
            "action": "send",
            "channel": {"$ref": at},
            "summary": about,
            "messages": [{"$ref": f"{at}/messages/request"}],
            "reply": {
                "address": {"description": "the request's reply subject", "location": "$message.header#/reply"},
                "channel": {"$ref": at},
                "messages": [{"$ref": f"{at}/messages/reply"}],
            },
        }


def _arguments(task: TaskSchema) -> dict[str, Any]:
    """The body of a request: named arguments, or those by place."""
    named = _moved(task.parameters, task)
    if task.body is None:
        return {"type": ["object", "array", "null"]}
    properties, required = named.get("properties", {}), set(named.get("required", ()))
    positional = named.get("x-positional", [])
    choices: list[dict[str, Any]] = [named]
    if required <= set(positional):
        by_place: dict[str, Any] = {"type": "array", "prefixItems": [properties[name] for name in positional]}
        by_place["minItems"] = max((place for place, name in enumerate(positional, 1) if name in required), default=0)
        by_place["items"] = named.get("x-rest", False)
        choices.append(by_place)
    if not required:
        choices.append({"type": "null"})
    return {"description": "Arguments, by name or by place.", "oneOf": choices}


def _definition(task: TaskSchema, key: str) -> str:
    return f"{task.target}.{key}"


def _moved(schema: Any, task: TaskSchema) -> Any:
    """The schema with references to where its definitions are in the document."""
    if isinstance(schema, Mapping):
        items: dict[str, Any] = dict(schema)
        if isinstance(reference := items.get("$ref"), str) and reference.startswith("#/$defs/"):
            return {**items, "$ref": _REF + _definition(task, reference.removeprefix("#/$defs/"))}
        return {key: _moved(value, task) for key, value in items.items()}
    return [_moved(each, task) for each in schema] if isinstance(schema, list) else schema


def _pointer(name: str) -> str:
    """A name within a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
