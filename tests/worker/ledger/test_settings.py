"""Worker settings: defaults, bounds, and what their errors say."""

from __future__ import annotations

import random

import pytest

from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import InvalidName, InvalidSettings
from gangline.schemas.names import check_name
from gangline.worker.ledger.settings import WorkerSettings

from ...support.rows import in_rows


@in_rows(
    "field, value",
    [
        ("freeze_after_s", 0.1),
        ("drain_grace_s", -1),
        ("drain_grace_s", float("nan")),
        ("max_lease_ttl_s", 0.5),
        ("heartbeat_s", 0),
        ("stream_window", 0),
        ("answer_retention_s", "60"),
        ("start_timeout_s", True),
        ("slots", -1),
        ("slots", 1.5),
        ("labels", {"gpu": 1}),
    ],
)
def test_a_value_out_of_bounds_is_named_with_what_was_given(field, value):
    with pytest.raises(InvalidSettings) as caught:
        WorkerSettings(**{field: value})
    named = "gpu" if field == "labels" else field
    assert named in str(caught.value)
    given = value if field != "labels" else 1
    assert repr(given) in str(caught.value)


def test_large_bounds_are_written_in_full():
    with pytest.raises(InvalidSettings, match="drain_grace_s is -3: give a number from 0 to 2592000$"):
        WorkerSettings(drain_grace_s=-3)
    with pytest.raises(InvalidSettings, match="from 1000 to 10000000$"):
        WorkerSettings(answer_retention_count=0)


def test_a_heartbeat_that_may_miss_none_is_refused():
    with pytest.raises(InvalidSettings, match="at least twice heartbeat_s"):
        WorkerSettings(heartbeat_s=2.0, heartbeat_ttl_s=3.0)


def test_an_id_must_fit_a_subject():
    with pytest.raises(InvalidName, match="worker 'a.b'"):
        WorkerSettings(id="a.b")


def test_the_default_id_is_readable_valid_and_new_each_time():
    ambient = Environment(random=random.Random(7))
    settings = WorkerSettings()
    names = {settings.worker_name(ambient) for _ in range(50)}
    assert len(names) > 45
    for name in names:
        check_name(name, "worker")
        assert len(name.split("-")) >= 3


def test_node_and_zone_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("GANGLINE_NODE", "rack7")
    monkeypatch.setenv("GANGLINE_ZONE", "eu-1")
    settings = WorkerSettings()
    assert (settings.node, settings.zone) == ("rack7", "eu-1")
