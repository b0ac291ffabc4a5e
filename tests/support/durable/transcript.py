"""Events and effects as readable lines that can be compared."""

from __future__ import annotations

from typing import Any

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on


def said_event(event: Any) -> str:
    return f"{event.now - 1000.0:8.3f}  {_event(event)}"


def _event(event: Any) -> str:
    match event:
        case on.TaskArrived():
            task = event.submission
            words = [f"#{event.seq} arrives: {task.job}"]
            words += [f"key {task.key}"] if task.key else []
            words += ["ordered"] if task.ordered else []
            words += [f"priority {task.priority}"] if task.priority else []
            words += [f"after {event.attempts} attempts"] if event.attempts else []
            words += ["may have ended"] if event.look else []
            return ", ".join(words)
        case on.Malformed():
            return f"#{event.seq} arrives malformed: {event.error}"
        case on.Looked():
            return f"#{event.seq} {'has ended before' if event.finished else 'has no result yet'}"
        case on.SlotsGranted():
            return f"credit in {event.pool}: {' + '.join(map(str, event.free)) or 'none'}"
        case on.AttemptEnded():
            result = "done" if event.error is None else f"{type(event.error).__name__}: {event.error}"
            return f"#{event.seq} attempt {event.attempt} ended: {result}"
        case on.TaskAdopted():
            return f"{event.worker} has {event.job}, attempt {event.attempt}"
        case on.Cancel():
            return f"cancel {event.job}"
        case on.PoolSeen():
            return f"pool {event.pool}: {event.workers} workers, the largest has {event.largest} slots"
        case on.Routed():
            rules = event.route.queue.model_dump(exclude_defaults=True)
            return f"route: {event.route.pools('e')} {rules or ''}".rstrip()
        case on.QueueTaken():
            return "taken"
        case on.Acked():
            return " ".join(f"#{seq}" for seq in event.seqs) + " acked"
        case on.Persisted():
            return f"#{event.seq} {_PERSISTED[event.kind] if event.error is None else 'schedulerefused'}"
        case on.OwnershipDoubted() | on.OwnershipConfirmed():
            return "doubted" if isinstance(event, on.OwnershipDoubted) else "sure"
        case _:
            return type(event).__name__.lower()


def said_effect(effect: do.Effect) -> str:
    return f"          -> {_effect(effect)}"


def _effect(effect: do.Effect) -> str:
    match effect:
        case do.Fetch():
            return f"pull {effect.count}"
        case do.RequestSlots():
            return f"want {effect.slots} slots in {effect.pool}, {effect.largest} for the next"
        case do.StartAttempt():
            return f"start #{effect.seq} {effect.job}, attempt {effect.attempt}, in {effect.pool}"
        case do.ReattachAttempt():
            return f"attach #{effect.seq} {effect.job}, attempt {effect.attempt}, to {effect.worker}"
        case do.StopAttempt():
            return f"stop #{effect.seq}: {effect.why.value}"
        case do.Persist():
            return _record(effect)
        case do.EmitJobEvent():
            return f"tell {effect.job}: {effect.state.value}"
        case do.SetQueueTimer():
            return "no timer" if effect.at is None else f"timer at {effect.at - 1000.0:.3f}"
        case do.LookUpResult():
            return f"look #{effect.seq}"
        case do.Ack():
            return f"ack #{effect.seq}"


def _record(effect: do.Persist) -> str:
    match effect.kind:
        case do.RecordKind.TRY:
            return f"note #{effect.seq}: {effect.attempts} failed, next at {effect.not_before - 1000.0:.3f}"
        case do.RecordKind.CANCELLATION:
            return f"mark #{effect.seq} as cancelled"
        case do.RecordKind.RESULT:
            return f"store #{effect.seq}: {effect.state.value}"
        case do.RecordKind.DEAD_LETTER:
            assert effect.reason is not None
            return f"bury #{effect.seq}: {effect.reason.value} after {effect.attempts} attempts"
        case do.RecordKind.SCHEDULE:
            return f"schedule #{effect.seq}"


_PERSISTED = {
    do.RecordKind.TRY: "noted",
    do.RecordKind.CANCELLATION: "marked",
    do.RecordKind.RESULT: "stored",
    do.RecordKind.DEAD_LETTER: "buried",
    do.RecordKind.SCHEDULE: "scheduled",
}
