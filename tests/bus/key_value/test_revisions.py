from __future__ import annotations

from gangline.bus.key_value.wire import first_revision
from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings
from gangline.runtime.clock import Environment

NOW = 1_790_000_000.0


def test_a_bucket_begins_at_the_time_in_microseconds():
    assert first_revision(NOW) == (1_790_000_000 - 1_577_836_800) * 1_000_000
    assert first_revision(NOW + 1) - first_revision(NOW) == 1_000_000


def test_revisions_are_exact_in_json_for_some_centuries():
    assert first_revision(10_000_000_000.0) < 2**53


def test_what_is_remembered_is_gone_beyond_even_where_the_clock_is_behind():
    assert first_revision(NOW, seen=first_revision(NOW + 3600)) > first_revision(NOW + 3600)
    assert first_revision(NOW, seen=5) == first_revision(NOW)


def test_what_is_remembered_does_not_lead_ahead_of_the_time():
    """Else a process that remembers nothing would begin below, after a few restarts in a row."""
    at = first_revision(NOW)
    for restart in range(1, 5):
        at = first_revision(NOW + restart, seen=at + 1000)
    assert first_revision(NOW + 5) > at + 1000


def test_a_clock_before_2020_still_gives_a_revision_that_a_stream_takes():
    assert first_revision(0.0) == 1


async def test_in_memory_a_bucket_made_again_at_the_same_time_goes_on_above_the_one_before():
    hub = MemoryServer(ambient=Environment(wall=lambda: NOW))
    bucket = await hub.connect().bucket("B", BucketSettings())
    before = [await bucket.put("k", b"") for _ in range(3)]
    assert before[0] == first_revision(NOW)
    hub.stop()
    hub.start()
    assert await bucket.put("k", b"", revision=0) > before[-1]
