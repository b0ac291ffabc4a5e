"""Reads what is on the wire: frames between clients and workers, for the checks and for the trace; and tokens."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Final

from ....bus.port.bus import KvEntry, Message
from ....schemas.errors.base import MalformedMessage
from ....schemas.names import MARK, PRIVATE, GangOperation, Names, Operation, public_id
from ....schemas.wire import codec, frames
from ....schemas.wire.frames import AnswerOp, RequestOp, ReserveFlag
from ..history.checker import Checker
from .slots import Terms, WorkerModel

BUSY = 100
"""Law `busy`: nobody sends one worker the same request, or a CHECK for the same task, more often than this within a
second."""

Asked = tuple[str, str, int]
"""Receiving process, reply subject and id: while two processes have one worker id, both receive the request."""


class WireWatch:
    """Taps the server.

    Args:
        models: returns the worker process with that bus name, if it is one.
        turn: returns the number of the loop's current turn.
        reached: called with each plain task that reaches the server, and its subject.
        durable: called with each durable task that is delivered: sender, worker process and job.
        durable_reached: called with each durable task that reaches the server: sender and job.
        granted: called with the token of each granted lease.
    """

    def __init__(
        self,
        checker: Checker,
        models: Callable[[str], WorkerModel | None],
        turn: Callable[[], int],
        reached: Callable[[str, str], None],
        durable: Callable[[str, str, str], None],
        durable_reached: Callable[[str, str], None],
        granted: Callable[[str], None],
    ) -> None:
        self._granted = granted
        self._checker = checker
        self._trace = checker.trace
        self._models = models
        self._turn = turn
        self._clock = checker.clock
        self._reached = reached
        self._durable = durable
        self._durable_reached = durable_reached
        self._tasks: dict[Asked, str] = {}
        """Task ids of TASK frames."""
        self._reserves: dict[Asked, Terms] = {}
        self._timely_renewals: set[Asked] = set()
        self._late_renewals: dict[Asked, str] = {}
        """Public ids of the leases that should not have been renewed."""
        self._sent_at: dict[tuple[str, str, object], deque[float]] = {}
        """When a request was last sent, by worker process, sender, and request."""

    def on_message(self, sender: str, message: Message) -> None:
        """A message has reached the server."""
        # A registration names the real process, which differs between runs.
        self._trace.count(message.subject, b"" if ".reg." in message.subject else message.data)
        model = self._models(sender)
        if model is not None and message.subject.startswith("_INBOX."):
            self._answers(model, message)
        elif message.subject.endswith(".frames"):
            self._sent(message)

    def _sent(self, message: Message) -> None:
        try:
            envelope = frames.decode_request(message.data)
        except MalformedMessage:
            return  # reported at its delivery
        for frame in envelope.frames:
            request = (frame[4] or {}).get("request") if frame[0] == RequestOp.TASK else None
            if request is not None:
                self._reached(request, message.subject)
            if frame[0] == RequestOp.TASK and len(frame) > 9 and "job" in (frame[9] or {}):
                self._durable_reached(envelope.sender, frame[9]["job"])

    def on_delivery(self, receiver: str, message: Message) -> None:
        """A message is about to be handled."""
        model = self._models(receiver)
        if model is None or not message.subject.endswith(".frames"):
            return
        try:
            envelope = frames.decode_request(message.data)
        except MalformedMessage as error:
            self._checker.fail("error", f"{receiver} got a malformed envelope: {error}")
            return
        for frame in envelope.frames:
            self._asked(model, envelope, frame, message.reply)
            name = RequestOp(frame[0]).name.lower()
            self._trace.note(receiver, f"<- {envelope.sender} {name} {_brief(frame)} epoch {envelope.epoch % 100000}")

    def _asked(self, model: WorkerModel, envelope: frames.RequestEnvelope, frame: frames.Frame, reply: str) -> None:
        match frame[0]:
            case RequestOp.TASK:
                task_id = f"{envelope.sender}.{frame[1]}"
                model.task_delivered(task_id, envelope.epoch, frame[6] and public_id(frame[6]))
                self._tasks[model.node, reply, frame[1]] = task_id
                job = (frame[9] or {}).get("job") if len(frame) > 9 else None
                self._busy(model, envelope, "task", job or frame[1])
                if job is not None:
                    self._durable(envelope.sender, model.node, job)
            case RequestOp.RESERVE:
                single_use = bool(frame[5] & ReserveFlag.SINGLE_USE)
                terms = Terms(slots=frame[2], ttl_s=frame[3] / 1000, claim_s=frame[4] / 1000, single_use=single_use)
                model.reserve_delivered(terms, self._turn())
                self._reserves[model.node, reply, frame[1]] = terms
                self._busy(model, envelope, "reserve", frame[1])
            case RequestOp.CHECK:
                for task_id in frame[2]:
                    self._busy(model, envelope, "check", task_id)
            case RequestOp.RENEW:
                key = (model.node, reply, frame[1])
                if model.renewal_delivered(public_id(frame[2]), frame[3] / 1000):
                    self._timely_renewals.add(key)
                elif key not in self._timely_renewals:  # otherwise a duplicate: the answer may be to the first
                    self._late_renewals[key] = public_id(frame[2])
            case _:
                pass

    def _busy(self, model: WorkerModel, envelope: frames.RequestEnvelope, what: str, which: object) -> None:
        now = self._clock()
        times = self._sent_at.setdefault((model.node, envelope.sender, (what, which)), deque(maxlen=BUSY + 1))
        times.append(now)
        if len(times) > BUSY and now - times[0] < 1.0:
            self._checker.fail(
                "busy", f"{envelope.sender} sent {what} {which} to {model.node} {BUSY} times in a second"
            )

    def _answers(self, model: WorkerModel, message: Message) -> None:
        try:
            envelope = frames.decode_answer(message.data)
        except MalformedMessage:
            return  # an answer to a plain request, which has no frames
        for frame in envelope.frames:
            name = AnswerOp(frame[0]).name.lower()
            load = "/".join(map(str, envelope.load[:3]))
            self._trace.note(model.node, f"-> {name} {_brief(frame)} load {load} epoch {envelope.epoch % 100000}")
            asked = (model.node, message.subject, frame[1])
            if frame[0] == AnswerOp.REJECTED and asked in self._tasks:
                model.refused(self._tasks[asked], frame[2])
            elif frame[0] == AnswerOp.RENEWED and asked in self._late_renewals:
                model.renewed(self._late_renewals[asked])
            elif frame[0] == AnswerOp.GRANTED:
                self._granted(frame[2])
                if asked in self._reserves:
                    model.granted(public_id(frame[2]), self._reserves[asked])


def _brief(frame: frames.Frame) -> str:
    return " ".join(str(place)[:60] for place in frame[1:] if place not in (None, {}, []))


_WORDS: Final = re.compile(rb"[A-Za-z0-9_~-]+")
_OPEN: Final = (GangOperation.LIST, GangOperation.WHY, Operation.STATS)
_TO_ALL: Final = (Operation.FORM, Operation.TEARDOWN)


class SecretWatch:
    """Law `secret`: only its holder can read a token. Taps the server.

    Others can read every revision of the ledger, every event, requests from coordinators to workers, and answers to
    `list`, `why`, `stats` and to a `get` without the owner's token.
    """

    def __init__(self, checker: Checker, names: Names) -> None:
        self._checker = checker
        self._names = names
        self._secrets: dict[bytes, str] = {}
        """Every token, and what it is for."""
        self._read: dict[bytes, str] = {}
        """Every word that others could read, and where."""
        self._asked: set[str] = set()
        """Reply subjects of requests whose answers anybody may read."""

    def made(self, token: str, what: str) -> None:
        """A token was given to its holder."""
        if token.startswith(MARK):
            return  # a public id is not a secret
        word = token.encode()
        self._secrets[word] = what
        if word in self._read:
            self._checker.fail("secret", f"{what}, {token}, can be read in {self._read[word]}")

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision."""
        if bucket == self._names.ledger_bucket:
            self._can_read(entry.key, entry.key.encode(), entry.value or b"")

    def on_message(self, sender: str, message: Message) -> None:
        """A message has reached the server."""
        subject = message.subject.removeprefix(f"{PRIVATE}.").removeprefix(f"{self._names.namespace}.")
        if subject in self._asked:
            self._can_read(f"an answer of {sender}", message.data)
        elif b'"tokens"' in message.data or b'"owner_token"' in message.data:
            self._collect(sender, message)
        room, operation = subject.partition(".")[0], subject.rpartition(".")[2]
        if room == "event" or (room == "worker" and operation in _TO_ALL):
            self._can_read(message.subject, message.data)
        if room in ("gang", "worker") and message.reply and self._is_open(operation, message.data):
            self._asked.add(message.reply)

    @staticmethod
    def _is_open(operation: str, data: bytes) -> bool:
        return operation in _OPEN or (operation == GangOperation.GET and b'"owner_token"' not in data)

    def _collect(self, sender: str, message: Message) -> None:
        if not message.data.startswith(b"{"):
            return
        body = codec.from_json(message.data)
        for token in body.get("tokens", ()):
            self.made(token, f"the token of a seat of {sender}")
        if body.get("owner_token"):
            self.made(body["owner_token"], f"the owner's token of gang {body.get('id')}")

    def _can_read(self, where: str, *texts: bytes) -> None:
        for text in texts:
            for word in _WORDS.findall(text):
                if word in self._secrets:
                    self._checker.fail("secret", f"{where} has {self._secrets[word]}, {word.decode()}")
                else:
                    self._read[word] = where
