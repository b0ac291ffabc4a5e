"""When certificates and credentials end."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Final

from ..errors.base import InvalidRequest
from .jwt_config import claims_of

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----\s+(.+?)\s+-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _VERSION = 0x30, 0x17, 0xA0


def end_of_credentials(text: str) -> float | None:
    """Unix time at which a `.creds` file ends; None: never, or it is no such file."""
    try:
        end = claims_of(text).get("exp")
    except InvalidRequest:
        return None
    return float(end) if isinstance(end, int | float) else None


def end_of_certificates(text: str) -> float | None:
    """Unix time at which the first of the certificates in a PEM file ends; None: there is none that can be read."""
    ends = []
    for body in _PEM.findall(text):
        try:
            ends.append(_not_after(base64.b64decode(body)))
        except (ValueError, IndexError):
            continue
    return min(ends, default=None)


def _not_after(certificate: bytes) -> float:
    """RFC 5280: Certificate = (TBSCertificate = ([version], serial, algorithm, issuer, (notBefore, notAfter), ...))"""
    _, outer, _ = _element(certificate)
    _, rest, _ = _element(outer)
    tag, _, after = _element(rest)
    for _ in range(3 if tag == _VERSION else 2):
        _, _, after = _element(after)
    tag, validity, _ = _element(after)
    if tag != _SEQUENCE:
        raise ValueError("no validity")
    _, _, end = _element(validity)
    tag, moment, _ = _element(end)
    digits = moment.decode("ascii")
    if tag == _UTC_TIME:
        digits = f"{'19' if digits >= '50' else '20'}{digits}"
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and contents of the first element of DER, and what follows it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if start + length > len(data):
        raise ValueError("cut off")
    return tag, data[start : start + length], data[start + length :]
