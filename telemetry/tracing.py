"""Spans, in one trace from client through router to worker.

Other modules need only `tracer`. Without a real provider every method returns at once with a span that does nothing; a
hot path can check `tracer.enabled` to avoid even building attributes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Final, Literal

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

    __slots__ = ("_get", "_noop", "_real", "_seen", "_variable", "_variables")

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
        self._seen: object = None
        self._real = False

    def real(self) -> bool:
        """For hot paths: calling a method costs half as much as calling an object."""
        try:
            provider = self._variables[self._variable]
        except KeyError:
            provider = self._get()
        if provider is not self._seen:
            self._seen = provider
            self._real = self._is_real(provider)
        return self._real

    __call__ = real

    def _is_real(self, provider: object) -> bool:
        # The proxies used until a provider is set are private classes of the API, with several names.
        return provider is not None and not isinstance(provider, self._noop) and "Proxy" not in type(provider).__name__


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
# https://www.w3.org/TR/trace-context/#traceparent-header; version ff is invalid, later versions may append fields.
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Span:
    """One span, or nothing if tracing is off. `end` must be called once; later calls do nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: _trace.Span | None) -> None:
        self._span = span

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
        span, self._span = self._span, None
        if span is None:
            return
        if error is not None and span.is_recording():
            span.set_attribute("error.type", _error_type(error))
            if isinstance(error, GanglineError):
                span.set_attribute("gangline.may_have_started", error.may_have_started)
            span.record_exception(error)
            span.set_status(_trace.StatusCode.ERROR, str(error) or type(error).__name__)
        span.end()

    def traceparent(self) -> str | None:
        """`traceparent` of this span, for the wire; None if tracing is off or the span has ended."""
        return None if self._span is None else _format(self._span.get_span_context())

    def context(self) -> _context.Context | None:
        """The context for child spans; None if tracing is off or the span has ended."""
        return None if self._span is None else _trace.set_span_in_context(self._span)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this span the parent of spans started inside the block, without ending it."""
        if self._span is None:
            yield
            return
        token = _context.attach(_trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            _context.detach(token)

    def __repr__(self) -> str:
        return f"<Span {self.traceparent() or 'off'}>"


NO_SPAN: Final = Span(None)
"""Returned by `tracer.start` while tracing is off; shared, since it has no state."""


class Tracer:
    """Starts spans with the process's tracer provider, which may be set at any time."""

    def __init__(self) -> None:
        self._probe = ProviderProbe(_trace, "_TRACER_PROVIDER", _trace.get_tracer_provider, _trace.NoOpTracerProvider)
        self.on = self._probe.real
        """The function behind `enabled`, for hot paths."""
        self._tracer: _trace.Tracer | None = None
        self._provider: object = None

    @property
    def enabled(self) -> bool:
        """Whether a real provider is set. Cheap (60 ns), and checked again each time."""
        return self._probe()

    def start(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        parent: str | Span | None = None,
    ) -> Span:
        """Start a span; it must be ended.

        Args:
            name: with low cardinality, such as `gangline.call images.thumbnail`; never with an id in it.
            parent: a span of this process that has not ended, or a `traceparent` from the wire. None: the current span
                of this context. A malformed one starts a new trace, as the standard requires.
        """
        if not self._probe():
            return NO_SPAN
        context = _context_under(parent)
        span = self._api().start_span(name, context=context, kind=_KINDS[kind], attributes=attributes)
        return Span(span)

    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        parent: str | None = None,
    ) -> AbstractContextManager[Span]:
        """`start` as a context manager: the span is current inside the block, and ends with any error that leaves
        it."""
        if not self._probe():
            return nullcontext(NO_SPAN)
        return self._span(name, kind, attributes, parent)

    @contextmanager
    def _span(self, name: str, kind: Kind, attributes: Attributes | None, parent: str | None) -> Iterator[Span]:
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
        return _format(_trace.get_current_span().get_span_context())

    def _api(self) -> _trace.Tracer:
        provider = _trace.get_tracer_provider()
        if self._tracer is None or provider is not self._provider:
            self._provider = provider
            self._tracer = provider.get_tracer(SCOPE)
        return self._tracer


def _format(context: _trace.SpanContext) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context_under(parent: str | Span | None) -> _context.Context | None:
    if parent is None:
        return None
    return _remote_context(parent) if isinstance(parent, str) else parent.context()


def _remote_context(traceparent: str) -> _context.Context:
    """A context whose current span is the remote one; an empty context if it cannot be parsed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    root = _context.Context()
    if found is None or (found[1] == "00" and len(traceparent) != 55):
        return root
    remote = _trace.SpanContext(
        trace_id=int(found[2], 16),
        span_id=int(found[3], 16),
        is_remote=True,
        trace_flags=_trace.TraceFlags(int(found[4], 16) & _trace.TraceFlags.SAMPLED),
    )
    return _trace.set_span_in_context(_trace.NonRecordingSpan(remote), root)


def _error_type(error: BaseException) -> str:
    if isinstance(error, GanglineError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return type(error).__qualname__


tracer: Final = Tracer()
"""The process's tracer."""
