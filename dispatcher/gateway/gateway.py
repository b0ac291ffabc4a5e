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
`traceparent`             the caller's trace
========================  =========================================================================================

The answer's body is the bare result; an error has the header `Nats-Service-Error` and a body with details.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...bus.port.bus import BucketSettings, Bus, Message
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, MicroService, ServiceDescription
from ...bus.rpc.responder import Listening, Responder, listen
from ...runtime.clock import Environment
from ...runtime.lifecycle import Service
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import InvalidRequest, QueueFull
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.names import Names
from ...schemas.text import parse_yes_no, plain
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import Format
from ...schemas.wire.frames import TaskFlag
from ...telemetry.logs import logger_for
from ..calls.call import CallOptions
from ..jobs.storage import TaskStorage
from ..router.router import Router
from ..routing.policy import Policy
from ..routing.settings import RouterSettings, check_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A call in a request, apart from the subject."""

    args: list[Any]
    kwargs: dict[str, Any]
    options: CallOptions
    parent: str | None
    """`traceparent` of the caller."""

    @classmethod
    def parse(cls, body: Any, given: Mapping[str, str] | None, default_timeout_s: float) -> PlainRequest:
        """Parse a request from its decoded body and its headers.

        Raises:
            InvalidRequest: the body has no arguments, or a header is invalid.
        """
        fields = {name.lower(): value for name, value in (given or {}).items()}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if isinstance(body, dict):
            bad = next((name for name in body if not isinstance(name, str)), None)
            if bad is not None:
                raise InvalidRequest(f"argument name {bad!r} is not a text")
            kwargs = body
        elif isinstance(body, list):
            args = body
        elif body is not None:
            raise InvalidRequest(
                f"the body is a bare {type(body).__name__}: send an object of named arguments, or an array of them, "
                f"for example {_example(body)}"
            )
        options = CallOptions(
            timeout_s=_timeout_s(fields.get(headers.TIMEOUT.lower()), default_timeout_s),
            key=fields.get(headers.KEY.lower()),
            model=fields.get(headers.MODEL.lower()),
            idempotent=_flag(fields.get(headers.IDEMPOTENT.lower())),
        )
        return cls(args=args, kwargs=kwargs, options=options, parent=fields.get(headers.TRACEPARENT))


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


@dataclass(slots=True)
class _Pending:
    """Calls of one tenant in progress."""

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

    ::

        async with Gateway(bus) as gateway:
            await gateway.wait_closed()
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
            settings, router_settings: see GatewaySettings and RouterSettings.
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
        self._pending = TaskSet("gateway call")
        self._by_tenant: dict[str, _Pending] = {"": _Pending()}
        """Calls in progress. The entry of Gangline's own account is kept even if there are none."""
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
        self.state = GatewayState.SERVING
        _log.info("answers %s", self.names.calls, extra={"action": "gateway.started"})

    async def drain(self, grace_s: float | None = None) -> None:
        """Accept nothing new, let calls in progress finish for `grace_s` seconds (None: the setting), then stop."""
        if self.state is GatewayState.SERVING:
            self.state = GatewayState.DRAINING
            await self._leave()
            await self._pending.rest(self.settings.drain_grace_s if grace_s is None else grace_s)
        await self.stop()

    async def _stop(self) -> None:
        await self._leave()
        await self.router.stop()
        await self._pending.rest(1.0)
        self._pending.cancel()
        _log.info("stopped", extra={"action": "gateway.stopped"})

    def statistics(self) -> dict[str, object]:
        """Calls so far, errors among them, calls in progress, and the router's statistics."""
        return {
            "state": self.state.value,
            "requests": self._requests,
            "errors": self._errors,
            "pending": len(self._pending),
            "pending_bytes": self._pending_bytes(),
            "router": self.router.statistics(),
        }

    def __repr__(self) -> str:
        return f"Gateway({self.names.namespace}, {self.state}, pending={len(self._pending)})"

    # -- calls ----------------------------------------------------------------------------------------------------

    def _on_call(self, message: Message) -> None:
        self._requests += 1
        responder = Responder(self.bus, message, _log)
        tenant, size = headers.tenant_of(message.headers), len(message.data)
        pending = self._by_tenant.get(tenant) or _Pending()
        if (full := self._full(tenant, pending, size)) is not None:
            self._fail(responder, full)
            return
        pending.calls += 1
        pending.bytes += size
        self._by_tenant[tenant] = pending
        serving = self._pending.start(self._serve(message, responder, tenant))
        serving.add_done_callback(lambda _: self._ended(tenant, size))

    def _ended(self, tenant: str, size: int) -> None:
        pending = self._by_tenant[tenant]
        pending.calls -= 1
        pending.bytes -= size
        if tenant and not pending.calls:
            del self._by_tenant[tenant]

    def _pending_bytes(self) -> int:
        return sum(each.bytes for each in self._by_tenant.values())

    def _full(self, tenant: str, pending: _Pending, size: int) -> QueueFull | None:
        settings, share = self.settings, self.settings.tenant_share
        for used, now, more, most, what in (
            (pending.calls, len(self._pending), 1, settings.max_pending, "calls"),
            (pending.bytes, self._pending_bytes(), size, settings.max_pending_bytes, "bytes of calls"),
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

    async def _serve(self, message: Message, responder: Responder, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            endpoint, method = self.names.parse_call(message.subject)
            call = PlainRequest.parse(responder.body(large=True), message.headers, self.settings.default_timeout_s)
            order = self.router.order(
                f"{endpoint}.{method}",
                call.args,
                call.kwargs,
                call.options,
                flags=int(TaskFlag.JSON) if responder.fmt is Format.JSON else 0,
                parent=call.parent,
            )
            order.tenant = tenant
            result, worker = await self.router.execute(order)
            responder.result(result, worker)
        except Exception as error:
            self._fail(responder, error)
        finally:
            self._busy_s += loop.time() - began_at

    def _fail(self, responder: Responder, error: Exception) -> None:
        told = responder.fail(error)
        self._errors += 1
        self._last_error = told.message
        if not responder.is_heard:
            _log.warning(
                "call %s without a reply subject failed: %s",
                responder.subject,
                told.message,
                extra={"action": "gateway.unheard_error", "subject": responder.subject, "code": told.code},
            )

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
                data={"pending": len(self._pending)},
            )
        ]
