"""Which roles may publish or subscribe where, as errors name them."""

from __future__ import annotations

from gangline.schemas.names import GangOperation, Names, Operation, WorkerId
from gangline.schemas.permissions.roles import Role, permissions, roles_that_may

from ...support.rows import case

MINE = Names("mine")
P, R, OWN, G, W, D, C, V, OP = Role


def test_the_roles_that_may_publish_to_a_subject():
    cases = [
        (MINE.call("images", "resize"), (P, OP)),
        (f"_GANGLINE.{MINE.call('images', 'resize')}", (P, OP)),
        (MINE.worker(WorkerId("images", "w1"), Operation.RESERVE), (R, OP)),
        (MINE.worker(WorkerId("images", "w1"), Operation.DRAIN), (OP,)),
        (MINE.gang(GangOperation.GET), (R, OWN, V, OP)),
        (f"$JS.API.STREAM.INFO.KV_{MINE.ledger_bucket}", (R, G, W, D, C, V, OP)),
        (f"$KV.{MINE.routes_bucket}.route.images", (OP,)),
        (f"$JS.API.STREAM.MSG.GET.{MINE.history_stream}", (V, OP)),
        (MINE.audit("ann"), (OP,)),
        ("Somebody.elses.subject", ()),
        ("$JS.API.STREAM.INFO.ORDERS", ()),
        ("...", ()),
        ("\u00e9mile.call.images.resize", ()),
    ]
    for subject, roles in cases:
        with case(subject, roles):
            assert roles_that_may(subject, publish=True) == roles


def test_the_roles_that_may_subscribe_are_others():
    assert roles_that_may(f"$KV.{MINE.results_bucket}.result.j1", publish=False) == (P, V, OP)
    assert roles_that_may("mine.event.>", publish=False) == (V, OP)
    assert roles_that_may("mine.>", publish=False) == (OP,)
    assert roles_that_may(MINE.calls, publish=False) == (G, OP)


def test_of_several_subjects_only_roles_that_may_use_all_are_named():
    result = f"$KV.{MINE.results_bucket}.result.j1"
    assert roles_that_may(result, MINE.gang_events, publish=False) == (V, OP)


def test_each_role_is_found_for_whatever_it_may_do():
    for role in Role:
        allowed = permissions(role, MINE)
        for publish, patterns in ((True, allowed.publish), (False, allowed.subscribe)):
            own = [pattern.partition(" ")[0] for pattern in patterns if "mine" in pattern.lower()]
            assert own or not publish, role
            for pattern in own:
                assert role in roles_that_may(pattern, publish=publish), (role, pattern)
