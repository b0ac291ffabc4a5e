from __future__ import annotations

import re

from gangline.schemas.wire import headers

NAMES = {name: value for name, value in vars(headers).items() if name.isupper()}


def test_every_header_can_stand_in_a_nats_message():
    assert NAMES
    for value in NAMES.values():
        assert re.fullmatch(r"[A-Za-z-]+", value)


def test_no_two_headers_share_a_name_in_any_case():
    assert len({value.lower() for value in NAMES.values()}) == len(NAMES)


def test_a_copied_message_says_which_sequence_it_had_in_the_stream_that_it_comes_from():
    source = {headers.SOURCE: "jobs-schedules 17 gangline.due.>  >"}
    assert headers.copied_from(source, "jobs-schedules") == 17
    assert headers.copied_from(source, "jobs") is None, "from another stream"
    assert headers.copied_from({headers.SOURCE: "jobs-schedules x"}, "jobs-schedules") is None
    assert headers.copied_from({}, "jobs-schedules") is headers.copied_from(None, "jobs-schedules") is None


def test_errors_travel_in_the_headers_of_the_nats_micro_protocol():
    assert (headers.ERROR, headers.ERROR_CODE) == ("Nats-Service-Error", "Nats-Service-Error-Code")
