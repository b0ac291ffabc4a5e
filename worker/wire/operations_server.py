"""Requests on a worker's own subjects in JSON or msgpack: for operators and for other languages.

Each is answered exactly once, in the format of the request; errors travel as `Nats-Service-Error` and
`Nats-Service-Error-Code` with a body that says more. A request without a reply subject is carried out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from pydantic import BaseModel

from ...bus.port.bus import Bus, Message
from ...schemas.errors.base import (
    GanglineError,
    InvalidRequest,
    InvalidResult,
    MalformedMessage,
    StaleEpoch,
    UnknownMethod,
)
from ...schemas.messages import operations as messages
from ...schemas.names import Operation
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...telemetry.logs import Log
from ..execution.runner import Run, Runs
from ..ledger.core_driver import Books
from ..ledger.lease_service import OPERATIONS, Grants
from ..pool.declared_task import Outcome
from ..pool.pool import Pool
from ..slots.lease_table import Lease, Refusal
from ..slots.refusals import REASONS, error_of
from ..slots.request_dedup import WITHDRAWN
from ..slots.timers import NEVER
from .frame_responder import too_large

ENVELOPE_BYTES = 1024
"""Room that an answer's headers may take."""
MAX_HEADER_CHARS = 500


class Requester:
    """Who sent one request, and how to answer it."""

    __slots__ = ("_bus", "_log", "_message", "answered", "fmt")

    def __init__(self, bus: Bus, message: Message, log: Log) -> None:
        self._bus = bus
        self._message = message
        self._log = log
        self.fmt = Format.JSON
        self.answered = False

    def body(self) -> Any:
        """The decoded body; from here on answers use its format.

        Raises:
            MalformedMessage: it cannot be read.
        """
        self.fmt = Format.of(self._message.headers)
        return codec.decode(self._message.data, self.fmt)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    def reply(self, value: BaseModel) -> None:
        """Answer with a record."""
        self._send(codec.encode_model(value, self.fmt))

    def fail(self, error: GanglineError) -> None:
        """Answer with an error."""
        body = error.to_wire()
        extra = {headers.ERROR: header_text(error.message), headers.ERROR_CODE: str(error.status)}
        try:
            encoded = codec.encode(body, self.fmt)
        except GanglineError:  # details of somebody's own error
            encoded = codec.encode({**body, "details": {}}, self.fmt)
        if len(encoded) > self._bus.max_payload - ENVELOPE_BYTES:
            encoded = codec.encode({**body, "message": error.message[:2000], "details": {}}, self.fmt)
        self._send(encoded, extra)

    # -- as the caller of a run -----------------------------------------------------------------------------------

    def result(self, task: str, value: Any, worker: str) -> None:
        """Answer with a bare result.

        Raises:
            InvalidResult: it cannot be written, or is too large for a message.
        """
        try:
            encoded = codec.encode(value, self.fmt)
        except GanglineError as error:
            raise InvalidResult(f"the result of {task} {error.message}") from error
        limit = self._bus.max_payload - ENVELOPE_BYTES
        if len(encoded) > limit:
            raise too_large("the result", task, len(encoded), limit)
        self._send(encoded, {headers.WORKER: worker})

    def _send(self, body: bytes, extra: Mapping[str, str] | None = None) -> None:
        if self.answered:
            return
        self.answered = True
        if not self._message.reply:
            return
        fields = dict(extra or {})
        if self.fmt is Format.MSGPACK:
            fields[CONTENT_TYPE] = self.fmt.value
        try:
            self._bus.publish(self._message.reply, body, headers=fields or None)
        except GanglineError as error:
            # Requests of the plain kind have a patience of seconds: who lost the connection asks again.
            self._log.debug("answer not sent: %s", error, extra={"action": "answer.lost"})


class _RunCaller:
    """Binds a run to its requester."""

    __slots__ = ("_books", "_requester")
    job = None
    progress = None

    def __init__(self, requester: Requester, books: Books) -> None:
        self._requester = requester
        self._books = books

    def answer(self, run: Run, outcome: Outcome) -> GanglineError | None:
        record = run.record
        self._books.core.settle(record.sender, record.id, WITHDRAWN, self._books.now())
        error = outcome.error
        if error is None:
            try:
                self._requester.result(run.task.full_name, outcome.value, str(self._books.worker))
            except InvalidResult as unwritable:
                error = unwritable
        if error is not None:
            self._requester.fail(error)
        return error

    def item(self, run: Run, sequence: int, value: Any) -> None:
        raise AssertionError("a plain request asks for no stream")


