"""Spans, in one trace from client through router to worker.

Other modules need only `tracer`. Without a real provider every method returns at once with a span that does nothing; a
hot path can check `tracer.enabled` to avoid even building attributes.

Whether a request is sampled is decided once, where its trace begins, and before any span is made: with the standard
samplers (always on or off, or a ratio, respecting parents) that needs no call to the SDK. A request that is not sampled
carries its `traceparent` on, and nobody makes a span for it. Any other sampler is asked for each span.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import randbytes
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import context as _context
from opentelemetry import trace as _trace

from ..schemas.errors.base import GanglineError


class ProviderProbe:
    """Answers whether the global OpenTelemetry provider is a real one, and notices when one is set later. It is asked
    on every call, and so answers in tens of nanoseconds.

    `get_tracer_provider()` looks into the process environment each time (0.8 us), which is too much for a hot path. The
    module variable behind it is read instead, with the public function as the fallback for an API that has no such
    variable.
    """

    __slots__ = ("_get", "_noop", "_real", "_variable", "_variables", "seen")

    def __init__(self, module: ModuleType, variable: str, get: Callable[[], object], noop: type) -> None:
        """
        Args:
            module: the API module with the provider.
            variable: the module's variable, which is None until a provider is set.
            get: the public function that returns the provider.
            noop: the API's own provider that does nothing.
        """
        get()  # creates the provider named by OTEL_PYTHON_*_PROVIDER, if any
        self._variables = vars(module)
        self._variable = variable
        self._get = get
        self._noop = noop
        self.seen: Any = None
        """The provider that was seen last."""
        self._real = False

    def real(self) -> bool:
        """For hot paths: calling a method costs half as much as calling an object."""
        try:
            provider = self._variables[self._variable]
        except KeyError:
            provider = self._get()
        if provider is not self.seen:
            self.seen = provider
            self._real = self._is_real(provider)
        return self._real

    __call__ = real

    def _is_real(self, provider: object) -> bool:
        # The proxies used until a provider is set are private classes of the API, with several names.
        return provider is not None and not isinstance(provider, self._noop) and "Proxy" not in type(provider).__name__


_UNSAMPLED: Final = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]").fullmatch
_FLAGS: Final = 0b11
"""Sampled; and that the trace id is random."""
Kind = Literal["client", "server", "internal", "producer", "consumer"]
AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]

SCOPE: Final = "gangline"
"""Instrumentation scope of all spans and metrics."""

_KINDS: Final = {
    "client": _trace.SpanKind.CLIENT,
    "server": _trace.SpanKind.SERVER,
    "internal": _trace.SpanKind.INTERNAL,
    "producer": _trace.SpanKind.PRODUCER,
    "consumer": _trace.SpanKind.CONSUMER,
}
# https://www.w3.org/TR/trace-context/#traceparent-header; version ff and ids of zeros are invalid, later versions may
# append fields.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)


class NewTrace:
    """A trace that is sampled and whose first span is still to be started."""

    __slots__ = ("context", "trace_id")

    def __init__(self, trace_id: int, context: _context.Context | None) -> None:
        self.trace_id = trace_id
        self.context = context

    def __repr__(self) -> str:
        return f"<NewTrace {self.trace_id:032x}>"


class UnsampledSpan(_trace.NonRecordingSpan):
    """The current span of a request that is not sampled, so that spans of users' code are not either."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self._parsed: _trace.SpanContext | None = None

    def get_span_context(self) -> _trace.SpanContext:
        if self._parsed is None:
            self._parsed = _parse(self.traceparent) or _trace.INVALID_SPAN_CONTEXT
        return self._parsed

    def __repr__(self) -> str:
        return f"<UnsampledSpan {self.traceparent}>"


if TYPE_CHECKING:
    _Context = dict[str, object]  # pyright cannot resolve OpenTelemetry's own from every module
else:
    _Context = _context.Context


class Unsampled(_Context):
    """The context of a request that is not sampled, which carries its `traceparent` on.

    It has nothing but an UnsampledSpan, which is made when the context is first read: few tasks start spans.
    """

    __slots__ = ("traceparent",)
    traceparent: str


