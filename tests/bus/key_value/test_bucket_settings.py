from __future__ import annotations

import pytest

from gangline.bus.port.bus import BucketSettings, Storage
from gangline.schemas.errors.base import InvalidSettings

from ...support.rows import in_rows


def test_a_bucket_is_one_copy_in_memory_unless_told_otherwise():
    assert BucketSettings.from_environment({}) == BucketSettings(storage=Storage.MEMORY, replicas=1)
    assert BucketSettings.from_environment({"GANGLINE_STORAGE": "", "GANGLINE_REPLICAS": ""}) == BucketSettings()


def test_the_environment_sets_copies_and_storage():
    told = BucketSettings.from_environment({"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": "3"})
    assert told == BucketSettings(storage=Storage.FILE, replicas=3)
    assert BucketSettings.from_environment({"GANGLINE_MAX_BYTES": "-1"}) == BucketSettings(max_bytes=-1)
    assert BucketSettings.from_environment({"GANGLINE_MAX_BYTES": "4096"}).max_bytes == 4096


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("GANGLINE_REPLICAS", "5")
    assert BucketSettings.from_environment().replicas == 5


@in_rows(
    ("variable", "value"),
    [
        ("GANGLINE_STORAGE", "disk"),
        ("GANGLINE_STORAGE", "FILE"),
        ("GANGLINE_REPLICAS", "three"),
        ("GANGLINE_MAX_BYTES", "1GB"),
        ("GANGLINE_REPLICAS", "-1"),
        ("GANGLINE_REPLICAS", "1.5"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_may_be(variable, value):
    with pytest.raises(InvalidSettings, match=f"{variable} is '{value}': use"):
        BucketSettings.from_environment({variable: value})


@in_rows("wrong", [{"replicas": 0}, {"replicas": 6}, {"max_bytes": 0}, {"max_bytes": -2}])
def test_settings_out_of_their_bounds_are_refused(wrong):
    with pytest.raises(InvalidSettings, match=next(iter(wrong))):
        BucketSettings(**wrong)