class Operations:
    """Carries out the operations of one worker."""

    def __init__(
        self,
        bus: Bus,
        pool: Pool,
        books: Books,
        runs: Runs,
        grants: Grants,
        *,
        drain: Callable[[float | None], None],
        resize: Callable[[int], None],
        stats: Callable[[], messages.StatsReply],
        log: Log,
    ) -> None:
        """`drain`, `resize` and `stats` are the worker's own; `drain` returns at once."""
        self._bus = bus
        self._pool = pool
        self._books = books
        self._core = books.core
        self._runs = runs
        self._grants = grants
        self._drain = drain
        self._resize = resize
        self._stats = stats
        self._log = log
        self._ids = count()
        self._handlers: dict[str, Callable[[Requester, Any], None]] = {
            Operation.RESERVE: self._on_reserve,
            Operation.DISPATCH: self._on_dispatch,
            Operation.RENEW: self._on_renew,
            Operation.RELEASE: self._on_release,
            Operation.STATS: self._on_stats,
            Operation.DRAIN: self._on_drain,
            Operation.RESIZE: self._on_resize,
        }
        self.counts: dict[str, tuple[int, int]] = dict.fromkeys(self._handlers, (0, 0))
        """Requests and errors by operation."""

    def serve(self, operation: Operation, handler: Callable[[Requester, Any], None]) -> None:
        """Let a further operation be carried out by `handler`, which answers now or later, or raises."""
        self._handlers[operation] = handler
        self.counts[operation] = (0, 0)

    def take(self, operation: str, message: Message) -> None:
        """Carry out one request and answer it, now or when its task has run."""
        requester = Requester(self._bus, message, self._log)
        failed = 0
        try:
            handler = self._handlers.get(operation)
            body = requester.body()
            if handler is None:
                known = ", ".join(self._handlers)
                raise UnknownMethod(f"a worker has no operation {operation[:80]!r}; it has: {known}")
            handler(requester, body)
        except GanglineError as error:
            failed = 1
            requester.fail(error)
        except Exception as error:
            failed = 1
            self._log.exception("operation %s failed", operation, extra={"action": "operation.failed"})
            requester.fail(GanglineError(f"the worker failed ({type(error).__name__}); its log says more"))
        if operation in self.counts:
            requests, errors = self.counts[operation]
            self.counts[operation] = (requests + 1, errors + failed)
        self._books.after()

    def refuse(self, message: Message, error: GanglineError) -> None:
        """Answer a message that is no request at all."""
        requester = Requester(self._bus, message, self._log)
        try:
            requester.fmt = Format.of(message.headers)
        except MalformedMessage:
            pass
        requester.fail(error)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _on_reserve(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.ReserveRequest, body)
        now = self._books.now()
        lease = self._grants.reserve(
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
            self._not_granted(requester, lease, request.slots)
        elif request.ledger == "sync" and not self._grants.recorded(lease):
            self._grants.in_background(self._grant_recorded(requester, lease.token))
        else:
            requester.reply(self._granted(lease))

    async def _grant_recorded(self, requester: Requester, token: str) -> None:
        try:
            lease = await self._grants.record(token)
        except GanglineError as error:
            requester.fail(error)
            return
        if lease is None:
            self._not_granted(requester, Refusal.EXPIRED, 0)
        else:
            requester.reply(self._granted(lease))

    def _granted(self, lease: Lease) -> messages.ReserveReply:
        return messages.ReserveReply(
            accepted=True,
            token=lease.token,
            epoch=self._core.epoch,
            fence=lease.fence,
            ttl_s=lease.ttl_s,
            load=self._load(),
        )

    def _not_granted(self, requester: Requester, refusal: Refusal, slots: int) -> None:
        reason = REASONS.get(refusal)
        if reason is None:
            raise error_of(refusal, worker=str(self._books.worker), slots=slots, total=self._core.load.total)
        self._books.metrics.rejected(reason)
        requester.reply(
            messages.ReserveReply(accepted=False, reason=str(reason), epoch=self._core.epoch, load=self._load())
        )

    def _on_renew(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.RenewRequest, body)
        self._check_epoch(request.epoch)
        left_s = self._grants.renew(request.token, request.ttl_s, self._books.now())
        requester.reply(messages.RenewReply(ttl_s=left_s, load=self._load()))

    def _on_release(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.ReleaseRequest, body)
        if request.token is None and request.rid is None:
            raise InvalidRequest("token or rid: name the lease to release")
        now = self._books.now()
        released = self._core.release(self._core.sender(OPERATIONS, now), request.rid, request.token, now)
        requester.reply(messages.ReleaseReply(released=released, load=self._load()))

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _on_dispatch(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.DispatchRequest, body)
        self._check_epoch(request.epoch)
        core, now = self._core, self._books.now()
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
        )
        if isinstance(record, Refusal):
            raise error_of(record, worker=str(self._books.worker), slots=task.slots, token=request.token)
        arguments = request.arguments
        try:
            call = task.bind(
                arguments if isinstance(arguments, list) else None,
                arguments if isinstance(arguments, dict) else None,
                json=requester.fmt is Format.JSON,
            )
            self._runs.start(
                record,
                call,
                _RunCaller(requester, self._books),
                token=request.token,
                deadline_at=None if deadline_at == NEVER else deadline_at,
                trace=requester.headers.get(headers.TRACEPARENT),
                meta=None,
                stream=False,
            )
        except BaseException:
            core.settle(record.sender, record.id, WITHDRAWN, now)
            core.finish(record)
            raise

    # -- the worker itself ----------------------------------------------------------------------------------------

    def _on_stats(self, requester: Requester, body: Any) -> None:
        messages.parse_request(messages.StatsRequest, body)
        requester.reply(self._stats())

    def _on_drain(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.DrainRequest, body)
        self._drain(request.grace_s)
        requester.reply(messages.DrainReply(draining=True, load=self._load()))

    def _on_resize(self, requester: Requester, body: Any) -> None:
        request = messages.parse_request(messages.ResizeRequest, body)
        self._resize(request.slots)
        requester.reply(messages.ResizeReply(slots=request.slots, load=self._load()))

    def _load(self) -> messages.LoadReply:
        return messages.LoadReply.of(self._core.load)

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is not None and epoch != self._core.epoch:
            raise StaleEpoch(
                f"epoch {epoch} is not that of worker {self._books.worker}, which is {self._core.epoch}: reserve again"
            )


def header_text(text: str) -> str:
    """One line that may stand in a header."""
    line = " ".join(text.split()) or "error"
    return line.encode("ascii", "backslashreplace").decode()[:MAX_HEADER_CHARS]
