"""Texts of exceptions, of bounded length and cost: cut before they are put together, not afterwards.

What users' code raises may have a text of any size, many arguments, notes, causes or members, or a traceback of any
depth. To format that whole would stall the event loop, and with it all that the process does.
"""

from __future__ import annotations

import reprlib
import traceback
from types import TracebackType
from typing import Any, Final

MAX_TEXT_CHARS: Final = 16_384
"""The middle of a longer text is cut out."""
_MAX_BLOCK_CHARS: Final = 6_000
"""Length of the text of one exception in a traceback."""
_MAX_FRAMES: Final = 60
_MAX_CHAIN: Final = 6
_MAX_MEMBERS: Final = 6
_MAX_NOTES: Final = 8
_MAX_DEPTH: Final = 3
CUT: Final = "... cut ..."
"""Stands where something was left out."""

_BRIEF: Final = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 1_000
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = _BRIEF.maxset = _BRIEF.maxfrozenset = _BRIEF.maxdeque = 30
_BRIEF.maxlevel = 4
_BRIEF.fillvalue = CUT
_OWN_TEXTS: Final = (BaseException.__str__, KeyError.__str__)


def cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The text, valid in UTF-8; without its middle if it is longer than `limit`."""
    half = limit // 2
    if len(text) > limit:
        text = f"{text[:half]}\n{CUT}\n{text[-half:]}"
    if text.isascii():
        return text
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 2 * limit else f"{text[:half]}\n{CUT}\n{text[-half:]}"


def error_text(error: BaseException, limit: int = MAX_TEXT_CHARS) -> str:
    """`str(error)`, cut; empty if that fails."""
    try:
        if type(error).__str__ not in _OWN_TEXTS:
            return cut(str(error), limit)
        args = error.args
        if len(args) == 1 and isinstance(args[0], str) and not isinstance(error, KeyError):
            return cut(args[0], limit)
        return cut(_brief(args[0] if len(args) == 1 else args) if args else "", limit)
    except Exception:  # a user's __str__ may do anything
        return ""


def _brief(value: Any) -> str:
    """The representation of a value; large ones are cut before."""
    if isinstance(value, tuple) and value:
        shown = ", ".join(map(_brief, value[: _BRIEF.maxtuple]))
        more = f", {CUT}" if len(value) > _BRIEF.maxtuple else "," if len(value) == 1 else ""
        return f"({shown}{more})"
    if isinstance(value, (bytes, bytearray)) and len(value) > _BRIEF.maxstring:
        return f"{bytes(value[: _BRIEF.maxstring])!r} {CUT}"
    if isinstance(value, (str, int, list, dict, set, frozenset)):
        return _BRIEF.repr(value)
    return repr(value)


def traceback_text(error: BaseException, trace: TracebackType | None = None) -> str:
    """The traceback of an exception, of its causes and of the members of groups, cut; empty if that fails.

    Args:
        trace: where it begins; None: where the exception's own does.
    """
    try:
        return cut(_chain(error, error.__traceback__ if trace is None else trace, 0).rstrip("\n") + "\n")
    except Exception:
        return ""


def _chain(error: BaseException, trace: TracebackType | None, depth: int) -> str:
    """The causes first, as Python does it."""
    blocks = [_block(error, trace, depth)]
    seen = {id(error)}
    while True:
        if error.__cause__ is not None:
            before, how = error.__cause__, "The above exception was the direct cause of the following exception:"
        elif error.__context__ is not None and not error.__suppress_context__:
            before, how = error.__context__, "During handling of the above exception, another exception occurred:"
        else:
            break
        if id(before) in seen:
            break
        if len(blocks) >= 2 * _MAX_CHAIN:
            blocks.append(f"{CUT}\n\n{how}\n")
            break
        seen.add(id(before))
        blocks += (f"{how}\n", _block(before, before.__traceback__, depth))
        error = before
    return "\n".join(reversed(blocks))


class _Shown(Exception):
    """Stands for an exception whose text was cut."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def _block(error: BaseException, trace: TracebackType | None, depth: int) -> str:
    """One exception, without its causes."""
    shown = _Shown(error_text(error, _MAX_BLOCK_CHARS))
    for note in _notes(error):
        shown.add_note(note)
    trace, left_out = _last_frames(trace)
    # Of syntax errors, traceback reads attributes that are the exception's own.
    kind = type(error)
    told = traceback.TracebackException(kind if not issubclass(kind, SyntaxError) else _Shown, shown, trace)
    lines = list(told.format(chain=False))
    if left_out:
        lines.insert(1, f"  {CUT} {left_out} calls\n")
    if isinstance(error, BaseExceptionGroup):
        lines += _members(error, depth)
    return "".join(lines)


def _members(group: BaseExceptionGroup[Any], depth: int) -> list[str]:
    members = group.exceptions
    if depth >= _MAX_DEPTH:
        return [f"  {CUT} {len(members)} exceptions\n"]
    lines: list[str] = []
    for number, member in enumerate(members[:_MAX_MEMBERS], 1):
        text = _chain(member, member.__traceback__, depth + 1)
        lines += (f"  +---------------- {number} ----------------\n", _indented(text))
    if len(members) > _MAX_MEMBERS:
        lines.append(f"  {CUT} {len(members) - _MAX_MEMBERS} exceptions\n")
    return lines


def _indented(text: str) -> str:
    return "".join(f"  | {line}\n" for line in cut(text, _MAX_BLOCK_CHARS).splitlines())


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, (list, tuple)):
        return []
    shown = [cut(note if isinstance(note, str) else _brief(note), 1_000) for note in notes[:_MAX_NOTES]]
    return shown if len(notes) <= _MAX_NOTES else [*shown, CUT]


def _last_frames(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """The part with the last calls, and how many there were before."""
    count, each = 0, trace
    while each is not None:
        count, each = count + 1, each.tb_next
    left_out = max(0, count - _MAX_FRAMES)
    for _ in range(left_out):
        assert trace is not None
        trace = trace.tb_next
    return trace, left_out
