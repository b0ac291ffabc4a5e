"""Mutates valid input, determined by a seed: the structure of a body, its bytes, and headers. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import msgpack

HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 1e308, -1e308, 0.1, 5e-324),
    *("", " ", "a", "a.b", "a b", "*", ">", "$KV", "$JS.API.STREAM.NAMES", "\x00", "\r\n", "\x1b[2J", "ä", "\u2028"),
    *("é" * 200, "x" * 5000, "9" * 5000, "NaN", "-1", "1e999", "true", "null", "2030-01-01T00:00:00Z", "@every 1ms"),
    *([], {}, [[]], {"": 1}, {"a": {"b": []}}, [None] * 50, [[]] * 500, {str(n): n for n in range(200)}),
)
_KEYS: Final = b"{" + b",".join(b'"%d":0' % number for number in range(9000)) + b"}"
RAW: Final = (
    b"", b" ", b"null", b"0", b"[]", b"{}", b"{", b"[", b'"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"NaN", b"[NaN]", b"{}{}",
    b"9" * 5000, b"-", b"1e99999", b'"\\ud800"', b'{"a":1,"a":2}', b"[" * 65, b"[" * 100_000, b'{"a":' * 1000,
    b"[" + b"[]," * 50_000 + b"[]]", b"[" + b"0," * 50_000 + b"0]", _KEYS,
    b"\x90", b"\x80", b"\xc0", b"\xc1", b"\x91" * 70, b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xffx", b"\xc7\x01\x05x", b"\xd6\xff\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_00, b"\xca\x7f\xc0\x00\x00", b"\x81\x90\x01", b"x" * 60_000,
)  # fmt: skip
"""Whole bodies: JSON, msgpack and neither."""
HEADER_NAMES: Final = (
    *("Gangline-Timeout", "Gangline-Key", "Gangline-Model", "Gangline-Idempotent", "Gangline-Job", "Gangline-Priority"),
    *("Gangline-Ordered", "Gangline-Deadline", "Gangline-Delay", "Gangline-Max-Attempts", "Gangline-Backoff"),
    *("Gangline-Result-TTL", "Gangline-Events", "Gangline-Attempts", "Gangline-Dead-Error", "Gangline-Dead-Reason"),
    *("traceparent", "Content-Type", "content-TYPE", "Nats-Service-Error", "Nats-Service-Error-Code", "Status"),
    *("x", "a b", "a(b)", "a@b", "[x]", "ä", "X-" + "y" * 500, "Gangline-Unknown", "Gangline-Pool", "Gangline-Cron"),
    *("Gangline-Stream", "Gangline-Arguments", "Nats-Request-Info"),
)
HEADER_VALUES: Final = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "2.5",
        "1e999",
        "nan",
        "inf",
        "9" * 400,
        "soon",
        "5m",
        "2h",
        "30d",
        "true",
        "no",
        "maybe",
    ),
    *(
        "application/json",
        "application/msgpack",
        "text/xml",
        "a.b",
        "$KV",
        "ä",
        "x" * 3000,
        "a\tb",
        "\x1b[31mred",
        "{}",
    ),
    *("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "00-" + "z" * 200, "2030-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    *("0 0 3 * * *", "@every 1h", "404", "fuzz", "null", '{"code": 5}'),
)


_MOST_VALUES: Final = 200_000


class Mutator:
    """Draws mutations, determined by the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def value(self, document: Any) -> Any:
        """A document with one to three changes."""
        changed = copy.deepcopy(document)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            changed = self._changed(changed)
        return changed if _is_encodable(changed) else copy.deepcopy(self._random.choice(HOSTILE))

    def _changed(self, document: Any) -> Any:
        random = self._random
        places = list(_places(document))
        if not places or random.random() < 0.03:
            return copy.deepcopy(random.choice(HOSTILE))
        parent, key = random.choice(places)
        kind = random.randrange(9)
        if kind <= 3:
            parent[key] = copy.deepcopy(random.choice(HOSTILE))
        elif kind == 4:
            del parent[key]
        elif kind == 5:
            for _ in range(random.choice((1, 3, 70))):
                parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}
        elif kind == 6 and isinstance(parent, dict):
            name = random.choice([each for each in HOSTILE if isinstance(each, str)])
            parent[name] = parent.pop(key)
        elif kind == 7:
            other, where = random.choice(places)
            parent[key] = copy.deepcopy(other.get(where) if isinstance(other, dict) else other[where : where + 1])
        elif isinstance(parent, list):
            parent += copy.deepcopy(parent[:1]) * random.choice((1, 10, 1000))
        elif isinstance(parent[key], int):
            parent[key] += random.choice((-1, 1, 1000, -(10**6)))
        else:
            parent[key] = [parent[key]] * 2
        return document

    def data(self, data: bytes) -> bytes:
        """The data with a few bytes changed, inserted, doubled or removed."""
        random = self._random
        if not data or random.random() < 0.1:
            return random.choice(RAW)
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 4, 16))):
            at = random.randrange(len(changed) + 1)
            match random.randrange(5):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << random.randrange(8)
                case 1 if at < len(changed):
                    changed[at] = random.randrange(256)
                case 2:
                    changed[at:at] = random.randbytes(random.randrange(1, 9))
                case 3:
                    del changed[at : at + random.randrange(1, 9)]
                case _:
                    end = min(len(changed), at + random.randrange(1, 33))
                    changed[at:at] = changed[at:end]
        return bytes(changed)

    def headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """Some of these headers, and some others."""
        random = self._random
        found = {name: text for name, text in given.items() if random.random() < 0.8}
        for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
            found[random.choice(HEADER_NAMES)] = random.choice(HEADER_VALUES)
        return found

    def body(self, document: Any) -> tuple[bytes, bool]:
        """A body in JSON or msgpack, mutated in structure or in bytes, and whether it is msgpack."""
        random = self._random
        as_msgpack = random.random() < 0.4
        if random.random() < 0.6:
            document = self.value(document)
            return encoded(document, as_msgpack=as_msgpack), as_msgpack
        data = encoded(document, as_msgpack=as_msgpack)
        return (self.data(data) if random.random() < 0.8 else random.choice(RAW)), as_msgpack


def encoded(document: Any, *, as_msgpack: bool) -> bytes:
    """Encode a value; parts that the format does not support become text."""
    if not as_msgpack:
        return json.dumps(document, default=str).encode("utf-8", "replace")
    try:
        return bytes(msgpack.packb(document, default=str))
    except (ValueError, OverflowError, UnicodeEncodeError):
        return bytes(msgpack.packb(str(document).encode("utf-8", "replace")[:1000]))


def _is_encodable(document: Any) -> bool:
    """Whether encoding it takes no more than a moment: lists in lists, each a thousand times, would take minutes."""
    left, count = [document], 0
    while left and count <= _MOST_VALUES:
        item = left.pop()
        count += 1
        if isinstance(item, (dict, list)):
            left += item.values() if isinstance(item, dict) else item
    return count <= _MOST_VALUES


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or map, with each of its indexes or keys."""
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, item in list(pairs):
        yield document, key
        yield from _places(item)
