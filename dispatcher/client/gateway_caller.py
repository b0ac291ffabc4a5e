"""Calls through gateways, for clients that may not send to workers: producers, and tenants in accounts of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from ...bus.port.bus import Message, NoResponders, RequestTimeout
from ...bus.rpc.requester import raise_if_error
from ...runtime.timers import Backoff
from ...runtime.tracebacks import FRAMES_HIDDEN
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GanglineError,
    InvalidName,
    InvalidRequest,
    NoGateway,
    ResultLost,
    StreamBroken,
)
from ...schemas.messages.operations import ItemsRequest
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...telemetry.tracing import Span
from ..calls.call import DEFAULTS, Call, CallOptions
from ..router.router import Router

DEFAULT_TIMEOUT_S: Final = 30.0
"""Deadline of a call that has none, in seconds: a gateway that is lost never answers."""
_GRACE_S: Final = 0.25
"""How long to wait after the deadline for the gateway's own answer, which says more than ours."""
_ITEMS_WITHIN_S: Final = 10.0
"""A gateway answers a request for items within two seconds, whether there are any or not."""
_MAX_WINDOW: Final = 1000
_UNAVAILABLE: Final = ("labels", "pool", "queue", "max_attempts")
"""Options that plain requests cannot express."""


class GatewayCaller:
    """`call` and `stream` as requests to gateways. One per client."""

    def __init__(self, router: Router) -> None:
        """
        Args:
            router: of the client. Its connection, deadlines, metrics and traces are used; it sends nothing to workers.
        """
        self._router = router
        self._bus = router.bus
        self._names = router.names
        self._waiting: dict[asyncio.Timeout, None] = {}
        """Of requests in progress."""

    def close(self) -> None:
        """End requests in progress with ClosedError. Their tasks run on until their deadlines."""
        for scope in self._waiting:
            scope.reschedule(0.0)

    async def call(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = DEFAULTS,
    ) -> Any:
        """Run `ENDPOINT.METHOD` and return its result; see Client.call."""
        with FRAMES_HIDDEN:
            order = self._order(target, args, kwargs, options)
            with self._router.observed(order) as (_, span):
                return _value(await self._begin(order, span))

    async def stream(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = DEFAULTS,
    ) -> AsyncGenerator[Any, None]:
        """Run `ENDPOINT.METHOD` and yield its items; see Client.stream."""
        with FRAMES_HIDDEN:
            order = self._order(target, args, kwargs, options)
            window = min(self._router.settings.stream_window, _MAX_WINDOW)
            with self._router.observed(order) as (_, span):
                answer = await self._begin(order, span, {headers.STREAM: str(window)})
                received, following = 0, None
                try:
                    while True:
                        items, following = self._items(answer)
                        received += len(items)
                        for item in items:
                            yield item
                        if following is None:
                            return
                        answer = await self._next(order, following, received)
                finally:
                    if following is not None:
                        self._leave(following)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _order(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: CallOptions) -> Call:
        given = [name for name in _UNAVAILABLE if getattr(options, name) is not None]
        if given:
            raise InvalidRequest(
                f"{', '.join(given)}: a call through a gateway cannot have these options; nothing was sent. Leave them "
                "out, or connect as a router, without gateway=True"
            )
        order = self._router.order(target, args, kwargs or {}, options)
        if order.deadline is None:
            order.deadline = asyncio.get_running_loop().time() + DEFAULT_TIMEOUT_S
        return order

    async def _begin(self, order: Call, span: Span, more: Mapping[str, str] | None = None) -> Message:
        """Send the call to a gateway; the answer, which may be an error."""
        options, subject = order.options, self._names.private(self._names.call(order.endpoint, order.method))
        fields = {CONTENT_TYPE: Format.MSGPACK.value, **(more or {})}
        if order.args and order.kwargs:
            fields[headers.ARGUMENTS] = headers.BOTH
            body = codec.pack([list(order.args), dict(order.kwargs)])
        else:
            body = codec.pack(dict(order.kwargs) or list(order.args))
        if options.key is not None:
            fields[headers.KEY] = options.key
        if options.model is not None:
            fields[headers.MODEL] = options.model
        if options.idempotent is not None:
            fields[headers.IDEMPOTENT] = "true" if options.idempotent else "false"
        if (trace := span.traceparent()) is not None:
            fields[headers.TRACEPARENT] = trace
        loop, backoff = asyncio.get_running_loop(), Backoff(0.025, 0.25)
        patient_until = loop.time() + self._router.settings.no_workers_wait_s
        sent = False
        while True:
            fields[headers.TIMEOUT] = f"{self._left_s(order, sent):.3f}"
            try:
                return await self._request(subject, body, fields, self._left_s(order, sent) + _GRACE_S)
            except NoResponders as error:
                if loop.time() >= patient_until:
                    raise NoGateway(
                        f"no gateway answers calls of {order.endpoint}: start one (gangline gateway), or see whether "
                        "this user's account imports the endpoint",
                        may_have_started=sent,
                    ) from error
            except RequestTimeout as error:
                raise order.too_late(may_have_started=True) from error
            except Disconnected as error:
                sent = sent or error.may_have_started
                if not error.may_have_started:
                    error.may_have_started = sent
                    raise
                if not options.idempotent:
                    raise ResultLost(
                        f"{order.target} may have run: {error.message}. Make the call idempotent to have it sent again",
                        details={"target": order.target},
                    ) from error
                patient_until = loop.time() + self._router.settings.no_workers_wait_s
            await asyncio.sleep(min(backoff.next_s(), self._left_s(order, sent)))

    async def _next(self, order: Call, following: str, received: int) -> Message:
        """Ask for the next items."""
        body = codec.encode_model(ItemsRequest(after=received), Format.MSGPACK)
        backoff = Backoff(0.025, 0.25)
        while True:
            left_s = self._left_s(order, True)
            try:
                return await self._request(
                    self._names.private(following),
                    body,
                    {CONTENT_TYPE: Format.MSGPACK.value},
                    min(left_s + _GRACE_S, _ITEMS_WITHIN_S),
                )
            except NoResponders as error:
                raise StreamBroken(
                    f"the stream of {order.target} broke: its gateway is gone; call again", details={"items": received}
                ) from error
            except RequestTimeout as error:
                if left_s + _GRACE_S <= _ITEMS_WITHIN_S:
                    raise order.too_late(may_have_started=True) from error
                raise StreamBroken(
                    f"the stream of {order.target} broke: its gateway does not answer; call again",
                    details={"items": received},
                ) from error
            except Disconnected:  # it keeps the last items until we have them
                await asyncio.sleep(min(backoff.next_s(), self._left_s(order, True)))

    async def _request(self, subject: str, body: bytes, fields: Mapping[str, str], timeout_s: float) -> Message:
        self._router.check_open()
        try:
            async with asyncio.timeout(None) as scope:
                self._waiting[scope] = None
                try:
                    return await self._bus.request(subject, body, timeout_s=timeout_s, headers=fields)
                finally:
                    del self._waiting[scope]
        except TimeoutError as error:
            raise ClosedError("this client was closed while it waited for an answer", may_have_started=True) from error

    def _left_s(self, order: Call, may_have_started: bool) -> float:
        assert order.deadline is not None
        left_s = order.deadline - asyncio.get_running_loop().time()
        if left_s < 0.001:
            raise order.too_late(may_have_started=may_have_started)
        return left_s

    def _items(self, answer: Message) -> tuple[list[Any], str | None]:
        """The items of an answer, and where to ask for the next ones."""
        value = _value(answer)
        if isinstance(value, dict) and value.keys() == {"items", "next"}:
            items, following = value["items"], value["next"]
            try:
                if following is not None:
                    self._names.parse_stream(following)
                if isinstance(items, list):
                    return items, following
            except (InvalidName, AttributeError):
                pass
        raise StreamBroken("the gateway answered with something else than items: update it to this version")

    def _leave(self, following: str) -> None:
        """Nobody wants the rest: have the task cancelled. If this is lost, the gateway finds out by itself."""
        try:
            self._bus.publish(self._names.private(following), codec.to_json({"close": True}))
        except GanglineError:
            pass


def _value(answer: Message) -> Any:
    """The result in an answer.

    Raises:
        GanglineError: the error in it.
    """
    raise_if_error(answer)
    return codec.decode(answer.data, Format.of(answer.headers))
