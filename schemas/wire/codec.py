"""Bodies on the wire: JSON by default, msgpack by `Content-Type: application/msgpack`.

Values are those that both formats share (null, booleans, numbers, text, lists, maps) plus bytes, which are native in
msgpack and base64 in JSON. Pydantic models, dataclasses, enums, dates, UUIDs, decimals, paths and sets are
converted on the way out; the receiving side converts back from its own annotations.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import PurePath
from typing import Any, Final

import msgpack
import pydantic_core
from pydantic import BaseModel

from ..errors.base import InvalidRequest, InvalidSettings, MalformedMessage, PayloadTooLarge
from ..limits import MAX_CONTAINERS, MAX_DEPTH, MAX_REQUEST_BYTES, MAX_REQUEST_ITEMS

CONTENT_TYPE = "Content-Type"


def _most_containers(text: str) -> int:
    if not text:
        return MAX_CONTAINERS
    if not text.isdecimal() or not 1024 <= int(text) <= 1 << 30:
        raise InvalidSettings(f"GANGLINE_MAX_CONTAINERS is {text[:40]!r}: give a whole number from 1024 to {1 << 30}")
    return int(text)


most_containers: Final = _most_containers(os.environ.get("GANGLINE_MAX_CONTAINERS", ""))
"""See limits.MAX_CONTAINERS. The same for senders and receivers."""


class Format(StrEnum):
    """Format of a body. The answer to a request uses the request's format."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"

    @classmethod
    def of(cls, headers: Mapping[str, str] | None) -> Format:
        """The format that the headers name; JSON without a header.

        Raises:
            MalformedMessage: a content type that is neither.
        """
        if not headers:
            return _JSON
        named = headers.get(CONTENT_TYPE, "")
        media = named.partition(";")[0].strip().lower()
        if media in ("", cls.JSON.value, "text/json", "text/plain"):
            return cls.JSON
        if media in (cls.MSGPACK.value, "application/x-msgpack", "application/vnd.msgpack"):
            return cls.MSGPACK
        raise MalformedMessage(f"Content-Type {named!r} is not known: use {cls.JSON.value} or {cls.MSGPACK.value}")


_MODEL_DUMP: Final = BaseModel.model_dump


# Reading a member of an enum takes longer than comparing it.
_JSON: Final = Format.JSON
_MSGPACK: Final = Format.MSGPACK


def _plain(value: Any) -> Any:
    """msgpack's hook for types that it cannot write itself."""
    kind = type(value)
    # Models by alias, without excluded fields, with their own serializers: as in JSON, but bytes stay bytes.
    if getattr(kind, "model_dump", None) is _MODEL_DUMP:  # which takes twice as long as what it calls
        return kind.__pydantic_serializer__.to_python(value, by_alias=True)
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Enum):
        return value.value
    # Dates, UUIDs, decimals, paths, URLs: the text that pydantic reads back.
    return pydantic_core.to_jsonable_python(value, fallback=_fallback)


