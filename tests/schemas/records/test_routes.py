"""Routes as somebody put them into the bucket: read, or refused with what is wrong."""

from __future__ import annotations

import pytest

from gangline.schemas.errors.base import InvalidRoute
from gangline.schemas.records.routes import EXAMPLE, QueueRules, RouteRecord, parse_route
from gangline.schemas.wire import codec

from ...support.rows import case


def test_a_route_is_read_whole() -> None:
    route = parse_route(
        "resize",
        codec.to_json(
            {
                "to": {"v1": 90, "v2": 10.5},
                "shadow": {"v3": 5},
                "by_key": False,
                "limits": {"v1": 8},
                "queue": {"per_key": 3, "rate_per_s": 0.5, "paused": True},
            }
        ),
    )
    assert route == RouteRecord(
        to={"v1": 90, "v2": 10.5},
        shadow={"v3": 5},
        by_key=False,
        limits={"v1": 8},
        queue=QueueRules(per_key=3, rate_per_s=0.5, paused=True),
    )
    assert route.pools("resize") == {"v1": 90, "v2": 10.5}


def test_the_example_in_errors_is_a_route() -> None:
    assert parse_route("resize", EXAMPLE.encode()).to


def test_an_empty_route_is_the_pool_of_the_endpoints_name() -> None:
    assert parse_route("resize", b"{}").pools("resize") == {"resize": 1.0}


def test_what_cannot_be_followed_is_refused_with_the_field_and_the_reason() -> None:
    cases = [
        (b"", "not JSON"),
        (b'{"to": ', "not JSON"),
        (b"7", "write an object, such as"),
        (b'{"too": {}}', "no field 'too'"),
        (b'{"queue": {"per_keys": 3}}', "no field 'queue.per_keys'"),
        (b'{"to": {"v1": 0}}', "the weights in `to` add up to 0"),
        (b'{"to": {"v1": -1}}', "to.v1: Input should be greater than or equal to 0"),
        (b'{"to": {"v1": "many"}}', "to.v1: Input should be a valid number"),
        (b'{"to": {"v1": NaN}}', "route resize"),
        (b'{"to": {"v1": 1e999}}', "route resize"),
        (b'{"to": {"no.pool": 1}}', "'no.pool' may only have letters"),
        (b'{"to": {"v1": 1}, "shadow": {"v1": 5}}', "v1 is in both `to` and `shadow`"),
        (b'{"shadow": {"v3": 101}}', "shadow.v3"),
        (b'{"limits": {"v1": 0}}', "limits.v1"),
        (b'{"queue": {"max_running": 0}}', "queue.max_running"),
        (b'{"queue": {"rate_per_s": 0}}', "queue.rate_per_s"),
        (b'{"v": 2}', "version 2 is newer"),
        (codec.to_json({"to": {f"p{number}": 1 for number in range(65)}}), "to: "),
    ]
    for value, says in cases:
        with case(value, says):
            with pytest.raises(InvalidRoute) as caught:
                parse_route("resize", value)
            assert str(caught.value).startswith("route resize: ")
            assert says in str(caught.value)
