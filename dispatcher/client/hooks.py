"""Hooks around calls and submissions of a client; see `connect(middleware=...)`.

A hook is an object with one or more of the methods below, or an async function of `request` and `call_next`, which runs
around calls, dispatches and submissions. Several hooks nest, outermost first. Kinds of requests without hooks have no
overhead. (`Pool.middleware` runs around the execution on the worker.)
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from ...runtime.hooks import check_hook
from ...runtime.tracebacks import frames_hidden
from ...schemas.errors.base import InvalidSettings
from ..calls.call import CallOptions

if TYPE_CHECKING:
    from ..jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request of the user. To change it, pass on a copy (`dataclasses.replace`)."""

    kind: Literal["call", "dispatch", "stream", "submit"]
    target: str
    """`ENDPOINT.METHOD`; for a dispatch, with the endpoint of the selection."""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: CallOptions = CallOptions()


CallNext = Callable[[ClientRequest], Awaitable[Any]]
"""Calls the next hook, or sends the request if there is none."""
StreamNext = Callable[[ClientRequest], AsyncGenerator[Any, None]]
SubmitNext = Callable[[ClientRequest], "Awaitable[Job]"]


@runtime_checkable
class CallHook(Protocol):
    """Runs around `client.call` and `client.dispatch`."""

    async def call(self, request: ClientRequest, call_next: CallNext) -> Any:
        """Await `call_next(request)` for the result, any number of times; the caller gets what this returns or raises.
        It runs in the caller's task: a cancellation arrives as CancelledError. Retries, placement and queueing happen
        inside `call_next`."""
        ...


@runtime_checkable
class StreamHook(Protocol):
    """Runs around `client.stream`."""

    def stream(self, request: ClientRequest, call_next: StreamNext) -> AsyncGenerator[Any, None]:
        """Yield the items for the reader: usually an async generator over `call_next(request)`. Close what you open: a
        reader that leaves early closes this generator."""
        ...


@runtime_checkable
class SubmitHook(Protocol):
    """Runs around `client.submit`, and around each task of `client.submit_many`."""

    async def submit(self, request: ClientRequest, call_next: SubmitNext) -> Job:
        """Await `call_next(request)` for the job, which is then stored."""
        ...


Hook = CallHook | StreamHook | SubmitHook | Callable[[ClientRequest, CallNext], Awaitable[Any]]
_KINDS: Final = ("call", "stream", "submit")
R = TypeVar("R")


class HookChain:
    """All hooks of one client."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        """
        Raises:
            InvalidSettings: an object is not a hook.
        """
        found = [_checked(hook) for hook in hooks]
        self.calls: tuple[CallHook, ...] = tuple(hook for hook in found if isinstance(hook, CallHook))
        self.streams: tuple[StreamHook, ...] = tuple(hook for hook in found if isinstance(hook, StreamHook))
        self.submits: tuple[SubmitHook, ...] = tuple(hook for hook in found if isinstance(hook, SubmitHook))

    @frames_hidden
    async def call(self, request: ClientRequest, last: CallNext) -> Any:
        """Run a call through all hooks to `last`."""
        return await _through([hook.call for hook in self.calls], last)(request)

    def stream(self, request: ClientRequest, last: StreamNext) -> AsyncGenerator[Any, None]:
        """Run a stream through all hooks to `last`."""
        return _through([hook.stream for hook in self.streams], last)(request)

    @frames_hidden
    async def submit(self, request: ClientRequest, last: SubmitNext) -> Job:
        """Run a submission through all hooks to `last`."""
        return await _through([hook.submit for hook in self.submits], last)(request)

    def __repr__(self) -> str:
        return f"HookChain(calls={len(self.calls)}, streams={len(self.streams)}, submits={len(self.submits)})"


class _Function:
    """An async function as a hook."""

    def __init__(self, function: Callable[[ClientRequest, CallNext], Awaitable[Any]]) -> None:
        self._function = function

    async def call(self, request: ClientRequest, call_next: CallNext) -> Any:
        return await self._function(request, call_next)

    async def submit(self, request: ClientRequest, call_next: CallNext) -> Any:
        return await self._function(request, call_next)


def _checked(hook: object) -> object:
    if not isinstance(hook, type):
        if kinds := [kind for kind in _KINDS if callable(getattr(hook, kind, None))]:
            for kind in kinds:
                where = f"middleware: {kind} of {hook!r}"
                check_hook(getattr(hook, kind), where, "request", "call_next", generator=kind == "stream")
            return hook
        if callable(hook) and any(map(inspect.iscoroutinefunction, (hook, type(hook).__call__))):
            check_hook(hook, "middleware", "request", "call_next")
            return _Function(hook)
    raise InvalidSettings(
        f"{hook!r} is not middleware: give an async function of (request, call_next), or an object with a method call, "
        "stream or submit of these"
    )


def _through(
    methods: Sequence[Callable[[ClientRequest, Callable[[ClientRequest], R]], R]], last: Callable[[ClientRequest], R]
) -> Callable[[ClientRequest], R]:
    """The first method, with the rest of the chain as its `call_next`."""
    if not methods:
        return last
    return lambda request: methods[0](request, _through(methods[1:], last))