def _fallback(value: Any) -> Any:
    """pydantic's hook for types that it cannot write itself."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(
        f"cannot serialize a value of type {type(value).__name__}: "
        "use str, number, list, dict, bytes, a dataclass or a Pydantic model"
    )


_MAX_KEPT_BYTES: Final = 1 << 20


def packing(**options: Any) -> Callable[[Any], bytes]:
    """A function that writes msgpack, with these options of msgpack.Packer.

    Its packers are used again, but each writes one value at a time: while a hook runs, another thread may want to
    write, or the hook itself. One that raised keeps what it had written, and is dropped. So is one that wrote more than
    1 MiB: its buffer never gets smaller.
    """
    free: list[Callable[[Any], bytes]] = []
    take, give_back = free.pop, free.append

    def pack(value: Any) -> bytes:
        """Write msgpack.

        Raises:
            InvalidRequest: the value (or something in it) cannot be serialized.
        """
        try:
            write = take()
        except IndexError:
            write = msgpack.Packer(**options).pack
        try:
            data = write(value)
        except Exception as error:  # also errors of a model's own serializer or property
            raise InvalidRequest(f"cannot be written as msgpack: {error}") from error
        if len(data) <= _MAX_KEPT_BYTES:
            give_back(write)
        return data

    return pack


pack: Final = packing(default=_plain)


def pack_text(value: Any) -> str:
    """msgpack as base64: in JSON, a value of which JSON would lose something.

    Raises:
        InvalidRequest: the value (or something in it) cannot be serialized.
    """
    return base64.b64encode(pack(value)).decode()


def _atom_packing() -> Callable[[Any], bytes | None]:
    write = msgpack.Packer().pack

    def pack_atoms(value: Any) -> bytes | None:
        """Write msgpack of atoms, and of lists and maps of them; None: a number is too large, or a text not Unicode.

        No Python code runs meanwhile, so that one packer is enough, and it takes a third less time than `pack`.
        """
        nonlocal write
        try:
            data: bytes = write(value)
        except Exception:
            write = msgpack.Packer().pack
            return None
        if len(data) > _MAX_KEPT_BYTES:
            write = msgpack.Packer().pack
        return data

    return pack_atoms


pack_atoms: Final = _atom_packing()


ATOMS: Final = frozenset({type(None), bool, float, bytes, str, int})
"""Types of all plain wire values but lists and maps."""


def unpack(data: bytes, *, budget: int | None = None) -> Any:
    """Read msgpack. Its timestamps become aware datetimes; other extension types are refused.

    Args:
        budget: maximum number of lists and maps in it. None: any number.

    Raises:
        MalformedMessage: not exactly one msgpack value.
        PayloadTooLarge: over the budget.
    """
    try:
        if budget is None or len(data) <= budget:
            return _unpacked(data)
        # Large data is mostly a few long texts or bytes, where counting costs less than looking at each byte.
        try:
            return _unpacked(data, _Countdown(min(budget, _FEW)))
        except PayloadTooLarge:
            return _unpacked(data, None if most_lists(data) <= budget else _Countdown(budget))
    except PayloadTooLarge:
        raise
    except Exception as error:  # msgpack raises ValueError, its own classes, and others on hostile input
        raise MalformedMessage(f"not msgpack: {error or type(error).__name__}") from error


def _unpacked(data: bytes, count: _Countdown | None = None) -> Any:
    return msgpack.unpackb(
        data,
        raw=False,
        strict_map_key=False,
        use_list=True,
        timestamp=3,
        ext_hook=_refuse_extension,
        list_hook=count,
        object_hook=count,
    )


_FEW: Final = 256


class _Countdown:
    """Counts the lists and maps that msgpack has read."""

    __slots__ = ("_left",)

    def __init__(self, budget: int) -> None:
        self._left = budget

    def __call__(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise too_many_containers()
        return value


_OTHER_BYTES: Final = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
"""All bytes that cannot be the first byte of a list or map in msgpack."""


def most_lists(data: bytes) -> int:
    """An upper bound of the number of lists and maps in msgpack; text and numbers may contain such bytes, too. Takes
    half a millisecond per megabyte."""
    return len(data.translate(None, _OTHER_BYTES))


def split_envelope(data: bytes) -> tuple[bytes, list[bytes]]:
    """An array of four, whose fourth is an array: what comes before that, and its elements. Neither is read.

    Raises:
        MalformedMessage: it is not such an array.
        PayloadTooLarge: there are more elements than lists and maps in any envelope.
    """
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, ext_hook=_refuse_extension, max_buffer_size=0)
    unpacker.feed(data)
    parts: list[bytes] = []
    try:
        if unpacker.read_array_header() != 4:
            raise ValueError("an envelope is an array of four")
        for _ in range(3):
            unpacker.skip()
        head = data[: unpacker.tell()]
        count = unpacker.read_array_header()
        if count > most_containers:
            raise too_many_containers()
        for _ in range(count):
            start = unpacker.tell()
            unpacker.skip()
            parts.append(data[start : unpacker.tell()])
    except PayloadTooLarge:
        raise
    except Exception as error:  # see `unpack`
        raise MalformedMessage(f"not an envelope: {error or type(error).__name__}") from error
    if unpacker.tell() != len(data):
        raise MalformedMessage("not an envelope: there is more after its end")
    return head, parts


def first_integers(data: bytes) -> tuple[int, int]:
    """The first two elements of a short array, if they are whole numbers from 0; (0, 0) otherwise."""
    if not data or not 0x92 <= data[0] <= 0x9F:
        return 0, 0
    at, found = 1, []
    for _ in range(2):
        first = data[at] if at < len(data) else 0xC0
        size = 0 if first < 0x80 else _INTEGER_BYTES.get(first, -1)
        if size < 0 or at + size >= len(data):
            return 0, 0
        found.append(int.from_bytes(data[at + 1 : at + 1 + size], "big") if size else first)
        at += 1 + size
    return found[0], found[1]


_INTEGER_BYTES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Length of a whole number, by the byte before it."""
_ENVELOPE: Final = 4
"""More than the lists of an envelope around a frame."""