def _filled_before(name: str) -> Callable[..., Any]:
    read, length, fill = getattr(dict, name), dict.__len__, dict.__setitem__

    def filled(context: Unsampled, *arguments: Any) -> Any:
        if not length(context):
            fill(context, _SPAN_KEY, UnsampledSpan(context.traceparent))
        return read(context, *arguments)

    return filled


_READS: Final = (
    *("__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__or__", "__repr__"),
    *("__reversed__", "__ror__", "copy", "get", "items", "keys", "values"),
)
for _name in _READS:
    setattr(Unsampled, _name, _filled_before(_name))


def unsampled(traceparent: str) -> Unsampled:
    """The context of a request with this `traceparent`."""
    made = Unsampled()  # in half the time that an `__init__` takes
    made.traceparent = traceparent
    return made


_current: Final = _context.get_current
_SPAN_KEY: Final = next(iter(_trace.set_span_in_context(_trace.INVALID_SPAN, _context.Context())))

attach: Final[Callable[[Any], object]] = _context.attach
"""Make a context the current one in the rest of this `contextvars` context."""


class Span:
    """One span, or nothing: if tracing is off, or if its request is not sampled. `end` must be called once; later calls
    do nothing."""

    __slots__ = ("_carried", "_span")

    def __init__(self, span: _trace.Span | None, carried: Unsampled | None = None) -> None:
        self._span = span
        self._carried = carried

    @property
    def recording(self) -> bool:
        """False if tracing is off, if the span is not sampled, and after `end`."""
        return self._span is not None and self._span.is_recording()

    def set(self, **attributes: AttributeValue) -> None:
        """Add attributes; `__` in a name becomes a dot (`gangline__worker`)."""
        if self._span is not None:
            for name, value in attributes.items():
                self._span.set_attribute(name.replace("__", "."), value)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Record an event at this moment, for example a refused attempt."""
        if self._span is not None:
            self._span.add_event(name, attributes)

    def end(self, error: BaseException | None = None) -> None:
        """End the span. An error marks it as failed, with the error code as `error.type`."""
        span, self._span, self._carried = self._span, None, None
        if span is None:
            return
        if error is not None and span.is_recording():
            span.set_attribute("error.type", _error_type(error))
            if isinstance(error, GanglineError):
                span.set_attribute("gangline.may_have_started", error.may_have_started)
            span.record_exception(error)
            span.set_status(_trace.StatusCode.ERROR, str(error) or type(error).__name__)
        span.end()

    @property
    def carried(self) -> Unsampled | None:
        """What a request that is not sampled carries on."""
        return self._carried

    def traceparent(self) -> str | None:
        """`traceparent` of this span, for the wire; None if tracing is off or the span has ended."""
        if self._span is not None:
            return _valid(self._span.get_span_context())
        return None if self._carried is None else self._carried.traceparent

    def context(self) -> _context.Context | None:
        """The context for child spans; None if tracing is off or the span has ended."""
        if self._span is not None:
            return _trace.set_span_in_context(self._span)
        return None if self._carried is None else _trace.set_span_in_context(UnsampledSpan(self._carried.traceparent))

    def enter(self) -> None:
        """Make this span the parent of all spans that are started in the rest of this `contextvars` context."""
        if (context := self.context()) is not None:
            _context.attach(context)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this span the parent of spans started inside the block, without ending it."""
        context = self.context()
        if context is None:
            yield
            return
        token = _context.attach(context)
        try:
            yield
        finally:
            _context.detach(token)

    def __repr__(self) -> str:
        return f"<Span {self.traceparent() or 'off'}>"


NO_SPAN: Final = Span(None)
"""Returned by `tracer.start` while tracing is off; shared, since it has no state."""


Parent = str | Span | NewTrace | _Context | None  # an Unsampled is a context


class DecidedIds(threading.local):
    """The provider's ids, except that a trace which was decided on before keeps its id."""

    def __init__(self, ids: Any) -> None:
        self.given = ids
        """The provider's own."""
        self.trace_id = 0
        """For the next trace of this thread; 0: a new one."""
        self.generate_span_id = ids.generate_span_id  # found in less time than by `__getattr__`
        if (told := getattr(ids, "is_trace_id_random", None)) is not None:
            self.is_trace_id_random = told

    def generate_trace_id(self) -> int:
        return self.trace_id or int(self.given.generate_trace_id())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


