"""The hot parts of the NATS client protocol: building publications and parsing received bytes.

No IO, and no state except the bytes of an incomplete message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ...schemas.errors.base import InvalidRequest
from ...schemas.wire.headers import why_not_writable

MAX_SUBJECT_BYTES: Final = 3072
"""Maximum of subject and reply subject together. The server closes the connection on a control line over 4096 bytes,
which also has the command and the queue or two sizes."""

_CRLF: Final = b"\r\n"
_VERSION: Final = b"NATS/1.0"
_BLANKS: Final = " \t\n\r\v\f"
"""What `bytes.strip` strips."""

Deliver = Callable[[bytes, bytes, bytes, bytes, bytes], None]
"""Called with sid, subject, reply, data and the raw header block (empty: none)."""


class ProtocolViolation(Exception):
    """The received bytes are not the NATS protocol; the connection can no longer be used."""


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The header block of a publication.

    Raises:
        InvalidRequest: a name or value would break the protocol.
    """
    block = "NATS/1.0\r\n"
    for name, value in headers.items():
        problem = why_not_writable(name, value)
        if problem is not None:
            raise InvalidRequest(problem)
        block += f"{name}: {value}\r\n"
    return f"{block}\r\n".encode()


def decode_headers(block: bytes) -> dict[str, str]:
    """Headers of a message; a status line becomes `Status` and `Description`. Malformed lines are skipped."""
    first, _, rest = block.partition(_CRLF)
    headers: dict[str, str] = {}
    status = first[len(_VERSION) :].strip()
    if status:
        headers["Status"] = status[:3].decode("ascii", "replace")
        description = status[3:].strip()
        if description:
            headers["Description"] = description.decode("utf-8", "replace")
    if rest.isascii():  # nearly always: then decode all of it at once
        for field in rest.decode("ascii").split("\r\n"):
            field_name, mark, text = field.partition(":")
            if mark and field_name:
                headers[field_name.strip(_BLANKS)] = text.strip(_BLANKS)
        return headers
    for line in rest.split(_CRLF):
        name, colon, value = line.partition(b":")
        if colon and name:
            headers[name.strip().decode("ascii", "replace")] = value.strip().decode("utf-8", "replace")
    return headers


def publication(subject: str, reply: str, data: bytes, headers: bytes = b"") -> bytes:
    """PUB, or HPUB if there are headers. The caller has checked subjects and size."""
    if headers:
        sizes = f"{len(headers)} {len(headers) + len(data)}"
        return b"%b%b%b\r\n" % (f"HPUB {subject} {reply} {sizes}\r\n".encode(), headers, data)
    return b"%b%b\r\n" % (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data)


def publications(subjects: Iterable[str], text: str) -> bytes:
    """A PUB of the same ASCII text to each subject. In one step, since acknowledgements are as many as messages."""
    rest = f"  {len(text)}\r\n{text}\r\n"
    return "".join([f"PUB {subject}{rest}" for subject in subjects]).encode()


class ProtocolParser:
    """Splits the server's bytes into messages and control lines, however they are chunked."""

    __slots__ = ("_control", "_deliver", "_missing", "_parts")

    def __init__(self, deliver: Deliver, control: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._control = control
        self._parts: list[bytes] = []
        self._missing = 0
        """Minimum number of bytes needed to complete anything; avoids joining large messages at each chunk."""

    def feed(self, chunk: bytes) -> None:
        """Process a chunk; calls `deliver` and `control` for everything that is complete.

        Raises:
            ProtocolViolation: drop the connection.
        """
        self._missing -= len(chunk)
        self._parts.append(chunk)
        if self._missing > 0:
            return
        data = chunk if len(self._parts) == 1 else b"".join(self._parts)
        end = self._cut(data)
        rest = data[end:] if end else data
        self._parts = [rest] if rest else []

    def _cut(self, data: bytes) -> int:
        """Handle every complete message; return where the incomplete rest starts."""
        position, length = 0, len(data)
        while position < length:
            line_end = data.find(_CRLF, position)
            if line_end < 0:
                if length - position > 1_048_576:
                    raise ProtocolViolation("a control line never ends")
                self._missing = 1
                return position
            kind = data[position]
            if kind != 77 and kind != 72:  # neither MSG nor HMSG
                self._control(data[position:line_end])
                position = line_end + 2
                continue
            start = line_end + 2
            header_size, size, words = self._sizes(data[position:line_end])
            stop = start + size
            if length < stop + 2:
                self._missing = stop + 2 - length
                return position
            if data[stop : stop + 2] != _CRLF:
                raise ProtocolViolation("a message does not end where its size says")
            body = start + header_size
            reply = words[3] if len(words) == (6 if header_size else 5) else b""
            self._deliver(words[2], words[1], reply, data[body:stop], data[start:body])
            position = stop + 2
        self._missing = 0
        return position

    @staticmethod
    def _sizes(line: bytes) -> tuple[int, int, list[bytes]]:
        words = line.split()
        try:
            if words[0] == b"MSG" and len(words) in (4, 5):
                size = int(words[-1])
                if size >= 0:
                    return 0, size, words
            elif words[0] == b"HMSG" and len(words) in (5, 6):
                header_size, size = int(words[-2]), int(words[-1])
                if 0 < header_size <= size:
                    return header_size, size, words
        except ValueError:
            pass
        raise ProtocolViolation(f"not a message line: {line[:80]!r}")