_ATOMS: Final = (str, bytes, int, float, type(None))


def count_containers(values: Sequence[Any], data: bytes) -> int:
    """An upper bound of the number of lists and maps in a frame to be sent, whose encoding is `data`.

    Raises:
        PayloadTooLarge: it has more of them than any receiver takes.
    """
    count = 1
    for value in values:
        if isinstance(value, _ATOMS):
            continue
        count += 1
        inner = value.values() if type(value) is dict else value if type(value) in _CONTAINERS else (value,)
        if not all(isinstance(item, _ATOMS) for item in inner):
            break  # something nested, or of a type that is converted
    else:
        if values:
            return count
    found, budget = most_lists(data), most_containers - _ENVELOPE
    if found > budget:
        unpack(data, budget=budget)
    return min(found, budget)


def too_many_containers() -> PayloadTooLarge:
    """The error for a body over the budget."""
    return PayloadTooLarge(
        f"it has more than {most_containers} lists and maps: send fewer at once, or a text or bytes that the task "
        "decodes, or raise GANGLINE_MAX_CONTAINERS of all processes",
        details={"limit": most_containers},
    )


def _brackets(data: bytes) -> int:
    """The number of lists and maps in JSON, not counting brackets in texts."""
    found = data.count(b"[") + data.count(b"{")
    if found <= most_containers:
        return found
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(data.split(b'"')[::2])
    return outside.count(b"[") + outside.count(b"{")


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not known")


def to_json(value: Any) -> bytes:
    """Write JSON; bytes become base64 text of the URL-safe alphabet, NaN and infinities become null.

    Raises:
        InvalidRequest: the value (or something in it) cannot be serialized.
    """
    try:
        plain = value if type(value) in _SCALARS else _dumped(value)
        return pydantic_core.to_json(plain, bytes_mode="base64", inf_nan_mode="null", fallback=_fallback)
    except Exception as error:  # also errors of a model's own serializer or property
        raise InvalidRequest(f"cannot be written as JSON: {error}") from error


_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_CONTAINERS = frozenset({list, dict, tuple})


