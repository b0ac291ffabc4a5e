"""When certificates and credentials end."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline.bus.settings.keys import KeyKind, KeyPair
from gangline.schemas.permissions.expiry import end_of_certificates, end_of_credentials
from gangline.schemas.permissions.jwt_config import credentials
from gangline.schemas.permissions.nats_config import parse_user

TLS = Path(__file__).parents[2] / "support" / "bus" / "tls"


def of(name: str) -> str:
    return (TLS / f"{name}.pem").read_text()


def test_the_first_certificate_of_a_file_that_ends_counts():
    ends = [end_of_certificates(of(name)) for name in ("client", "server", "ca")]
    assert [str(datetime.fromtimestamp(end or 0, UTC)) for end in ends] == [
        "2126-11-01 23:51:20+00:00",
        "2126-11-01 23:51:20+00:00",
        "2126-11-01 23:51:19+00:00",
    ]
    assert end_of_certificates(of("client") + of("ca")) == min(filter(None, (ends[0], ends[2])))


def element(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag, len(body)]) + body


@pytest.mark.parametrize(("written", "year"), [(b"490102030405Z", 2049), (b"510102030405Z", 1951)])
@pytest.mark.parametrize("version", [b"", element(0xA0, element(2, b"\x02"))])
def test_years_of_two_digits_are_those_before_2050(written, year, version):
    validity = element(0x30, element(0x17, b"480102030405Z"), element(0x17, written))
    inner = element(0x30, version, element(2, b"\x01"), element(0x30), element(0x30), validity)
    body = base64.b64encode(element(0x30, inner)).decode()
    end = end_of_certificates(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    assert end == datetime(year, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("cut", range(0, 700, 150))
def test_a_file_that_is_no_certificate_has_no_end_and_raises_nothing(cut):
    text = of("client")
    end_of_certificates(text[: len(text) // 3] + text[len(text) // 3 + cut :])
    assert end_of_certificates(text[:cut]) is None


def test_credentials_have_the_end_that_they_were_given():
    keys = [KeyPair.new(kind) for kind in (KeyKind.USER, KeyKind.ACCOUNT)]
    for end in (5000, None):
        text = credentials(parse_user("operator"), keys[1].public, *keys, issued_at=1000, expires_at=end)
        assert end_of_credentials(text) == end
    assert end_of_credentials("nonsense") is None
