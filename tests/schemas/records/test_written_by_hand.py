"""Records that somebody wrote with `nats kv put`: what cannot be read raises nothing but a ValidationError, which every
reader of the ledger catches. Any other error once ended each new leader's term."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.limits import MAX_RECORD_ITEMS
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.messages.operations import parse_request
from gangline.schemas.records.gangs import GangRecord, GangSetRecord, MemberRecord, ShardMap
from gangline.schemas.records.jobs import ResultRecord, TryRecord
from gangline.schemas.records.routes import RouteRecord, parse_route
from gangline.schemas.records.workers import Heartbeat, LeaseRecord, Registration, complaint

HOSTILE: tuple[Any, ...] = (
    "$KV",
    "",
    "a.b",
    "a b",
    "\x00",
    "ä" * 300,
    -1,
    1e308,
    2**70,
    True,
    None,
    [],
    {},
    [[]],
    {"": 1},
)


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a document, and to each key of a map."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield (key,)
        yield from ((key, *rest) for rest in _places(item))


def _with(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    return changed


def _spoilt(document: Any) -> Iterator[Any]:
    for place in _places(document):
        for value in HOSTILE:
            yield _with(document, place, value)
            if isinstance(value, str) and isinstance(place[-1], str):  # as a key of its map, too
                parent = document
                for key in place[:-1]:
                    parent = parent[key]
                yield _with({"": document}, ("", *place[:-1]), {**parent, value: parent[place[-1]]})[""]


ERROR = {"code": "task_failed", "message": "no", "details": {"type": "ValueError"}}
TRIES = [{"attempt": 1, "worker": "images.w1", "started_at": 1.5, "ended_at": 2.5, "error": ERROR}]
GANG = {"bundles": [{"pool": "train", "count": 2, "extras": [{"pool": "licence", "slots": 1}]}], "ttl_s": 30.0}
SEAT = {"rank": 0, "pool": "train", "worker": "w1", "epoch": 7, "slots": 1, "token": "t"}
WRITTEN: tuple[tuple[type[BaseModel], dict[str, Any]], ...] = (
    (GangSetRecord, {"gangs": 2, "surge": 1, "gang": {"pool": "train", "size": 2}}),
    (GangRecord, {"id": "g1", "state": "formed", "spec": GANG, "seats": [SEAT], "owner_token": "t"}),
    (MemberRecord, {"gang": "g1", "generation": 1, "epoch": 7, "seats": [{"rank": 0, "token": "t"}]}),
    (ShardMap, {"shards": {"a": ["train"], "b": []}}),
    (RouteRecord, {"to": {"v1": 9, "v2": 1}, "shadow": {"v3": 5}, "limits": {"v1": 3}, "queue": {"per_key": 1}}),
    (Registration, {"pool": "p", "worker": "w", "epoch": 7, "instance": "i", "slots": 2, "labels": {"a": "b"}}),
    (Heartbeat, {"epoch": 7, "instance": "i", "running": 0, "reserved": 0, "total": 2, "models": ["m"]}),
    (
        LeaseRecord,
        {"pool": "p", "worker": "w", "epoch": 7, "token": "t", "slots": 1, "fence": 9, "single_use": False}
        | {"granted_at": 1.5, "expires_at": 2.5},
    ),
    (ResultRecord, {"job": "j", "endpoint": "e", "method": "m", "state": "dead", "error": ERROR, "tries": TRIES}),
    (TryRecord, {"job": "j", "sequence": 1, "attempts": 1, "not_before": 1.5, "error": ERROR, "tries": TRIES}),
)


@pytest.mark.parametrize(("model", "document"), WRITTEN, ids=lambda each: getattr(each, "__name__", ""))
def test_whatever_stands_in_a_record_is_read_or_refused_in_one_way(model: type[BaseModel], document: Any) -> None:
    model.model_validate_json(json.dumps(document))
    refused = 0
    for spoilt in _spoilt(document):
        try:
            model.model_validate_json(json.dumps(spoilt))
        except ValidationError:
            refused += 1
        if model is RouteRecord:
            try:
                parse_route("images", json.dumps(spoilt).encode())
            except InvalidRequest as error:
                assert "Value error" not in error.message
    assert refused


def test_a_request_with_one_bad_name_says_so_with_that_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^pool '\$KV' may only have letters") as caught:
        parse_request(AcquireRequest, {"pool": "$KV", "size": 2})
    assert caught.value.code == "invalid_name"
    with pytest.raises(InvalidRequest, match=r"pool: pool '\$KV' may only have .*; bundles.0.count: ") as caught:
        parse_request(AcquireRequest, {"pool": "$KV", "size": -1})
    assert caught.value.code == "invalid_request" and "Value error" not in caught.value.message


LABELS = b'{"pool":"p","worker":"w","epoch":7,"instance":"i","slots":2,"labels":{%s}}'


def test_a_record_with_very_many_values_is_refused_before_it_is_read() -> None:
    labels = b",".join(b'"%d":0' % number for number in range(MAX_RECORD_ITEMS + 1))
    with pytest.raises(ValidationError, match="it has too many values") as caught:
        Registration.read(LABELS % labels)
    assert complaint(caught.value) == "it has too many values"
    with pytest.raises(InvalidRequest, match="too many values"):
        parse_route("images", b'{"limits": {%s}}' % labels)


def test_what_is_wrong_with_a_record_is_told_in_a_line() -> None:
    labels = b",".join(b'"%s%d":0' % (b"x" * 300, number) for number in range(1000))
    with pytest.raises(ValidationError) as caught:
        Registration.read(LABELS % labels)
    told = complaint(caught.value)
    assert told.startswith("labels.xxx") and told.endswith("valid string; and 997 more") and len(told) < 1000
