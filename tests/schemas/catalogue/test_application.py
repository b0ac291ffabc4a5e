"""The AsyncAPI document of an application."""

from __future__ import annotations

import json
from typing import Any

from gangline.schemas.catalogue.application import application, application_text
from gangline.schemas.catalogue.task_schemas import TaskSchema
from gangline.schemas.names import Names
from gangline.schemas.records.workers import MethodInfo
from gangline.testing import cluster

from .test_python_stubs import pool


async def document() -> dict[str, Any]:
    async with cluster(pool) as client:
        tasks = (await client.schemas("shop")).values()
    return application(tasks, Names("acme"), title="Shop", version="2.0")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in references(each)]
    return [found for each in value for found in references(each)] if isinstance(value, list) else []


async def test_each_task_has_a_channel_for_calls_and_one_for_submissions():
    found = await document()
    assert found["info"]["title"] == "Shop" and found["info"]["version"] == "2.0"
    assert found["channels"]["shop.place.call"]["address"] == "acme.call.shop.place"
    assert found["channels"]["shop.place.task"]["address"] == "acme.task.shop.place"
    assert set(found["operations"]) == {f"shop.{name}.{kind}" for name in pool.tasks for kind in ("call", "task")}


async def test_all_references_lead_somewhere():
    found = await document()
    for reference in references(found):
        place: Any = found
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


async def test_payloads_are_the_schemas_of_arguments_and_results():
    schemas = (await document())["components"]["schemas"]
    by_name, by_place = schemas["shop.place.arguments"]["oneOf"]
    assert by_name["required"] == ["order"]
    assert by_place["minItems"] == 1 and len(by_place["prefixItems"]) == 2 and by_place["items"] is False
    assert schemas["shop.parts.result"] == {"type": "array", "items": {"$ref": "#/components/schemas/shop.parts.Part"}}
    assert {"type": "null"} in schemas["shop.nothing.arguments"]["oneOf"]


async def test_the_answer_of_a_call_is_its_result_or_an_error():
    messages = (await document())["components"]["messages"]
    assert messages["shop.place.call.reply"]["payload"]["anyOf"][1] == {"$ref": "#/components/schemas/Error"}
    assert messages["shop.place.task.reply"]["payload"] == {"$ref": "#/components/schemas/PublishAck"}


def test_a_task_without_a_schema_takes_anything():
    tasks = [TaskSchema(pool="p", method="m", info=MethodInfo(description="Do it"))]
    found = json.loads(application_text(tasks, Names(), title="p", version="1"))
    assert found["components"]["schemas"]["p.m.arguments"] == {"type": ["object", "array", "null"]}
    assert found["channels"]["p.m.call"]["description"] == "Do it. Run it and wait for its result."
