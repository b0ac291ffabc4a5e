"""What streams and consumers look like on the wire."""

from __future__ import annotations

import base64

import pytest

from gangline.bus.jetstream.wire import (
    check_stream,
    consumer_configuration,
    consumer_state,
    delivered_message,
    stored_message,
    stream_configuration,
    unix_time,
)
from gangline.bus.port.bus import ConsumerSettings, Message, Retention, StreamSettings
from gangline.schemas.errors.base import InvalidSettings

SETTINGS = StreamSettings(subjects=("a.>", "b"), retention=Retention.WORK_QUEUE)


@pytest.mark.parametrize(
    "ack",
    [
        "$JS.ACK.S.c.3.17.42.1795165151245869187.5",
        "$JS.ACK.hub.ACCHASH.S.c.3.17.42.1795165151245869187.5",
        "$JS.ACK._.ACCHASH.S.c.3.17.42.1795165151245869187.5.rAnDoM",
    ],
)
def test_an_acknowledgement_subject_of_any_form_tells_where_the_message_stands(ack):
    stored, ordinal = delivered_message(Message("a.x", b"body", ack, {"Key": "value"}))
    assert (stored.subject, stored.data, stored.headers) == ("a.x", b"body", {"Key": "value"})
    assert (stored.delivered, stored.sequence, ordinal) == (3, 17, 42)
    assert stored.at == pytest.approx(1795165151.245869)
    assert stored.ack == ack


def test_a_stored_message_is_read_from_the_api():
    block = base64.b64encode(b"NATS/1.0\r\nKey: value\r\n\r\n").decode()
    answer = {"subject": "a.x", "seq": 7, "data": base64.b64encode(b"body").decode(), "hdrs": block}
    stored = stored_message({**answer, "time": "2026-11-20T08:59:12.123456789Z"})
    assert (stored.subject, stored.sequence, stored.data, stored.headers) == ("a.x", 7, b"body", {"Key": "value"})
    assert stored.at == pytest.approx(unix_time("2026-11-20T08:59:12Z") + 0.123456)
    bare = stored_message({"subject": "a.x", "seq": 7, "time": "2026-11-20T08:59:12Z"})
    assert (bare.data, bare.headers) == (b"", None)


def test_a_stream_allows_schedules_and_so_discards_the_old():
    configuration = stream_configuration("S", SETTINGS)
    assert configuration["discard"] == "old"
    assert configuration["allow_msg_schedules"] and configuration["allow_msg_ttl"] and configuration["allow_atomic"]
    assert configuration["duplicate_window"] == 120_000_000_000


def test_the_window_for_duplicates_is_no_longer_than_messages_live():
    settings = StreamSettings(subjects=("a",), max_age_s=10.0)
    assert stream_configuration("S", settings)["duplicate_window"] == 10_000_000_000


def test_an_existing_stream_must_have_subjects_retention_and_switches():
    good = stream_configuration("S", SETTINGS)
    check_stream("S", SETTINGS, {**good, "subjects": ["a.>", "b", "c"], "max_age": 5})
    for wrong in ({"subjects": ["a.>"]}, {"retention": "limits"}, {"allow_msg_schedules": False}):
        with pytest.raises(InvalidSettings):
            check_stream("S", SETTINGS, {**good, **wrong})
    check_stream("S", SETTINGS, {**good, "allow_msg_schedules": False}, needed=())


def test_a_consumer_is_durable_and_is_removed_only_if_that_was_wanted():
    settings = ConsumerSettings(filter="a.>", ack_wait_s=1.5, max_pending=7, metadata={"k": "v"})
    configuration = consumer_configuration("c", settings)
    assert configuration["durable_name"] == "c"
    assert configuration["ack_wait"] == 1_500_000_000
    assert configuration["max_ack_pending"] == 7
    assert "inactive_threshold" not in configuration
    configuration = consumer_configuration("c", ConsumerSettings(filter="a.>", inactive_s=2.0))
    assert configuration["inactive_threshold"] == 2_000_000_000


def test_what_the_server_writes_into_metadata_is_left_out():
    info = {"name": "c", "config": {"filter_subject": "a.>", "metadata": {"_nats.ver": "2.15", "k": "v"}}}
    state = consumer_state({**info, "num_pending": 3, "num_ack_pending": 2})
    assert (state.filter, state.pending, state.unacknowledged, state.metadata) == ("a.>", 3, 2, {"k": "v"})
