"""The protocol's two hot halves, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.bus.nats_client.protocol import (
    ProtocolParser,
    ProtocolViolation,
    decode_headers,
    encode_headers,
    publication,
    publications,
)
from gangline.schemas.errors.base import InvalidRequest

from ...scale import repetitions
from ...support.rows import in_rows

FEW = settings(max_examples=repetitions(10, whole=50))
names = st.text("ABCabc-_", min_size=1, max_size=8)
values = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=12
)
subjects = st.text("abc.$_-", min_size=1, max_size=12)
messages = st.tuples(
    st.integers(1, 9999).map(lambda sid: str(sid).encode()),
    subjects.map(str.encode),
    st.one_of(st.just(b""), subjects.map(str.encode)),
    st.binary(max_size=64),
    st.one_of(st.none(), st.dictionaries(names, values, min_size=1, max_size=3)),
)


class Heard:
    def __init__(self) -> None:
        self.all: list[object] = []
        self.feed = ProtocolParser(self.deliver, self.control).feed

    def deliver(self, *message: bytes) -> None:
        self.all.append(message)

    def control(self, line: bytes) -> None:
        self.all.append(line)


def server_line(sid, subject, reply, data, headers):
    """What a server sends for a message."""
    words = [subject, sid, *([reply] if reply else [])]
    if headers is None:
        return b"MSG " + b" ".join([*words, str(len(data)).encode()]) + b"\r\n" + data + b"\r\n"
    block = encode_headers(headers)
    sizes = [str(len(block)).encode(), str(len(block) + len(data)).encode()]
    return b"HMSG " + b" ".join([*words, *sizes]) + b"\r\n" + block + data + b"\r\n"


@FEW
@given(
    st.lists(st.one_of(messages, st.sampled_from([b"PING", b"PONG", b"+OK", b"-ERR 'x y'", b'INFO {"a": 1}']))),
    st.lists(st.integers(0, 2000)),
)
def test_however_the_bytes_are_cut_the_same_comes_out(script, cuts):
    stream = b"".join(item + b"\r\n" if isinstance(item, bytes) else server_line(*item) for item in script)
    heard = Heard()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, stop in zip(places, places[1:], strict=False):
        heard.feed(stream[start:stop])
    expected = [
        item if isinstance(item, bytes) else (*item[:4], encode_headers(item[4]) if item[4] is not None else b"")
        for item in script
    ]
    assert heard.all == expected


def test_a_large_message_in_many_pieces_is_joined_once():
    heard = Heard()
    data = bytes(range(256)) * 8192
    stream = server_line(b"1", b"a", b"", data, None)
    for start in range(0, len(stream), 1000):
        heard.feed(stream[start : start + 1000])
    assert heard.all == [(b"1", b"a", b"", data, b"")]


@in_rows(
    "stream",
    [
        b"MSG a 1\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 r q 1\r\nx\r\n",
        b"HMSG a 1 5 3\r\nxxxxx\r\n",
        b"HMSG a 1 0 3\r\nxxx\r\n",
        b"MSG a 1 1\r\nxyz\r\n",
        b"HELLO a 1 1\r\nx\r\n",
        b"M\r\n",
        b"P" * 1_100_000,
    ],
)
def test_what_is_not_the_protocol_is_refused(stream):
    heard = Heard()
    with pytest.raises(ProtocolViolation):
        heard.feed(stream)
    assert heard.all == []


@FEW
@given(st.binary(max_size=300))
def test_garbage_ends_in_a_violation_or_in_silence_and_in_nothing_else(garbage):
    heard = Heard()
    try:
        heard.feed(garbage)
    except ProtocolViolation:
        pass


@FEW
@given(st.dictionaries(names, values, min_size=1, max_size=5))
def test_headers_come_back_as_they_were(headers):
    assert decode_headers(encode_headers(headers)) == headers


@in_rows(
    ("block", "headers"),
    [
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Results\r\n\r\n", {"Status": "404", "Description": "No Results"}),
        (
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\n\r\n",
            {"Status": "204", "Description": "EOB", "Nats-Num-Pending": "3"},
        ),
        (b"NATS/1.0\r\nA:b\r\nC:  d e \r\n\r\n", {"A": "b", "C": "d e"}),
        (b"NATS/1.0\r\nno colon\r\nA: b:c\r\n\r\n", {"A": "b:c"}),
        (b"NATS/1.0\r\n\r\n", {}),
    ],
)
def test_header_blocks_of_a_server(block, headers):
    assert decode_headers(block) == headers


@in_rows("headers", [{"": "x"}, {"a b": "x"}, {"a:b": "x"}, {"a\r\n": "x"}, {"a": "x\r\nB: c"}, {"a": "x\n"}])
def test_headers_that_would_break_the_protocol_are_refused(headers):
    with pytest.raises(InvalidRequest):
        encode_headers(headers)


def test_publications_have_the_sizes_that_the_server_checks():
    assert publication("a.b", "", b"xyz") == b"PUB a.b  3\r\nxyz\r\n"
    assert publication("a.b", "r.1", b"") == b"PUB a.b r.1 0\r\n\r\n"
    block = encode_headers({"A": "é"})
    assert publication("a", "r", b"xy", block) == b"HPUB a r %d %d\r\n%bxy\r\n" % (len(block), len(block) + 2, block)
    assert publication("é", "", b"") == "PUB é  0\r\n\r\n".encode()
    assert publications(["a.b", "é"], "+ACK") == publication("a.b", "", b"+ACK") + publication("é", "", b"+ACK")
