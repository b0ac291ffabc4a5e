"""Pools of a queue: credit, routes, facts."""

from __future__ import annotations

from gangline.dispatcher.durable.core.events import PoolSeen
from gangline.dispatcher.durable.core.pools import PoolCredits
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.routes import RouteRecord


def submission(**fields) -> Submission:
    return Submission(endpoint="e", method="m", job="j", **fields)


def test_credit_is_taken_from_the_smallest_lease_that_has_room():
    view = PoolCredits("e")["e"]
    view.credit((4, 0, 2, 3))
    assert (view.free, view.free_slots) == ([2, 3, 4], 9)
    view.take(3)
    assert view.free == [2, 4]
    view.take(3)
    assert (view.free, view.free_slots) == ([1, 2], 3)


def test_an_endpoint_is_known_by_its_route_or_by_a_pool_of_it():
    pools = PoolCredits("e")
    assert not pools.knows(submission())
    pools.seen(PoolSeen(now=0.0, wall=0.0, pool="f", known=True))
    assert not pools.knows(submission())
    assert not pools.knows(submission(pool="f")), "it is not the endpoint's"
    pools.route(RouteRecord(to={"f": 1.0}), explicit=False)
    assert pools.knows(submission()) and pools.knows(submission(pool="f"))
    pools.route(RouteRecord(), explicit=True)
    assert pools.knows(submission())
    assert not pools.knows(submission(pool="g"))


def test_only_changes_that_matter_to_the_line_are_told():
    pools = PoolCredits("e")
    fields = {"now": 0.0, "wall": 0.0, "pool": "e", "known": True}
    assert pools.seen(PoolSeen(**fields, workers=1, largest=4, costs={"m": 2}))
    assert not pools.seen(PoolSeen(**fields, workers=2, largest=4, costs={"m": 2}))
    assert pools.seen(PoolSeen(**fields, workers=2, largest=4, costs={"m": 3}))
