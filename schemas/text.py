"""Text for people: counts, numbers, booleans and durations, in one format for all parts."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final


def count_of(number: int, noun: str) -> str:
    """`1 slot`, `3 slots`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_MOST_COMPARED: Final = 200


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was perhaps meant by an unknown one; None: none is near."""
    from difflib import get_close_matches  # only for errors

    close = get_close_matches(name[:80], list(known)[:_MOST_COMPARED], n=1)
    return close[0] if close else None


def known_names(name: str, known: Iterable[str]) -> str:
    """What there is instead of an unknown name: `it has: a, b`, before that the nearest one, if one is near."""
    names = list(known)
    close = nearest_name(name, names)
    listed = f"t has: {', '.join(names) or 'none'}"
    return f"did you mean {close!r}? I{listed}" if close else f"i{listed}"


def plain(number: float) -> str:
    """A number as people type it: `2592000`, `0.005`; `:g` would write the first as `2.592e+06`."""
    return f"{number:.12g}"


def rate_in_words(rate_per_s: float) -> tuple[str, str]:
    """Number and unit of time: `30` and `minute` for 0.5 a second."""
    for seconds, unit in ((1, "second"), (60, "minute")):
        if rate_per_s * seconds >= 1:
            return plain(rate_per_s * seconds), unit
    return plain(rate_per_s * 3600), "hour"


_SHOWN_CHARS: Final = 60
_BRIEF: Final = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = _SHOWN_CHARS
_BRIEF.maxlevel = 3


def brief(value: object) -> str:
    """A short representation of a value that may be large, deep, or of a user's class."""
    try:
        text = _BRIEF.repr(value[: 2 * _SHOWN_CHARS] if isinstance(value, (bytes, bytearray)) else value)
    except Exception:  # a user's __repr__ may do anything
        text = "?"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def shown(value: object) -> str:
    """A value for an error text, shortened, with its type."""
    return f"{brief(value)} ({type(value).__name__})"


_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tabs and ends of lines
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # set the direction of text, end lines, are invisible
    r"\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags: invisible
    r"\ud800-\udfff]"  # cannot be encoded
)


def printable(text: str) -> str:
    r"""The text with what would control a terminal, or reads as something else, as `\u001b`. Tabs and ends of lines
    stay. JSON stays the same JSON."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}" if match[0] < "\U00010000" else _pair(match[0]), text)


def _pair(char: str) -> str:
    high, low = divmod(ord(char) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_YES: Final = frozenset(("true", "1", "yes"))
_NO: Final = frozenset(("false", "0", "no", ""))


def parse_yes_no(text: str) -> bool:
    """`true`, `1`, `yes`; `false`, `0`, `no` or an empty text; upper or lower case.

    Raises:
        ValueError: any other text.
    """
    word = text.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise ValueError(f"{text[:40]!r} is neither 'true' nor 'false'")


_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: not a duration; the text says how to write one.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration: write 90, 500ms, 90s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


_MOST_PLACE: Final = 200


def problem_of(item: Mapping[str, Any]) -> str:
    """One error of pydantic's `ValidationError.errors()`: where, and what is wrong."""
    where = ".".join(map(str, item["loc"]))[:_MOST_PLACE]
    match item["type"]:
        case "extra_forbidden":
            return f"no field {where!r}"
        case "missing":
            return f"{where}: missing"
        case _:
            text = str(item["msg"]).removeprefix("Value error, ")
            return f"{where}: {text}" if where else text