# The descriptions are part of OpenTelemetry's specification; the samplers' parts are private.
_STANDARD: Final = re.compile(
    r"(?P<parents>ParentBased\{root:)?"
    r"(?:(?P<on>AlwaysOnSampler)|(?P<off>AlwaysOffSampler)|TraceIdRatioBased\{(?P<rate>[-+.\de]+)\})"
    r"(?(parents),remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\})"
)
_ALL: Final = 1 << 64
_DRAWN: Final = 64
"""How many new traces are drawn at once, which takes a third of the time of drawing each by itself."""


class Sampling:
    """One provider's sampler and ids, as far as they are known to be standard."""

    __slots__ = ("_below", "_bound", "_drawn", "_flags", "_random", "api", "ids", "parents", "provider", "sampler")

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.sampler: Any = getattr(provider, "sampler", None)
        self.api: Any = provider and provider.get_tracer(SCOPE)
        """The provider's tracer for our spans."""
        self.ids: DecidedIds | None = None
        describe = getattr(self.sampler, "get_description", str)
        found = _STANDARD.fullmatch(str(describe()))
        self.parents = found is not None and found["parents"] is not None
        """A parent's decision is respected."""
        self._bound = -1
        """The lower half of a sampled trace's id is below it; -1: ask the sampler."""
        self._random = False
        """The ids are OpenTelemetry's own, which have no meaning."""
        self._flags = "00"
        self._drawn: list[str] = []
        """New traces."""
        ids = getattr(self.api, "id_generator", None)
        if isinstance(ids, DecidedIds):  # the provider returns the same tracer again
            ids = ids.given
        if found is None or ids is None:
            return
        self.ids = self.api.id_generator = DecidedIds(ids)
        self._bound = -1 if found["on"] else 0 if found["off"] else round(float(found["rate"]) * _ALL)
        self._below = f"{self._bound:016x}"
        self._random = 0 <= self._bound < _ALL and type(ids).__name__ == "RandomIdGenerator"
        told = getattr(ids, "is_trace_id_random", None)
        if told is not None and told():
            self._flags = "02"

    def of_new_trace(self, context: _context.Context | None) -> Unsampled | NewTrace | None:
        """What a request without a parent starts with. None: the sampler is to be asked, which starting a span does."""
        if self._random:  # the same as below, in less time
            try:
                drawn = self._drawn.pop()
            except IndexError:
                drawn = self._draw()
            return NewTrace(int(drawn[3:35], 16) or 1, context) if drawn[19:35] < self._below else unsampled(drawn)
        ids = self.ids
        if self._bound < 0 or ids is None:
            return None
        trace_id = ids.generate_trace_id()
        if trace_id % _ALL < self._bound:
            return NewTrace(trace_id, context)
        return unsampled(f"00-{trace_id:032x}-{ids.generate_span_id():016x}-{self._flags}")

    def _draw(self) -> str:
        rest = f"-{randbytes(8).hex()}-{self._flags}"  # nobody records these spans: one id is enough for all
        ids = randbytes(16 * _DRAWN).hex("\n", 16).replace("\n", f"{rest}\n00-")
        # Another thread may do the same at this time: each trace is used once.
        *self._drawn, one = f"00-{ids}{rest}".split("\n")
        return one