def _dumped(value: Any) -> Any:
    """Models and dataclasses as maps: nested in one, pydantic would follow its settings for bytes, not ours."""
    if type(value) not in _CONTAINERS and (isinstance(value, (BaseModel, Enum)) or dataclasses.is_dataclass(value)):
        return _dumped(_plain(value))
    if isinstance(value, dict):
        return {key: item if type(item) in _SCALARS else _dumped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [item if type(item) in _SCALARS else _dumped(item) for item in value]
    return value


def from_json(data: bytes) -> Any:
    """Read JSON.

    Raises:
        MalformedMessage: not exactly one JSON value, in UTF-8.
    """
    try:
        return pydantic_core.from_json(data)
    except ValueError as error:
        raise MalformedMessage(f"not JSON: {error}") from error


def encode(value: Any, fmt: Format) -> bytes:
    """Write a body in the given format. None is written as an explicit null, never as an empty body."""
    return pack(value) if fmt is _MSGPACK else to_json(value)


JSON_ATOMS: Final = frozenset((str, int, bool, type(None)))
"""Types whose values are the same in JSON."""


def loses_in_json(value: Any) -> bool:
    """Whether msgpack can represent something in these wire values that JSON cannot: bytes, infinities, keys that are
    not text."""
    kind = type(value)
    if kind in JSON_ATOMS:
        return False
    if kind is list:
        return any(type(item) not in JSON_ATOMS and loses_in_json(item) for item in value)
    if kind is dict:
        return any(type(key) is not str for key in value) or loses_in_json(list(value.values()))
    return kind is not float or not math.isfinite(value)


def encode_model(model: BaseModel, fmt: Format) -> bytes:
    """Write one of our own messages: the same bytes as `encode` of its JSON dump, but in one step if the format is
    JSON."""
    if fmt is _JSON:
        return model.model_dump_json().encode()
    return pack(model.model_dump(mode="json"))


def decode(data: bytes, fmt: Format, *, budget: int | None = None) -> Any:
    """Read a body in the given format. An empty body is None.

    Args:
        budget: maximum number of lists and maps in it. None: any number, as in the results of our own requests.

    Raises:
        MalformedMessage: unreadable, or nested deeper than the wire allows.
        PayloadTooLarge: over the budget.
    """
    if not data:
        return None
    if fmt is _MSGPACK:
        value, found = unpack(data, budget=budget), most_lists(data)
    else:
        found = _brackets(data)
        if budget is not None and found > budget:
            raise too_many_containers()
        value = from_json(data)
    if found <= MAX_DEPTH:
        return value  # too few lists and maps to be nested deeper: no need to walk through it
    check_depth(value)
    return value


def decode_arguments(data: bytes, fmt: Format) -> Any:
    """Like `decode`, for a body with another process's arguments."""
    return decode(data, fmt, budget=most_containers)


def decode_request(data: bytes, fmt: Format) -> Any:
    """Like `decode`, for a request without arguments: it is small.

    Raises:
        MalformedMessage: unreadable, or nested deeper than the wire allows.
        PayloadTooLarge: more bytes or values than such a request may have.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise PayloadTooLarge(
            f"the body has {len(data)} bytes; at most {MAX_REQUEST_BYTES} are allowed here",
            details={"size": len(data), "limit": MAX_REQUEST_BYTES},
        )
    value = decode_arguments(data, fmt)
    check_depth(value, items=MAX_REQUEST_ITEMS)
    return value


_NESTED: Final = frozenset({list, dict})


def check_depth(value: Any, limit: int = MAX_DEPTH, *, items: int | None = None) -> None:
    """Refuse values nested so deeply that code walking through them would overflow the stack. `[[]]` is two levels
    deep.

    Args:
        items: refuse more values than this, too.

    Raises:
        MalformedMessage: deeper than `limit`.
        PayloadTooLarge: more values than `items`.
    """
    level = [value] if type(value) in _NESTED else []
    count = 0
    for _ in range(limit):
        if not level:
            return
        deeper: list[Any] = []
        for item in level:
            inner = item if type(item) is list else item.values()
            count += len(inner)
            if items is not None and count > items:
                raise PayloadTooLarge(f"the body has more than {items} values: send fewer", details={"limit": items})
            if inner:
                deeper += [x for x in inner if type(x) in _NESTED]
        level = deeper
    if level:
        raise MalformedMessage(f"nested deeper than {limit} levels")
