"""Short tracebacks: an error that leaves the client shows the user's line, not the frames inside Gangline.

`GANGLINE_DEBUG=1` in the environment shows them all.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from ..schemas.errors.base import GanglineError

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE: Final = __name__.partition(".")[0]
_INSIDE: Final = {_PACKAGE, "nats", "asyncio", "uvloop", "contextlib", "concurrent"}
"""Top-level packages whose frames are hidden: ours, and those that run between ours."""
_OFF: Final = {"", "0", "false", "no", "off", "n", "f"}


_all: ContextVar[bool] = ContextVar("gangline_all_frames", default=False)


@contextlib.contextmanager
def all_frames() -> Iterator[None]:
    """Hide nothing in the block, as with `GANGLINE_DEBUG=1`."""
    token = _all.set(True)
    try:
        yield
    finally:
        _all.reset(token)


def hide_frames(error: BaseException) -> None:
    """Remove the frames of Gangline from the traceback of a GanglineError, and from those of its causes.

    Frames of other code, such as middleware, stay. Call it in an `except` block that ends with a bare `raise`: this
    adds no frame.
    """
    if not isinstance(error, GanglineError) or _all.get() or os.environ.get("GANGLINE_DEBUG", "").lower() not in _OFF:
        return
    seen: set[int] = set()
    link: BaseException | None = error
    while isinstance(link, GanglineError) and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _outside(link.__traceback__)
        cause = link.__cause__
        if cause is not None and not isinstance(cause, GanglineError):  # of the connection, for example
            cause.__traceback__ = _outside(cause.__traceback__)
        link = cause or link.__context__


def _outside(trace: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        if str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _INSIDE:
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


class _FramesHidden:
    """`with FRAMES_HIDDEN:` is `hide_frames` for what the block raises."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            hide_frames(error)


FRAMES_HIDDEN: Final = _FramesHidden()


def frames_hidden(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A coroutine function whose errors have short tracebacks."""

    @functools.wraps(function)
    async def short(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except GanglineError as error:
            hide_frames(error)
            raise

    return short
