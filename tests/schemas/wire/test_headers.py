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


def test_errors_travel_in_the_headers_of_the_nats_micro_protocol():
    assert (headers.ERROR, headers.ERROR_CODE) == ("Nats-Service-Error", "Nats-Service-Error-Code")
