from __future__ import annotations

import json
import re

from gangline.schemas.catalogue import asyncapi
from gangline.schemas.catalogue.catalogue import catalogue
from gangline.schemas.names import GangOperation, Names, Operation, QueueOperation, WorkerId
from gangline.schemas.wire import headers


def _filled(address: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: {"ns": "gangline", "NS": "GANGLINE"}.get(match[1], match[1]), address)


def test_an_address_with_its_placeholders_filled_is_what_names_builds():
    names = Names()
    by_name = {channel.name: _filled(channel.address) for channel in catalogue()}
    worker = WorkerId("pool", "worker")
    assert by_name["call"] == names.call("endpoint", "method")
    assert by_name["task"] == names.task("endpoint", "method")
    assert by_name["worker_reserve"] == names.worker(worker, Operation.RESERVE)
    assert by_name["key_lease"] == f"$KV.{names.ledger_bucket}.{names.lease_key(worker, '~id')}"
    assert by_name["key_result"] == f"$KV.{names.results_bucket}.{names.result_key('job')}"


def test_no_operation_of_workers_gangs_and_queues_is_missing():
    found = {channel.name for channel in catalogue()}
    wanted = {
        *(f"worker_{operation}" for operation in Operation),
        *(f"gang_{operation}" for operation in GangOperation),
        *(f"queue_{operation}" for operation in QueueOperation),
    }
    assert wanted <= found


def test_every_reference_of_the_document_leads_somewhere():
    document = asyncapi.document("1.2.3")
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        place = document
        for part in reference.split("/"):
            place = place[part]


def test_every_header_that_gangline_reads_or_writes_is_in_the_document():
    messages = asyncapi.document("1.2.3")["components"]["messages"].values()
    documented = {name for message in messages for name in message.get("headers", {}).get("properties", {})}
    known = {text for name, text in vars(headers).items() if name.isupper() and str(text).startswith("Gangline-")}
    assert known - documented == set()


def test_every_placeholder_is_described():
    document = asyncapi.document("1.2.3")
    for channel in document["channels"].values():
        named = set(re.findall(r"{(\w+)}", channel["address"]))
        assert named == set(channel.get("parameters", {}))
        assert all(each["description"] for each in channel.get("parameters", {}).values())


def test_the_document_says_which_version_it_is_of():
    assert json.loads(asyncapi.text("1.2.3"))["info"]["version"] == "1.2.3"
