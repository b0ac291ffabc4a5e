"""The gateway: answers `<ns>.call.<endpoint>.<method>` for the stock `nats` CLI and for any language.

Gateways of a namespace share the calls (queue group). A call without a reply subject is executed as well; the gateway
logs its errors.

========================  =========================================================================================
body                      an object has keyword arguments, an array positional ones; empty or null: none
`Content-Type`            `application/json` (default) or `application/msgpack`; the answer has the same
`Gangline-Timeout`        how long the caller waits, in seconds; becomes the deadline
`Gangline-Key`            session or shard key
`Gangline-Model`          model id
`Gangline-Idempotent`     `true`: may be retried when the outcome of an attempt is unknown
`Gangline-Arguments`      `both`: the body is an array of the positional arguments and the object of keyword ones
`Gangline-Stream`         `true`, or how many items an answer may have: the task yields items; see gateway.streams
`traceparent`             the caller's trace
========================  =========================================================================================

The answer's body is the bare result; an error has the header `Nats-Service-Error` and a body with details.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ...bus.port.bus import BucketSettings, Bus, Message, NotPermitted
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, MicroService, ServiceDescription
from ...bus.rpc.responder import Listening, Responder, listen
from ...runtime.clock import Environment
from ...runtime.lifecycle import Service
from ...runtime.tasks import TaskSet, set_within
from ...schemas.errors.base import InvalidRequest, QueueFull
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.names import Names
from ...schemas.text import parse_yes_no, plain
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...schemas.wire.frames import AnswerOp, TaskFlag
from ...schemas.wire.own_headers import OF_CALLS, OWN
from ...telemetry.logs import logger_for
from ..calls.call import Call, CallOptions
from ..calls.fast_path import PlainFlight
from ..calls.unknown_headers import warn_of_unknown_headers
from ..jobs.storage import TaskStorage
from ..router.router import Router
from ..routing.policy import Policy
from ..routing.settings import RouterSettings, check_bounds
from ..transport.channel import Outcome
from .streams import GatewayStreams, items_per_answer


class PlainRequest(NamedTuple):
    """A call in a request, apart from the subject."""

    args: list[Any]
    kwargs: dict[str, Any]
    options: CallOptions
    parent: str | None
    """`traceparent` of the caller."""
    most: int = 0
    """The call is streamed, with at most so many items in one answer; 0: it is not."""
    unknown_headers: tuple[str, ...] = ()
    """Names of headers of Gangline's that mean nothing on a call: misspelt, or of a later version."""

    @classmethod
    def parse(cls, body: Any, given: Mapping[str, str] | None, default_timeout_s: float) -> PlainRequest:
        """Parse a request from its decoded body and its headers.

        Raises:
            InvalidRequest: the body has no arguments, or a header is invalid.
        """
        if not given:
            return cls(*_arguments(body), _waits(default_timeout_s), None)
        fields = {name.lower(): value for name, value in given.items()}
        args, kwargs = _arguments(body) if (kinds := fields.get(_ARGUMENTS)) is None else _both(body, kinds)
        timeout_s = _timeout_s(fields.get(_TIMEOUT), default_timeout_s)
        key, model, idempotent = fields.get(_KEY), fields.get(_MODEL), _flag(fields.get(_IDEMPOTENT))
        options = (
            _waits(timeout_s)
            if key is None and model is None and idempotent is None
            else CallOptions(timeout_s=timeout_s, key=key, model=model, idempotent=idempotent)
        )
        unknown = () if fields.keys() <= _KNOWN else tuple(filter(_is_unknown, given))
        return cls(
            args, kwargs, options, fields.get(headers.TRACEPARENT), items_per_answer(fields.get(_STREAM)), unknown
        )


_TIMEOUT: Final = headers.TIMEOUT.lower()
_KEY: Final = headers.KEY.lower()
_MODEL: Final = headers.MODEL.lower()
_IDEMPOTENT: Final = headers.IDEMPOTENT.lower()
_STREAM: Final = headers.STREAM.lower()
_ARGUMENTS: Final = headers.ARGUMENTS.lower()
_KNOWN: Final = {name.lower() for name in (CONTENT_TYPE, *OF_CALLS, headers.TRACEPARENT, headers.REQUEST_INFO)}


