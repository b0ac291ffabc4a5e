"""The AsyncAPI 3.0 document of the wire, generated from schemas.catalogue and its models."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..wire import headers
from .catalogue import ARGUMENTS, FRAMES, PUBLISHED, RESULT, Body, Channel, catalogue

_REF = "#/components/schemas/"
ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "message", "may_have_started"],
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "may_have_started": {"type": "boolean"},
        "details": {"type": "object"},
    },
}
PUBLISH_ACK_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "stream": {"type": "string"},
        "seq": {"type": "integer"},
        "duplicate": {"type": "boolean"},
        "error": {"type": "object"},
    },
}
_PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    ARGUMENTS: (
        "Arguments of a task: an object with keyword arguments, an array of positional ones, or nothing.",
        {"type": ["object", "array", "null"]},
    ),
    RESULT: ("The bare result of a task. With the header `Nats-Service-Error`, the body is an Error.", {}),
    FRAMES: (
        "An envelope of frames, in msgpack: [version, epoch, sender, frames], answered with [version, epoch, load, "
        "frames]. See the page on the protocol.",
        {"type": "array", "minItems": 4, "maxItems": 4},
    ),
    PUBLISHED: ("JetStream's acknowledgement: the message is stored.", PUBLISH_ACK_SCHEMA),
}


def document(version: str) -> dict[str, Any]:
    """The whole document, JSON-compatible."""
    channels = catalogue()
    named, schemas = _schemas(channels)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Gangline",
            "version": version,
            "description": "Tasks sent over NATS to workers with a limited number of slots. `{ns}` is the namespace, "
            "`gangline` unless configured; `{NS}` is the same in capitals. Bodies are JSON, or msgpack where the "
            "header `Content-Type: application/msgpack` says so; an answer has the format of its request.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in channels},
        "operations": _operations(channels),
        "components": {"messages": _messages(channels, named), "schemas": schemas},
    }


def text(version: str) -> str:
    """The text of the file."""
    return json.dumps(document(version), indent=1, sort_keys=False) + "\n"


Named = dict[type[BaseModel], str]


def _schemas(channels: tuple[Channel, ...]) -> tuple[Named, dict[str, Any]]:
    """The name of each model in the document, and all schemas by name."""
    models = {body for channel in channels for body in (channel.body, channel.reply) if isinstance(body, type)}
    ordered = sorted(models, key=lambda model: f"{model.__module__}.{model.__name__}")
    references, generated = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=_REF + "{model}"
    )
    # pydantic prefixes models of the same name with their modules. Replace the module by its topic, gang or job.
    generated = json.loads(re.sub(r"gangline__schemas__(?:[a-z]+__)?(gang|job)\w*?__", _topic, json.dumps(generated)))
    named: Named = {
        model: re.sub(
            r"gangline__schemas__(?:[a-z]+__)?(gang|job)\w*?__",
            _topic,
            references[model, "validation"]["$ref"].removeprefix(_REF),
        )
        for model in ordered
    }
    found = {**generated["$defs"], "Error": ERROR_SCHEMA}
    for kind, (about, schema) in _PLAIN.items():
        found[kind] = {"description": about, **schema}
    return named, dict(sorted(found.items()))


def _topic(match: re.Match[str]) -> str:
    return match[1].capitalize()


def _reference(body: Body, named: Named) -> dict[str, str]:
    assert body is not None
    return {"$ref": _REF + (body if isinstance(body, str) else named[body])}


def _channel(channel: Channel) -> dict[str, Any]:
    shown: dict[str, Any] = {"address": channel.address, "description": channel.about}
    shown["messages"] = {"request": {"$ref": f"#/components/messages/{channel.name}"}}
    if channel.reply is not None:
        shown["messages"]["reply"] = {"$ref": f"#/components/messages/{channel.name}_reply"}
    if channel.parameters:
        shown["parameters"] = {name: {"description": _PARAMETERS[name]} for name in channel.parameters}
    return shown


_PARAMETERS = {
    "dispatcher": "The id of a dispatcher, as in its events and in `nats service ls`.",
    "router": "Id of a client, gateway or dispatcher; new for each.",
    "gateway": "a name that a gateway draws when it starts",
    "stream": "a name that cannot be guessed; only the caller learns it",
    "ns": "the namespace",
    "NS": "the namespace, in capitals",
    "pool": "workers that serve the same tasks",
    "worker": "a worker's name within its pool",
    "endpoint": "the name that producers use; without a route it is the pool of that name",
    "method": "a task of the pool",
    "token": "the identity of a lease",
    "gang": "a gang's id",
    "gangset": "name of a standing set of gangs",
    "job": "id of a durable task: its header Gangline-Job, or its sequence in the stream",
    "id": "a name that no other schedule has",
}


def _operations(channels: tuple[Channel, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for channel in channels:
        at = f"#/channels/{channel.name}"
        shown: dict[str, Any] = {
            "action": "send",
            "channel": {"$ref": at},
            "summary": channel.about,
            "messages": [{"$ref": f"{at}/messages/request"}],
        }
        if channel.reply is not None:
            shown["reply"] = {
                "address": {"description": "the request's reply subject", "location": "$message.header#/reply"},
                "channel": {"$ref": at},
                "messages": [{"$ref": f"{at}/messages/reply"}],
            }
        found[channel.name] = shown
    return found


def _messages(channels: tuple[Channel, ...], named: Named) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for channel in channels:
        shown: dict[str, Any] = {"name": channel.name}
        if channel.body is not None:
            shown["payload"] = _reference(channel.body, named)
        if channel.headers:
            shown["headers"] = _headers(channel.headers)
        if FRAMES in (channel.body, channel.reply):
            shown["contentType"] = "application/msgpack"
        found[channel.name] = shown
        if channel.reply is not None:
            failed = [] if channel.reply in (FRAMES, PUBLISHED) else [{"$ref": _REF + "Error"}]
            payload = (
                {"anyOf": [_reference(channel.reply, named), *failed]} if failed else _reference(channel.reply, named)
            )
            answer = found[f"{channel.name}_reply"] = {"name": f"{channel.name}_reply", "payload": payload}
            if answered := (*channel.reply_headers, *((headers.ERROR, headers.ERROR_CODE) if failed else ())):
                answer["headers"] = _headers(answered)
    return found


def _headers(names: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}
