"""Requests on a worker's own subjects in JSON or msgpack, for operators and other languages.

Each is answered exactly once, in the format of the request; errors are sent as `Nats-Service-Error` and
`Nats-Service-Error-Code` with a body that has the details. A request without a reply subject gets no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ...bus.port.bus import Bus, Message
from ...bus.rpc.responder import OperationTable, Responder
from ...runtime.timers import NEVER
from ...schemas.errors.base import (
    GanglineError,
    InvalidRequest,
    InvalidResult,
    LeaseError,
    StaleEpoch,
)
from ...schemas.limits import MAX_SCHEMAS_BYTES
from ...schemas.messages import operations as messages
from ...schemas.names import Operation
from ...schemas.text import count_of
from ...schemas.wire.codec import Format
from ...telemetry.logs import Log
from ..execution.runner import TaskRun, TaskRunner
from ..ledger.core_driver import OPERATIONS, REASONS, CoreDriver, LeaseService, error_of
from ..pool.pool import Outcome, Pool
from ..slots.lease_table import WITHDRAWN, GrantedLease, Refusal


class RunResponder:
    """Connects a run to its responder."""

    __slots__ = ("_driver", "_responder")
    job = None
    progress = None

    def __init__(self, responder: Responder, driver: CoreDriver) -> None:
        self._responder = responder
        self._driver = driver

    def answer(self, run: TaskRun, outcome: Outcome) -> GanglineError | None:
        record = run.record
        self._driver.core.settle(record.sender, record.id, WITHDRAWN, self._driver.now())
        error = outcome.error
        if error is None:
            try:
                self._responder.result(
                    outcome.value, str(self._driver.worker), what=f"the result of {run.task.full_name}"
                )
            except InvalidResult as unwritable:
                error = unwritable
        if error is not None:
            self._responder.fail(error)
        return error

    def item(self, run: TaskRun, sequence: int, value: Any) -> None:
        raise AssertionError("a plain request asks for no stream")


class OperationsServer:
    """Carries out the operations of one worker."""

    def __init__(
        self,
        bus: Bus,
        pool: Pool,
        driver: CoreDriver,
        runs: TaskRunner,
        lease_service: LeaseService,
        *,
        drain: Callable[[float | None], None],
        resize: Callable[[int], None],
        stats: Callable[[], messages.StatsReply],
        log: Log,
    ) -> None:
        """`drain`, `resize` and `stats` are the worker's own; `drain` returns at once."""
        self._bus = bus
        self._pool = pool
        self._driver = driver
        self._core = driver.core
        self._runs = runs
        self._lease_service = lease_service
        self._drain = drain
        self._resize = resize
        self._stats = stats
        self._log = log
        self._ids = count()
        self._table = OperationTable("a worker", bus, log)
        self._table.add(
            {
                Operation.RESERVE: self._on_reserve,
                Operation.RENEW: self._on_renew,
                Operation.RELEASE: self._on_release,
                Operation.STATS: self._on_stats,
                Operation.DRAIN: self._on_drain,
                Operation.RESIZE: self._on_resize,
                Operation.SCHEMAS: self._on_schemas,
            }
        )
        self._table.add({Operation.DISPATCH: self._on_dispatch}, large=True)
        self.counts = self._table.counts
        """Requests and errors by operation."""

    def serve(self, operation: Operation, handler: Callable[[Responder, Any], None], *, large: bool = False) -> None:
        """Add an operation. `handler` answers now or later, or raises. For `large` see Responder.body."""
        self._table.add({operation: handler}, large=large)

    def take(self, operation: str, message: Message) -> None:
        """Carry out one request and answer it, now or when its task has ended."""
        self._table.take(operation, message)
        self._driver.after()

    def refuse(self, message: Message, error: GanglineError) -> None:
        """Answer a message that is not a valid request."""
        Responder(self._bus, message, self._log).fail(error)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _on_reserve(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.ReserveRequest, body, empty=False)
        now = self._driver.now()
        lease = self._lease_service.reserve(
            self._core.sender(OPERATIONS, now),
            request.rid,
            slots=request.slots,
            ttl_s=request.ttl_s,
            claim_s=request.ttl_s if request.claim_s is None else request.claim_s,
            single_use=request.single_use,
            owner=request.owner,
            now=now,
        )
        if isinstance(lease, Refusal):
            self._not_granted(responder, lease, request.slots)
        elif request.ledger == "sync" and not self._lease_service.recorded(lease):
            self._lease_service.in_background(self._grant_recorded(responder, lease.token))
        else:
            responder.reply(self._granted(lease))

    async def _grant_recorded(self, responder: Responder, token: str) -> None:
        try:
            lease = await self._lease_service.record(token)
        except GanglineError as error:
            responder.fail(error)
            return
        if lease is None:
            self._not_granted(responder, Refusal.EXPIRED, 0)
        else:
            responder.reply(self._granted(lease))

    def _granted(self, lease: GrantedLease) -> messages.ReserveReply:
        return messages.ReserveReply(
            accepted=True,
            token=lease.token,
            epoch=self._core.epoch,
            fence=lease.fence,
            ttl_s=lease.ttl_s,
            load=self._load(),
        )

    def _not_granted(self, responder: Responder, refusal: Refusal, slots: int) -> None:
        reason = REASONS.get(refusal)
        if reason is None:
            raise error_of(refusal, worker=str(self._driver.worker), slots=slots, total=self._core.load.total)
        self._driver.metrics.rejected(reason)
        responder.reply(
            messages.ReserveReply(accepted=False, reason=str(reason), epoch=self._core.epoch, load=self._load())
        )

    def _on_renew(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.RenewRequest, body)
        self._check_epoch(request.epoch)
        try:
            left_s = self._lease_service.renew(request.token, request.ttl_s, self._driver.now())
        except LeaseError as error:
            raise self._signed(error) from None
        responder.reply(messages.RenewReply(ttl_s=left_s, load=self._load()))

    def _on_release(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.ReleaseRequest, body)
        if request.token is None and request.rid is None:
            raise InvalidRequest("token or rid: name the lease to release")
        now = self._driver.now()
        released = self._core.release(self._core.sender(OPERATIONS, now), request.rid, request.token, now)
        responder.reply(messages.ReleaseReply(released=released, load=self._load()))

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _on_dispatch(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.DispatchRequest, body)
        self._check_epoch(request.epoch)
        core, now = self._core, self._driver.now()
        try:
            task = self._pool.find(request.method)
        except GanglineError:
            core.refuse(request.token, now)
            raise
        deadline_at = NEVER if request.timeout_s is None else now + request.timeout_s
        record = core.admit(
            core.sender(OPERATIONS, now),
            next(self._ids),
            cost=task.slots,
            token=request.token,
            deadline_at=deadline_at,
            now=now,
            limit=core.limits.get(request.method),
        )
        if isinstance(record, Refusal):
            raise self._signed(error_of(record, worker=str(self._driver.worker), slots=task.slots, token=request.token))
        arguments = request.arguments
        try:
            call = task.bind(
                arguments if isinstance(arguments, list) else None,
                arguments if isinstance(arguments, dict) else None,
                json=responder.fmt is Format.JSON,
            )
            self._runs.start(
                record,
                call,
                RunResponder(responder, self._driver),
                token=request.token,
                deadline_at=None if deadline_at == NEVER else deadline_at,
                trace=responder.traceparent,
                meta=None,
                stream=False,
            )
        except BaseException:
            core.settle(record.sender, record.id, WITHDRAWN, now)
            core.finish(record)
            raise

    # -- the worker itself ----------------------------------------------------------------------------------------

    def _on_stats(self, responder: Responder, body: Any) -> None:
        messages.parse_request(messages.StatsRequest, body)
        responder.reply(self._stats())

    def _on_drain(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.DrainRequest, body, empty=False)
        self._log.info(
            "an operator asks it to drain", extra={"action": "worker.drain_asked", "grace_s": request.grace_s}
        )
        self._drain(request.grace_s)
        responder.reply(messages.DrainReply(draining=True, load=self._load()))

    def _on_resize(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.ResizeRequest, body)
        told = {"action": "worker.resize_asked", "slots": request.slots}
        self._log.info("an operator changes it to %s", count_of(request.slots, "slot"), extra=told)
        self._resize(request.slots)
        responder.reply(messages.ResizeReply(slots=request.slots, load=self._load()))

    def _on_schemas(self, responder: Responder, body: Any) -> None:
        request = messages.parse_request(messages.SchemasRequest, body)
        found: dict[str, dict[str, Any]] = {}
        room = MAX_SCHEMAS_BYTES
        for task in self._pool.tasks.values():
            schema = task.schema
            if schema is None or schema.hash in found or (request.hashes and schema.hash not in request.hashes):
                continue
            room -= schema.size
            if room < 0:
                break
            found[schema.hash] = schema.body
        responder.reply(messages.SchemasReply(schemas=found))

    def _load(self) -> messages.LoadReply:
        return messages.LoadReply.of(self._core.load)

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is not None and epoch != self._core.epoch:
            raise self._signed(
                StaleEpoch(
                    f"epoch {epoch} is not that of worker {self._driver.worker}, which is {self._core.epoch}: "
                    "reserve again"
                )
            )

    def _signed(self, error: GanglineError) -> GanglineError:
        """Another process with this id may also have received the request: say which one refused it."""
        error.details.setdefault("epoch", self._core.epoch)
        return error