def _is_unknown(name: str) -> bool:
    return (lower := name.lower()).startswith(OWN) and lower not in _KNOWN


def _arguments(body: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments in a body."""
    if isinstance(body, dict):
        return [], _named(body)
    if isinstance(body, list):
        return body, {}
    if body is None:
        return [], {}
    raise InvalidRequest(
        f"the body is a bare {type(body).__name__}: send an object of named arguments, or an array of them, "
        f"for example {_example(body)}"
    )


def _both(body: Any, kinds: str) -> tuple[list[Any], dict[str, Any]]:
    """The same, of a body that has both kinds."""
    if kinds.lower() != headers.BOTH:
        raise InvalidRequest(f"{headers.ARGUMENTS} is {kinds[:40]!r}: give 'both', or leave it out")
    if not isinstance(body, list) or [type(part) for part in body] != [list, dict]:
        raise InvalidRequest(
            f"with {headers.ARGUMENTS} the body must be an array of the positional arguments and the object of named "
            'ones, for example [["a.png"], {"width": 64}]'
        )
    return body[0], _named(body[1])


def _named(kwargs: dict[Any, Any]) -> dict[str, Any]:
    bad = next((name for name in kwargs if not isinstance(name, str)), None)
    if bad is not None:
        raise InvalidRequest(f"argument name {bad!r} is not a text")
    return kwargs


@functools.lru_cache(maxsize=64)  # nearly all requests have one of a few
def _waits(timeout_s: float) -> CallOptions:
    return CallOptions(timeout_s=timeout_s)


def _example(value: Any) -> str:
    """A bare value as an array of one argument, in JSON; shortened, or a fixed example if it is not serializable."""
    try:
        return codec.to_json([value[:40] if isinstance(value, str) else value]).decode()
    except InvalidRequest:
        return '["a.png"]'


def _timeout_s(text: str | None, default_s: float) -> float:
    if text is None:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_DEADLINE_S:
        raise InvalidRequest(
            f"{headers.TIMEOUT} is {text[:40]!r}: give seconds above 0 and at most {plain(MAX_DEADLINE_S)}, "
            "for example 2.5"
        )
    return seconds


def _flag(text: str | None) -> bool | None:
    if text is None:
        return None
    try:
        return parse_yes_no(text)
    except ValueError:
        raise InvalidRequest(f"{headers.IDEMPOTENT} is {text[:40]!r}: give 'true' or 'false'") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of one gateway.

    Raises:
        InvalidSettings: a value is out of bounds.
    """

    default_timeout_s: float = 30.0
    """Deadline in seconds of a call without `Gangline-Timeout`. Above 0. After that, the caller has probably gone."""
    max_pending: int = 10_000
    """Maximum number of calls in progress; one more is answered with QueueFull at once. At least 1."""
    max_pending_bytes: int = 256 << 20
    """Maximum size of the bodies of all calls in progress, in bytes; one more is answered with QueueFull at once. At
    least 1 MB. Decoded arguments take several times as much memory."""
    tenant_share: float = 0.5
    """Share of `max_pending` that one tenant (an account that imports calls) may use while no other calls. Room is
    always left for later ones: with 0.5, n tenants that call continuously get 1/(n+1) each. Above 0, below 1."""
    drain_grace_s: float = 30.0
    """How long `drain` lets calls finish before it ends them, in seconds. At least 0."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


_BOUNDS: Final = (
    ("default_timeout_s", 0.001, MAX_DEADLINE_S),
    ("max_pending", 1, 10_000_000),
    ("max_pending_bytes", 1 << 20, 1 << 40),
    ("tenant_share", 0.001, 0.999),
    ("drain_grace_s", 0.0, MAX_DEADLINE_S),
)


_log = logger_for("gateway")

SERVICE: Final = "gangline-gateway"
"""Name of gateways in `nats service ls`."""
_ENDPOINT: Final = "call"
_MAX_TARGETS: Final = 4096
_OK: Final = int(AnswerOp.OK)
_JSON: Final = int(TaskFlag.JSON)
_JSON_FORMAT: Final = Format.JSON


@dataclass(slots=True)
class _Pending:
    """Calls in progress."""

    calls: int = 0
    bytes: int = 0
    """Total size of their bodies."""


class GatewayState(StrEnum):
    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSED = "closed"


class Gateway(Service[GatewayState]):
    """Serves calls of one namespace. `stop` ends at once: calls in progress are answered with ClosedError and their
    tasks cancelled.

    ```python
    async with Gateway(bus) as gateway:
        await gateway.wait_closed()
    ```
    """

    def __init__(
        self,
        bus: Bus,
        *,
        names: Names | None = None,
        settings: GatewaySettings | None = None,
        router_settings: RouterSettings | None = None,
        bucket: BucketSettings | None = None,
        policy: Callable[[str], Policy] | None = None,
        ambient: Environment | None = None,
        name: str = "",
    ) -> None:
        """
        Args:
            bus: an open connection; the caller closes it.
            names: the namespace; default `gangline`.
            settings: see GatewaySettings.
            router_settings: see RouterSettings.
            bucket: settings of the ledger if it has to be created.
            policy: makes the routing policy of a pool from its name; default: Sticky.
            name: the owner of leases in the ledger.
        """
        super().__init__("this gateway", GatewayState)
        self.bus = bus
        self.names = names or Names()
        self.settings = settings or GatewaySettings()
        ambient = ambient or Environment()
        self.router = Router(
            bus,
            self.names,
            settings=router_settings,
            ambient=ambient,
            bucket=bucket,
            policy=policy,
            name=name or SERVICE,
            routes_bucket=TaskStorage.from_environment().routes,
            makes_routes=True,
        )
        self._service = MicroService(bus, self._describe, statistics=self._counters, ambient=ambient)
        self._listening = Listening()
        self._streams = GatewayStreams(bus, self.names, ambient, _log)
        self._stream_listening = Listening()
        self._slow = TaskSet("gateway call")
        """Calls that the router's fast path does not take, or not to their end."""
        self._everyone = _Pending()
        """All calls in progress."""
        self._by_tenant: dict[str, _Pending] = {"": _Pending()}
        """The same by tenant. The entry of Gangline's own account is kept even if there are none."""
        self._rested: asyncio.Event | None = None
        """Set when no call is in progress, if somebody waits for that."""
        self._warned: set[str] = set()
        """Names of unknown headers that a warning was logged about."""
        self._targets: dict[str, str] = {}
        """By subject. Limited in number."""
        self._requests = 0
        self._errors = 0
        self._last_error = ""
        self._busy_s = 0.0

    # -- life -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.router.start()
        self.router.routes.start()
        subjects = self.names.both(self.names.calls)
        self._listening = await listen(self.bus, subjects, self._on_call, queue=self.names.gateway_queue)
        await self._service.start()
        await self.bus.flush()
        await self._listen_for_streams()
        self.state = GatewayState.SERVING
        _log.info("answers %s", self.names.calls, extra={"action": "gateway.started"})

    async def drain(self, grace_s: float | None = None) -> None:
        """Accept nothing new, let calls in progress finish for `grace_s` seconds (None: the setting), then stop."""
        if self.state is GatewayState.SERVING:
            self.state = GatewayState.DRAINING
            await self._leave()
            await self._rest(self.settings.drain_grace_s if grace_s is None else grace_s)
        await self.stop()

    async def _stop(self) -> None:
        await self._leave()
        await self.router.stop()
        self._streams.stop()
        await self._rest(1.0)
        await self._stream_listening.unsubscribe()
        self._slow.cancel()
        _log.info("stopped", extra={"action": "gateway.stopped"})

    def statistics(self) -> dict[str, object]:
        """Calls so far, errors among them, calls in progress, and the router's statistics."""
        return {
            "state": self.state.value,
            "requests": self._requests,
            "errors": self._errors,
            "pending": self._everyone.calls,
            "pending_bytes": self._everyone.bytes,
            "router": self.router.statistics(),
        }

    def __repr__(self) -> str:
        return f"Gateway({self.names.namespace}, {self.state}, pending={self._everyone.calls})"

    async def _listen_for_streams(self) -> None:
        try:
            self._stream_listening = await listen(self.bus, self._streams.subjects, self._on_stream)
            await self.bus.flush()
        except NotPermitted as error:  # roles that were written by an earlier version
            _log.warning("streams of items end early: %s", error.message, extra={"action": "gateway.no_streams"})

    # -- calls ----------------------------------------------------------------------------------------------------

    def _on_call(self, message: Message) -> None:
        self._requests += 1
        call = GatewayCall(self, message)
        size = len(message.data)
        pending = self._by_tenant.get(call.tenant) or _Pending()
        if (full := self._full(call.tenant, pending, size)) is not None:
            self._failed(call, full)
            return
        everyone = self._everyone
        everyone.calls += 1
        everyone.bytes += size
        pending.calls += 1
        pending.bytes += size
        self._by_tenant[call.tenant] = pending
        call.start()

    def _on_stream(self, message: Message) -> None:
        self._streams.serve(message, self._tenant_of(message))

    def _tenant_of(self, message: Message) -> str:
        """Whose message it is; empty: of Gangline's own account."""
        return self.router.settings.quotas.tenant_of(headers.account_of(message.headers))

    def _full(self, tenant: str, pending: _Pending, size: int) -> QueueFull | None:
        settings, share, everyone = self.settings, self.settings.tenant_share, self._everyone
        if not tenant and everyone.calls < settings.max_pending and everyone.bytes + size <= settings.max_pending_bytes:
            return None  # as is nearly always the case
        for used, now, more, most, what in (
            (pending.calls, everyone.calls, 1, settings.max_pending, "calls"),
            (pending.bytes, everyone.bytes, size, settings.max_pending_bytes, "bytes of calls"),
        ):
            if now + more > most:
                return QueueFull(f"this gateway has {now} {what} in progress: try again later")
            if tenant and used * (1 - share) >= (most - now) * share:
                return QueueFull(
                    f"tenant {tenant!r} has {used} {what} in progress, as many as this gateway accepts from it now: "
                    "try again later",
                    details={"tenant": tenant, "pending": used},
                )
        return None

    def _target(self, subject: str) -> str:
        target = self._targets.get(subject)
        if target is None:
            target = ".".join(self.names.parse_call(subject))
            if len(self._targets) < _MAX_TARGETS:
                self._targets[subject] = target
        return target

    def _warn(self, target: str, unknown: tuple[str, ...]) -> None:
        warn_of_unknown_headers(
            _log,
            self._warned,
            unknown,
            OF_CALLS,
            of=f"a call of {target}",
            kind="call",
            action="call.unknown_header",
            target=target,
        )

    def _failed(self, call: GatewayCall, error: Exception) -> None:
        told = call.fail(error)
        self._errors += 1
        self._last_error = told.message
        if not call.is_heard:
            _log.warning(
                "call %s without a reply subject failed: %s",
                call.subject,
                told.message,
                extra={"action": "gateway.unheard_error", "subject": call.subject, "code": told.code},
            )

    def _ended(self, call: GatewayCall) -> None:
        size, tenant, everyone = call.size, call.tenant, self._everyone
        self._busy_s += self.router.exchange.loop.time() - call.began_at
        pending = self._by_tenant[tenant]
        pending.calls -= 1
        pending.bytes -= size
        if tenant and not pending.calls:
            del self._by_tenant[tenant]
        everyone.calls -= 1
        everyone.bytes -= size
        if self._rested is not None and not everyone.calls:
            self._rested.set()
            self._rested = None

    async def _rest(self, timeout_s: float) -> None:
        """Wait until no call is in progress, or for that long."""
        if not self._everyone.calls:
            return
        rested = self._rested = self._rested or asyncio.Event()
        await set_within(rested, timeout_s)

    # -- discovery ------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self._service.stop()
        await self._listening.drain()

    def _describe(self) -> ServiceDescription:
        names = self.names
        return ServiceDescription(
            name=SERVICE,
            description="Answers calls with tasks of Gangline workers",
            metadata={"namespace": names.namespace, "node": self.router.settings.node or socket.gethostname()},
            endpoints=(Endpoint(name=_ENDPOINT, subject=names.calls, queue_group=names.gateway_queue),),
        )

    def _counters(self) -> list[EndpointStatistics]:
        return [
            EndpointStatistics(
                name=_ENDPOINT,
                requests=self._requests,
                errors=self._errors,
                last_error=self._last_error,
                processing_s=self._busy_s,
                data={"pending": self._everyone.calls},
            )
        ]


class GatewayCall(Responder):
    """One call in progress. It is sent where it is read and answered where its result is read: no task and no future
    are made for it, unless the router's fast path does not take it, or has no result for it. Accepts an outcome as a
    future does; see transport.OutcomeSink.
    """

    __slots__ = ("_done", "_flight", "_gateway", "_request", "_target", "began_at", "tenant")

    def __init__(self, gateway: Gateway, message: Message) -> None:
        super().__init__(gateway.bus, message, _log)
        self._gateway = gateway
        self._done = False
        self.began_at = gateway.router.exchange.loop.time()
        self.tenant = gateway._tenant_of(message)

    @property
    def size(self) -> int:
        """Size of the body in bytes."""
        return len(self._message.data)

    @property
    def _flags(self) -> int:
        return _JSON if self.fmt is _JSON_FORMAT else 0

    def start(self) -> None:
        """Send it, or have a task send it."""
        gateway = self._gateway
        try:
            self._target = gateway._target(self.subject)
            body = self.body(large=True)
            self._request = PlainRequest.parse(body, self._message.headers, gateway.settings.default_timeout_s)
            args, kwargs, options, parent, most, unknown = self._request
            if unknown:
                gateway._warn(self._target, unknown)
            if most:
                gateway._slow.start(self._stream())
                return
            begun = gateway.router.begin(
                self._target, args, kwargs, options, self, flags=self._flags, parent=parent, tenant=self.tenant
            )
        except Exception as error:
            self._fail(error)
            return
        if isinstance(begun, Call):
            gateway._slow.start(self._go_on(begun))
        else:
            self._flight = begun

    # -- as a future --------------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._done

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._gateway.router.exchange.loop

    def set_result(self, outcome: Outcome) -> None:
        self._done = True
        if type(outcome) is not list or outcome[0] != _OK:
            self._gateway._slow.start(self._again(outcome))
            return
        try:
            flight = self._flight
            self._gateway.router.answered(flight)
            self.result(outcome[2], str(flight.worker.id))
        except Exception as error:
            self._fail(error)
        else:
            self._gateway._ended(self)

    def set_exception(self, error: Exception) -> None:
        self._done = True
        self.get_loop().call_soon(self._lost, error)  # perhaps it is just being sent

    def _lost(self, error: Exception) -> None:
        self._gateway.router.failed(self._flight, error)
        self._fail(error)

    # -- the general path -----------------------------------------------------------------------------------------

    async def _again(self, outcome: Outcome) -> None:
        """The worker's answer was not a result."""
        args, kwargs, options, *_ = self._request
        order = self._gateway.router.order(self._target, args, kwargs, options, flags=self._flags)
        order.tenant = self.tenant
        await self._go_on(order, (self._flight, outcome))

    async def _go_on(self, order: Call, tried: tuple[PlainFlight, Outcome] | None = None) -> None:
        try:
            self.result(*await self._gateway.router.execute(order, tried))
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._gateway._ended(self)
            raise
        else:
            self._gateway._ended(self)

    async def _stream(self) -> None:
        gateway, (args, kwargs, options, parent, most, _) = self._gateway, self._request
        items = gateway.router.stream(
            self._target, args, kwargs, options=options, parent=parent, flags=self._flags, tenant=self.tenant
        )
        try:
            await gateway._streams.run(self, items, most, self.tenant)
        except Exception as error:
            self._fail(error)
        except BaseException:
            gateway._ended(self)
            raise
        else:
            gateway._ended(self)

    def _fail(self, error: Exception) -> None:
        self._gateway._failed(self, error)
        self._gateway._ended(self)
