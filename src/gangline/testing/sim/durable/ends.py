"""The ends of durable tasks: each ends once, with a correct record, and a dead letter if it is dead; nothing is left
behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....bus.memory.server import MemoryServer
from ....bus.memory.stream_store import StreamStore
from ....bus.port.bus import KvEntry, KvOperation, StreamMessage
from ....bus.port.subjects import SubjectPattern
from ....schemas.errors.base import StreamBroken
from ....schemas.names import Names
from ....schemas.records.jobs import DeadReason, JobState, ResultRecord
from ....schemas.wire import codec
from ....schemas.wire.headers import SCHEDULE
from ..history.checker import Checker
from ..history.troubles import Troubles, pool_name
from ..plan.durable_plan import UNKNOWN_AFTER_S, JobKind, JobStep
from ..tasks.tasks import job_result
from .records import JobModel, of_job


class Ends:
    """Watches the bucket of results, and checks what is left at the end.

    Args:
        models: all tasks, by request.
        bereaved: how often a dispatcher or the server may have lost state since then.
    """

    def __init__(
        self,
        checker: Checker,
        hub: MemoryServer,
        names: Names,
        troubles: Troubles,
        models: Mapping[str, JobModel],
        *,
        bereaved: Callable[[float], int],
    ) -> None:
        self._fail = checker.fail
        self._trace = checker.trace
        self._clock = checker.clock
        self._hub = hub
        self._names = names
        self._troubles = troubles
        self._models = models
        self._bereaved = bereaved
        self._objects = Objects(hub, names)
        self.loses_items = False
        """Whether workers keep so few items that some may be lost."""
        self.records: dict[str, ResultRecord] = {}
        """By job."""

    # -- writes ---------------------------------------------------------------------------------------------------

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """A new revision of a key."""
        if bucket != self._names.results_bucket or not entry.key.startswith("result."):
            return
        job = entry.key.partition(".")[2]
        if entry.operation is not KvOperation.PUT:
            self._removed(job)
            return
        record = ResultRecord.model_validate_json(entry.value)
        self._trace.note("ledger", f"result of {job}: {record.state} {record.reason or ''} {record.attempts} attempts")
        before = self.records.get(job)
        same = before is not None and before.state is record.state is JobState.CANCELLED  # with another time to live
        if before is not None and not same:
            self._fail("L10", f"the result of {job} is written again: {before.state}, then {record.state}")
        self.records[job] = record
        model = of_job(self._models, job)
        if model is not None:
            self.check_record(model, record)

    def result_of(self, record: ResultRecord) -> Any:
        """The result in a record, or in the object that it names."""
        if record.object is None:
            as_is = record.encoding != "msgpack" or not isinstance(record.result, str)
            return record.result if as_is else codec.unpack(base64.b64decode(record.result))
        body = self._objects.body(record.object)
        if body is None:
            self._fail("L10", f"the result of {record.job} should stand in the object {record.object}: it does not")
            return None
        return codec.unpack(body) if record.encoding == "msgpack" else json.loads(body)

    def _removed(self, job: str) -> None:
        """A record was deleted: allowed only for a dead task that is being replayed."""
        model = of_job(self._models, job)
        record = self.records.pop(job, None)
        if model is None or record is None or record.state is not JobState.DEAD or not model.replaying:
            self._fail("L10", f"the result of {job} is deleted: {record}")
            return
        self._trace.note("ledger", f"result of {job} removed: it is sent anew")
        model.record, model.revived_at, model.attempts_before = None, self._clock(), record.attempts

    def check_record(self, model: JobModel, record: ResultRecord) -> None:
        """Check that the record is correct."""
        model.record, model.recorded_at, step = record, self._clock(), model.step
        match record.state:
            case JobState.DONE:
                returned = [body for body in model.bodies if body.how == "returned"]
                if record.items is not None:
                    right = record.items == step.items and bool(returned)
                else:
                    wanted = [job_result(step.request, body.number, step.padding) for body in returned]
                    right = self.result_of(record) in wanted
                if not right:
                    self._fail("L10", f"{model} is done with {record.result!r}, {record.items} items: never returned")
            case JobState.CANCELLED:
                if not model.doomed:
                    self._fail("L10", f"{model} is cancelled, and nobody asked for it")
            case JobState.DEAD:
                if not self._may_die(model, record):
                    self._fail("L10", f"{model} is dead: {record.reason} after {record.attempts}: {record.error}")
        if record.attempts > model.most_attempts:
            self._fail("L10", f"{model} has {record.attempts} attempts of {model.most_attempts}")

    def _needed_s(self, step: JobStep) -> float:
        """The most time before its deadline at which a dispatcher may refuse to start it. An estimate of how long a
        method takes (see runtime.timers.UsualDurations) is at most six times the longest execution so far."""
        same = [body for model in self._models.values() if model.step.method == step.method for body in model.bodies]
        if not same:
            return 0.0
        longest_s = max((body.ended_at or self._clock()) - body.since for body in same)
        return max(6 * longest_s, 0.75 * (step.deadline_s or 0.0))

    def _may_die(self, model: JobModel, record: ResultRecord) -> bool:
        """Whether the task may be dead for that reason."""
        step = model.step
        if step.bad is not None and record.reason is not DeadReason.CRASHED:
            return record.reason is step.bad.reason
        # What cannot run says nothing of attempts, and may be lost on the way to a worker that dies before it answers.
        last = record.attempts >= (model.most_attempts if step.bad is None else 1)
        match record.reason:
            case DeadReason.FAILED:
                # A worker that keeps few items may have lost some before the next owner of the queue asks for them, and
                # dispatchers give up on items that are lost repeatedly.
                loses_items = self.loses_items or self._troubles.lossy
                items_lost = loses_items and record.error is not None and record.error.code == StreamBroken.code
                return last and (items_lost or any(body.how in ("raised", "stopped") for body in model.bodies))
            case DeadReason.TIMED_OUT:
                return last and step.timeout_s is not None
            case DeadReason.CRASHED:
                worker = record.worker.partition(".")[2]
                return last and (self._troubles.affected(worker, model.asked_at) or self._bereaved(model.asked_at) > 0)
            case DeadReason.EXPIRED:
                # Headers count both from the publication; the SDK starts the deadline at the end of the delay.
                delay_s = 0.0 if step.kind is JobKind.PUBLISH else step.delay_s or 0.0
                due = None if step.deadline_s is None else model.asked_at + delay_s + step.deadline_s
                return due is not None and self._clock() > due - max(0.1, self._needed_s(step))
            case DeadReason.IMPOSSIBLE:
                return step.method == "job_heavy"
            case DeadReason.UNKNOWN_ENDPOINT:
                # Dispatchers may not have seen its pool if that was in the ledger only briefly.
                return self._troubles.lasted(pool_name(step.endpoint), model.asked_at, UNKNOWN_AFTER_S - 0.5)
            case _:
                return False

    # -- the end --------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether nothing is left in the streams, no attempt is recorded, and nothing runs."""
        running = any(each.running for each in self._models.values())
        waiting = any("@at" in (message.headers or {}).get(SCHEDULE, "@at") for message in self._scheduled())
        unread = self._hub.messages(self._names.tasks_stream)
        return not (unread or waiting or running or self.tries())

    def _scheduled(self) -> Iterable[StreamMessage]:
        """Schedules, and their messages that the stream of tasks may not have taken yet."""
        return self._hub.messages(self._names.schedules_stream)

    def tries(self) -> list[str]:
        """Recorded attempts."""
        return [entry.key for entry in self._hub.peek(self._names.results_bucket, "try.")]

    def letters(self) -> dict[str, list[str]]:
        """Reasons of dead letters, by job."""
        found: dict[str, list[str]] = {}
        for message in self._hub.messages(self._names.dead_stream):
            given = message.headers or {}
            found.setdefault(given["Gangline-Job"], []).append(given["Gangline-Dead-Reason"])
        return found

    def check_rest(self) -> None:
        """Check, when there are no more requests, that each task has ended once and that nothing is left."""
        for message in self._hub.messages(self._names.tasks_stream):
            self._fail("L10", f"at rest {message.subject} is still in the stream, at {message.sequence}")
        for message in self._scheduled():
            if SCHEDULE not in (message.headers or {}):
                self._fail("L12", f"at rest {message.subject} is still among the schedules, at {message.sequence}")
        for key in self.tries():
            self._fail("L12", f"at rest {key} is still in the bucket of results")
        letters = self.letters()
        for model in self._models.values():
            for body in model.running:
                self._fail("L10", f"at rest {model} still runs on {body.node}")
            if model.job is not None:
                self._check_end(model, letters.get(model.job, []))

    def _check_end(self, model: JobModel, letters: list[str]) -> None:
        assert model.job is not None
        record = self.records.get(model.job)
        if record is not None and model.record is None:
            self.check_record(model, record)
        if model.replaying > model.replayed:
            pass  # a replay that was cut short may have left a letter, or the letter alone
        elif record is None:
            self._check_unkept(model, letters)
        elif record.state is JobState.DEAD:
            if letters != [str(record.reason)]:
                self._fail("L10", f"{model} is dead of {record.reason}, and has the dead letters {letters}")
        elif letters and self._troubles.calm:  # else its writer may have been killed before it wrote the record
            self._fail("L10", f"{model} is {record.state}, and has the dead letters {letters}")
        # A worker takes credit that comes twice for credit for the next item, and forgets that one.
        if record is not None and record.items is not None and not self._troubles.doubling:
            self._check_items(model, record)

    def _check_unkept(self, model: JobModel, letters: list[str]) -> None:
        step = model.step
        kept = step.keeps_result or step.bad is not None
        if model.stored_at is None and not model.bodies:
            return  # it may never have reached the stream
        if model.doomed and step.delay_s and not model.bodies:
            return  # cancelled while the server still delayed it, perhaps unanswered: nothing is recorded
        if kept:
            self._fail("L10", f"{model} was acknowledged, and has no end")
        elif (len(letters) > 1 and not self._troubles.forgetful) or not (
            letters or model.doomed or any(body.how == "returned" for body in model.bodies)
        ):
            self._fail("L10", f"{model} was acknowledged and never returned; its dead letters: {letters}")

    def _check_items(self, model: JobModel, record: ResultRecord) -> None:
        subject = f"{self._names.namespace}.job.{model.job}.item"
        found: dict[int, set[int]] = {}
        for message in self._hub.messages(self._names.jobs_stream):
            if message.subject == subject:
                item = json.loads(message.data)
                found.setdefault(item["attempt"], set()).add(item["index"])
        wanted = set(range(record.items or 0))
        if wanted and found.get(max(found, default=0)) != wanted:
            self._fail("L10", f"{model} yielded {record.items} items, and its newest attempt has not all in its feed")


class Objects:
    """Reads the object store without a connection. See bus/storage.py for its format."""

    def __init__(self, hub: MemoryServer, names: Names) -> None:
        self._hub = hub
        self._bucket = names.objects_store

    def body(self, name: str) -> bytes | None:
        """An object's content. None: there is no object with that name, or it is incomplete."""
        stream = self._stream
        described = None if stream is None else stream.last(self._described_at(name))
        told = {} if described is None else json.loads(described.data)
        if stream is None or not told or told.get("deleted"):
            return None
        pieces = [message.data for message in stream.after(1, SubjectPattern(f"$O.{self._bucket}.C.{told['nuid']}"))]
        body = b"".join(pieces)
        return body if (len(pieces), len(body)) == (told["chunks"], told["size"]) else None

    def _described_at(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    @property
    def _stream(self) -> StreamStore | None:
        return self._hub.streams.find(f"OBJ_{self._bucket}")