class Tracer:
    """Starts spans with the process's tracer provider, which may be set at any time."""

    def __init__(self) -> None:
        self._probe = ProviderProbe(_trace, "_TRACER_PROVIDER", _trace.get_tracer_provider, _trace.NoOpTracerProvider)
        self.on = self._probe.real
        """The function behind `enabled`, for hot paths."""
        self._sampling = Sampling(None)

    @property
    def enabled(self) -> bool:
        """Whether a real provider is set. Cheap (60 ns), and checked again each time."""
        return self._probe()

    def decide(self, parent: Parent = None) -> Parent:
        """Decide whether a request is sampled. Call it only while `enabled`, and only once for each request.

        Args:
            parent: see `start`.

        Returns:
            `Unsampled`: carry it on and start no span. Anything else is the parent to start a span with: the context of
            the remote span, if `parent` was a `traceparent`.
        """
        # The order is that of how often they are asked for.
        if parent is None:
            around: Any = _current()
            if type(around) is Unsampled:
                return around
            current = around.get(_SPAN_KEY)
            if current is None:
                return self._known().of_new_trace(None)
            if type(current) is UnsampledSpan:
                return unsampled(current.traceparent)
            sampling = self._known()
            if isinstance(current, _trace.Span) and (context := current.get_span_context()).is_valid:
                return None if context.trace_flags & 1 or not sampling.parents else unsampled(_format(context))
            return sampling.of_new_trace(None)
        if isinstance(parent, str):
            sampling = self._known()
            if sampling.parents and _UNSAMPLED(parent) is not None:
                return unsampled(parent)
            if (remote := _parse(parent)) is not None:
                return _context.Context({_SPAN_KEY: _trace.NonRecordingSpan(remote)})
            root = _context.Context()
            new = sampling.of_new_trace(root)
            return root if new is None else new
        return parent if not isinstance(parent, Span) or parent.carried is None else parent.carried

    def start(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        parent: Parent = None,
    ) -> Span:
        """Start a span; it must be ended.

        Args:
            name: with low cardinality, such as `gangline.call images.thumbnail`; never with an id in it.
            parent: a span of this process that has not ended, a `traceparent` from the wire, or what `decide` has
                returned. None: the current span of this context. A malformed one starts a new trace, as the standard
                requires.
        """
        if not self.on():
            return NO_SPAN
        parent = self.decide(parent)
        if isinstance(parent, Unsampled):
            return Span(None, parent)
        sampling = self._known()
        if not isinstance(parent, NewTrace):
            context: Any = parent.context() if isinstance(parent, Span) else parent
            return Span(sampling.api.start_span(name, context, _KINDS[kind], attributes))
        assert sampling.ids is not None
        sampling.ids.trace_id = parent.trace_id
        try:
            return Span(sampling.api.start_span(name, parent.context, _KINDS[kind], attributes))
        finally:
            sampling.ids.trace_id = 0

    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        parent: Parent = None,
    ) -> AbstractContextManager[Span]:
        """`start` as a context manager: the span is current inside the block, and ends with any error that leaves
        it."""
        if not self._probe():
            return nullcontext(NO_SPAN)
        return self._span(name, kind, attributes, parent)

    @contextmanager
    def _span(self, name: str, kind: Kind, attributes: Attributes | None, parent: Parent) -> Iterator[Span]:
        span = self.start(name, kind=kind, attributes=attributes, parent=parent)
        try:
            with span.current():
                yield span
        except BaseException as error:
            span.end(error)
            raise
        span.end()

    def traceparent(self, span: Span | None = None) -> str | None:
        """`traceparent` of `span`, or of the current span; None if tracing is off or there is no span."""
        if not self._probe():
            return None
        if span is not None:
            return span.traceparent()
        return _valid(_trace.get_current_span().get_span_context())

    def forget(self) -> None:
        """Forget what was drawn: this process is a fork, and its parent has drawn the same."""
        self._sampling = Sampling(None)

    def _known(self) -> Sampling:
        sampling, provider = self._sampling, self._probe.seen
        try:
            if sampling.provider is provider and sampling.sampler is provider.sampler:
                return sampling
        except AttributeError:  # a provider of another SDK
            if sampling.provider is provider:
                return sampling
        sampling = self._sampling = Sampling(provider)
        return sampling


def _format(context: _trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _valid(context: _trace.SpanContext) -> str | None:
    return _format(context) if context.is_valid else None


def _match(traceparent: str) -> re.Match[str] | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    return None if found is None or (len(traceparent) != 55 and found[1] == "00") else found


def _parse(traceparent: str) -> _trace.SpanContext | None:
    found = _match(traceparent)
    if found is None:
        return None
    return _trace.SpanContext(
        trace_id=int(found[2], 16),
        span_id=int(found[3], 16),
        is_remote=True,
        trace_flags=_trace.TraceFlags(int(found[4], 16) & _FLAGS),
    )


def _error_type(error: BaseException) -> str:
    if isinstance(error, GanglineError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return type(error).__qualname__


tracer: Final = Tracer()
"""The process's tracer."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=tracer.forget)
