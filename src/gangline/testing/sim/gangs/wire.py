"""Reads coordinators' requests to workers, and their answers about gangs, for the checks (L7, L9) and for the trace."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from ....bus.port.bus import Message
from ....schemas.messages.gangs import FormRequest, GangReply, HoldReply, HoldRequest, TeardownRequest
from ....schemas.names import PRIVATE, Names, Operation, WorkerId, public_id
from ....schemas.wire import headers
from ..history.checker import Checker
from .ledger import GangLedger, Held

Told = Callable[[str, TeardownRequest], None]
"""A worker process is about to handle a teardown."""


class GangWire:
    """Taps the server."""

    def __init__(
        self,
        checker: Checker,
        names: Names,
        ledger: GangLedger,
        *,
        coordinates: Callable[[str], bool],
        told: Told,
    ) -> None:
        """`coordinates`: whether the process with that bus name is a coordinator."""
        self._checker = checker
        self._trace = checker.trace
        self._prefix = f"{names.namespace}.worker."
        self._ledger = ledger
        self._coordinates = coordinates
        self._told = told
        self._holds: dict[str, tuple[WorkerId, HoldRequest]] = {}
        """By reply subject."""

    def on_message(self, sender: str, message: Message) -> None:
        """A message has reached the server."""
        asked = self._holds.get(message.subject)
        if asked is not None:
            self._held(message, *asked)
            return
        if b'"seats"' in message.data and message.subject.startswith("_INBOX.") and self._coordinates(sender):
            self._answered(sender, message)
            return
        subject = message.subject.removeprefix(f"{PRIVATE}.")
        if not subject.startswith(self._prefix) or not self._coordinates(sender):
            return
        pool, name, *_, operation = subject[len(self._prefix) :].split(".")
        worker = WorkerId(pool, name)
        match operation:
            case Operation.HOLD:
                hold = HoldRequest.model_validate_json(message.data)
                self._holds[message.reply] = (worker, hold)
                what = f"{hold.gang} {hold.generation} attempt {hold.attempt}"
            case Operation.FORM:
                form = FormRequest.model_validate_json(message.data)
                what = f"{form.gang} {form.generation}"
                if not self._ledger.stood(form.gang, form.generation):
                    self._checker.fail("L7", f"{sender} tells {worker} to form {what}, which was never committed")
            case Operation.TEARDOWN:
                end = TeardownRequest.model_validate_json(message.data)
                what = f"{end.gang} {end.generation} ({end.reason})"
                if end.only is None and self._ledger.stands(end.gang, end.generation, worker):
                    self._checker.fail("L9", f"{sender} tells {worker} to stop {what}, which stands in the ledger")
            case _:
                return
        self._trace.note(sender, f"-> {worker} {operation} {what}")

    def on_delivery(self, receiver: str, message: Message) -> None:
        """A message is about to be handled."""
        subject = message.subject.removeprefix(f"{PRIVATE}.")
        if subject.startswith(self._prefix) and subject.endswith(f".{Operation.TEARDOWN}"):
            self._told(receiver, TeardownRequest.model_validate_json(message.data))

    def _answered(self, sender: str, message: Message) -> None:
        """The owner of a gang, or anybody who asks, is told of seats only after they were granted."""
        try:
            reply = GangReply.model_validate_json(message.data)
        except ValidationError:
            return  # it is about something else, or about many gangs
        ungranted = [seat.rank for seat in reply.seats if public_id(seat.token) not in self._ledger.granted]
        if ungranted:
            what = f"ranks {ungranted} of {reply.id} {reply.generation}"
            self._checker.fail("L7", f"{sender} answers with {what}, which were never committed")

    def _held(self, message: Message, worker: WorkerId, hold: HoldRequest) -> None:
        found = message.headers or {}
        if found.get("Status") or found.get(headers.ERROR):
            return
        reply = HoldReply.model_validate_json(message.data)
        self._trace.note("wire", f"{worker} holds {hold.gang} {hold.generation}: {reply.reason or reply.tokens}")
        if not reply.accepted:
            return
        held = Held(worker=worker, gang=hold.gang, generation=hold.generation, reg_revision=reply.reg_revision)
        for token in map(public_id, reply.tokens):
            known = self._ledger.held.setdefault(token, held)
            if known != held:
                self._checker.fail("L7", f"token {token} was held as {known}, and again as {held}")
