"""The audit trail: what operators did, when, to what and why.

Each action is recorded before it and after it, in a stream to which the server lets only operators publish, each in
its own name. The operator functions of a client are recorded, and so is what `noted` surrounds, as one action with all
that it calls. An action goes on if it cannot be recorded, since an operator may have to drain a worker while storage is
down; one warning says so afterwards.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from ...bus.port.bus import Bus, NotPermitted
from ...bus.port.stream import StreamMessage
from ...runtime.clock import Environment
from ...schemas.errors.base import GanglineError, InvalidRequest
from ...schemas.names import Names, check_name, is_name
from ...schemas.permissions.roles import INBOXES
from ...schemas.records.audit import MAX_REASON_CHARS, AuditRecord, AuditStage
from ...schemas.wire import headers
from ...telemetry.logs import logger_for
from ..jobs.storage import TaskStreams

_log = logger_for("audit")
_within: ContextVar[bool] = ContextVar("gangline_audited", default=False)
"""Whether an action is being recorded: those within it are parts of it."""
NOBODY: Final = "anybody"
"""The user of a connection without an inbox prefix of its own: a server without users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A record as it is in the stream."""

    user: str
    """Who wrote it, according to the server."""
    at: float
    """Unix time by the server's clock."""
    record: AuditRecord


class AuditTrail:
    """Records what one operator does, and reads what all did."""

    def __init__(
        self, bus: Bus, names: Names, streams: TaskStreams | None = None, ambient: Environment | None = None
    ) -> None:
        self._bus = bus
        self._names = names
        self._streams = streams or TaskStreams(bus, names)
        self._ambient = ambient or Environment()

    @property
    def user(self) -> str:
        """Our own name: the last token of our inbox prefix."""
        prefix = self._bus.inbox.rpartition(".")[0]
        user = prefix.rpartition(".")[2]
        return user if prefix.startswith(f"{INBOXES}.") and is_name(user) else NOBODY

    @asynccontextmanager
    async def noted(self, action: str, target: str = "", reason: str = "") -> AsyncIterator[None]:
        """Record the action of the block: before it, and afterwards how it went. Within another such block it does
        nothing.

        Raises:
            InvalidRequest: the reason is too long.
        """
        if _within.get():
            yield
            return
        if len(reason) > MAX_REASON_CHARS:
            raise InvalidRequest(f"a reason has at most {MAX_REASON_CHARS} characters, not {len(reason)}")
        _within.set(True)
        try:
            async with self._recorded(action, target, reason):
                yield
        finally:
            _within.set(False)

    @asynccontextmanager
    async def _recorded(self, action: str, target: str, reason: str) -> AsyncIterator[None]:
        record = AuditRecord(
            id=self._ambient.token(),
            stage=AuditStage.BEGUN,
            action=action,
            target=target,
            reason=reason,
            node=socket.gethostname(),
        )
        unwritten = await self._write(record)
        try:
            yield
        except BaseException as error:
            code = error.code if isinstance(error, GanglineError) else type(error).__name__
            unwritten = (
                await self._write(record.model_copy(update={"stage": AuditStage.FAILED, "error": code})) or unwritten
            )
            # Who may not act may not record it either: the error says so already.
            if not isinstance(error, NotPermitted):
                self._warn(record, unwritten)
            raise
        unwritten = await self._write(record.model_copy(update={"stage": AuditStage.DONE})) or unwritten
        self._warn(record, unwritten)

    async def _write(self, record: AuditRecord) -> GanglineError | None:
        """The error that kept it from being written; None: it is written."""
        fields = {headers.MESSAGE_ID: f"{record.id}.{record.stage}"}
        try:
            stream = await self._streams.audit()
            await stream.publish(self._names.audit(self.user), record.model_dump_json().encode(), headers=fields)
        except GanglineError as error:
            return error
        return None

    @staticmethod
    def _warn(record: AuditRecord, unwritten: GanglineError | None) -> None:
        if unwritten is not None:
            extra = {"action": "audit.not_recorded", "what": record.action, "target": record.target}
            _log.warning("%s %s was not recorded: %s", record.action, record.target, unwritten, extra=extra)

    async def entries(self, *, user: str | None = None, limit: int = 50) -> list[AuditEntry]:
        """The newest records, oldest first.

        Args:
            user: only this operator's.

        Raises:
            InvalidName: it is no name of a user.
            NotPermitted: we are no operator.
            Disconnected, StorageUnavailable: the stream could not be read.
        """
        stream = await self._streams.audit()
        state = await stream.state()
        pattern = self._names.audit(check_name(user, "user") if user else "*")
        # Records of one user may be anywhere; of all users, the last ones are the last messages.
        sequence = state.first_sequence if user else max(state.first_sequence, state.last_sequence - limit + 1)
        found: deque[AuditEntry] = deque(maxlen=limit)
        while sequence <= state.last_sequence:
            message = await stream.next(pattern, max(1, sequence))
            if message is None:
                break
            entry = _read(message)
            if entry is not None:
                found.append(entry)
            sequence = message.sequence + 1
        return list(found)


def _read(message: StreamMessage) -> AuditEntry | None:
    try:
        record = AuditRecord.read(message.data)
    except ValidationError as error:
        extra = {"action": "audit.unreadable", "sequence": message.sequence}
        _log.warning("an audit record of %s is unreadable: %s", message.subject, error, extra=extra)
        return None
    return AuditEntry(user=message.subject.rpartition(".")[2], at=message.at, record=record)
