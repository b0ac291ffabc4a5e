"""What streams and consumers look like on the wire."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from gangline.bus.jetstream.wire import (
    check_configuration,
    consumer_configuration,
    consumer_state,
    delivered_message,
    stored_message,
    stream_configuration,
    unix_time,
)
from gangline.bus.port.bus import ConsumerSettings, Message, Retention, StreamSettings, StreamSource
from gangline.schemas.errors.base import InvalidSettings

from ...support.rows import in_rows

SETTINGS = StreamSettings(subjects=("a.>", "b"), retention=Retention.WORK_QUEUE, schedules=True)


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


def test_a_stream_takes_rollup_only_with_schedules():
    for schedules in (True, False):
        configuration = stream_configuration("S", replace(SETTINGS, schedules=schedules))
        assert configuration["allow_msg_schedules"] is configuration["allow_rollup_hdrs"] is schedules
        assert configuration["discard"] == "old" and configuration["allow_msg_ttl"]
        assert configuration["allow_atomic"] is False
    assert configuration["duplicate_window"] == 120_000_000_000


def test_the_window_for_duplicates_is_no_longer_than_messages_live():
    settings = StreamSettings(subjects=("a",), max_age_s=10.0)
    assert stream_configuration("S", settings)["duplicate_window"] == 10_000_000_000


HARMFUL = [
    {"subjects": ["a.>"]},
    {"subjects": ["a.>", "b", "_INBOX.>"]},
    {"retention": "limits"},
    {"allow_msg_schedules": False},
    {"sources": [{"name": "OTHER"}]},
    {"mirror": {"name": "OTHER"}},
    {"republish": {"src": "a.>", "dest": "mine.>"}},
    {"subject_transform": {"src": "a.>", "dest": "b.>"}},
    {"max_msgs_per_subject": 1},
    {"max_msgs": 1},
    {"max_age": 1},
    {"sealed": True},
    {"no_ack": True},
    {"allow_msg_counter": True},
    {"of_a_server_to_come": True},
]


@in_rows("wrong", HARMFUL)
def test_a_stream_that_somebody_made_otherwise_is_refused_and_the_error_says_how_it_differs(wrong):
    made = stream_configuration("S", SETTINGS)
    with pytest.raises(InvalidSettings, match=next(iter(wrong))) as caught:
        check_configuration("the stream S", made, {**made, **wrong})
    assert "nats stream" in str(caught.value)


def test_what_operators_tune_and_what_servers_leave_out_or_add_is_accepted():
    made = stream_configuration("S", SETTINGS)
    tuned = {"max_bytes": 100, "num_replicas": 3, "storage": "memory", "description": "ours"}
    told = {"consumer_limits": {}, "mirror_direct": False, "sealed": False, "metadata": {"_nats.level": "5"}}
    there = {name: value for name, value in {**made, **tuned, **told}.items() if value is not False}
    assert check_configuration("the stream S", made, there) == {}
    aged = stream_configuration("S", StreamSettings(subjects=("a.>",), max_age_s=10.0))
    assert check_configuration("the stream S", aged, {**aged, "max_age": 5, "max_msgs": 100}) == {}


def test_a_source_may_begin_elsewhere_in_an_existing_stream():
    settings = StreamSettings(subjects=("a.>",))
    source = StreamSource(name="OTHER", settings=settings, subjects="b.>", to="a.>", start=1)
    made = stream_configuration("S", replace(settings, sources=(source,)))
    (began,) = made["sources"]
    assert began["opt_start_seq"] == 1
    for later in (7, 0):
        assert check_configuration("the stream S", made, {**made, "sources": [{**began, "opt_start_seq": later}]}) == {}


def test_what_an_update_can_mend_is_mended():
    made = stream_configuration("S", SETTINGS)
    assert check_configuration("the stream S", made, {**made, "allow_direct": True}) == {"allow_direct": False}


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
