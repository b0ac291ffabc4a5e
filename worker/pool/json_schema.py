"""The JSON Schema of a task: what it takes and what it returns, for programs that cannot import its code.

::

    {"parameters": {"type": "object", "properties": {...}, "required": [...], "additionalProperties": false,
                    "x-positional": ["text", "width"]},
     "result": {...},
     "$defs": {...}}

`x-positional` names the parameters that can be given by place, in order. `additionalProperties` is the schema of
`**kwargs`, and `x-rest` that of `*args`. A task that yields has `items` instead of `result`. Bytes are base64 text, as
in JSON bodies (msgpack bodies have them as they are). Values without a schema, such as those of parameters without
annotation, are `{}`.
"""

from __future__ import annotations

import base64
import inspect
import json
from typing import Any, Final, Literal, NamedTuple

import pydantic_core
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ...schemas.catalogue.task_schemas import schema_hash, schema_text
from ...schemas.limits import MAX_SCHEMA_BYTES
from .signature import Signature

_Kind = inspect._ParameterKind
_Mode = Literal["validation", "serialization"]
_Input = tuple[str, _Mode, TypeAdapter[Any]]
_HAS_NO_SCHEMA: Final = (PydanticInvalidForJsonSchema, KeyError, TypeError, ValueError)
_RESULT: Final = "result of the task"  # no parameter can have this name
_REST: Final = "*"
_REST_NAMED: Final = "**"


class MethodSchema(NamedTuple):
    """The schema of one task, and its name by content."""

    hash: str
    body: dict[str, Any]
    size: int
    """Bytes of its JSON."""


class _Generator(GenerateJsonSchema):
    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        return {"type": "string", "contentEncoding": "base64"}

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        if self.mode == "serialization" and field["type"] != "typed-dict-field":
            return not field.get("serialization_exclude")  # results have all fields
        return super().field_is_required(field, total)


def method_schema(signature: Signature, result: TypeAdapter[Any] | None, *, streams: bool) -> MethodSchema | None:
    """The schema of a task whose signature is resolved. None: it has more than MAX_SCHEMA_BYTES.

    Args:
        result: the adapter of its result, or of its items; None: it has no annotation.
    """
    declared = {each.name: each for each in inspect.signature(signature.function).parameters.values()}
    adapters: dict[str, TypeAdapter[Any] | None] = {}
    positional: list[str] = []
    for parameter in signature.parameters():
        kind = declared[parameter.name].kind
        key = {_Kind.VAR_POSITIONAL: _REST, _Kind.VAR_KEYWORD: _REST_NAMED}.get(kind, parameter.name)
        adapters[key] = parameter.adapter
        if kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD):
            positional.append(parameter.name)
    schemas, definitions = _schemas(adapters, result)
    more = schemas.pop(_REST_NAMED, False) if _REST_NAMED in adapters else False
    rest = schemas.pop(_REST, None)
    answer = schemas.pop(_RESULT, {})
    required = [name for name in schemas if declared[name].default is inspect.Parameter.empty]
    for name in schemas:
        if name not in required:
            schemas[name] = {**schemas[name], **_default(declared[name].default)}
    parameters: dict[str, Any] = {"type": "object", "properties": schemas, "additionalProperties": more}
    if required:
        parameters["required"] = required
    if positional:
        parameters["x-positional"] = positional
    if rest is not None:
        parameters["x-rest"] = rest
    body: dict[str, Any] = {"parameters": parameters, "items" if streams else "result": answer}
    if definitions:
        body["$defs"] = definitions
    text = schema_text(body)
    return None if len(text) > MAX_SCHEMA_BYTES else MethodSchema(schema_hash(text), body, len(text))


def _schemas(
    adapters: dict[str, TypeAdapter[Any] | None], result: TypeAdapter[Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each, and the definitions that they share."""
    found: dict[str, Any] = {key: {} for key in adapters}
    inputs: list[_Input] = [(key, "validation", each) for key, each in adapters.items() if each is not None]
    generated, definitions = _generated(inputs)
    found |= generated
    # Arguments may have the aliases of fields; results have their names.
    answers, theirs = _generated([] if result is None else [(_RESULT, "serialization", result)], by_alias=False)
    if _RESULT in answers:
        renamed = _other_than(definitions, theirs)
        found[_RESULT] = _refer(answers[_RESULT], renamed)
        definitions |= {renamed.get(key, key): _refer(schema, renamed) for key, schema in theirs.items()}
    return found, definitions


def _generated(inputs: list[_Input], *, by_alias: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each input that has one, and the definitions that they share."""
    if not inputs:
        return {}, {}
    try:
        schemas, shared = TypeAdapter.json_schemas(inputs, by_alias=by_alias, schema_generator=_Generator)
    except _HAS_NO_SCHEMA:
        return _generated([each for each in inputs if _has_schema(each[2], each[1])], by_alias=by_alias)
    return {key: schema for (key, _mode), schema in schemas.items()}, shared.get("$defs", {})


def _other_than(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, str]:
    """New names for their definitions that are not ours but have a name of ours, or that refer to such."""
    renamed: dict[str, str] = {}
    while True:
        more = {
            key: f"{key}-Output"
            for key, schema in theirs.items()
            if key in ours and key not in renamed and _refer(schema, renamed) != ours[key]
        }
        if not more:
            return renamed
        renamed |= more


def _refer(schema: Any, renamed: dict[str, str]) -> Any:
    """The schema with references to the new names."""
    if isinstance(schema, dict):
        items: dict[str, Any] = schema
        name = str(items.get("$ref", "")).removeprefix("#/$defs/")
        if name in renamed:
            return {**items, "$ref": f"#/$defs/{renamed[name]}"}
        return {key: _refer(value, renamed) for key, value in items.items()}
    if isinstance(schema, list):
        each: list[Any] = schema
        return [_refer(item, renamed) for item in each]
    return schema


def _has_schema(adapter: TypeAdapter[Any], mode: _Mode) -> bool:
    try:
        adapter.json_schema(mode=mode, schema_generator=_Generator)
    except _HAS_NO_SCHEMA:
        return False
    return True


def _default(value: Any) -> dict[str, Any]:
    """The default of a parameter, if JSON has it."""
    try:
        if isinstance(value, bytes):
            return {"default": base64.b64encode(value).decode()}
        plain = pydantic_core.to_jsonable_python(value, bytes_mode="base64")
        json.dumps(plain, allow_nan=False)
        return {"default": plain}
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError):
        return {}
