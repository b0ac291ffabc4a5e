"""Events and effects as readable lines that can be compared."""

from __future__ import annotations

from typing import Any

from gangline.coordinator.model import effects as do
from gangline.coordinator.model import events as on

_WORDS: dict[type, str] = {on.SchedulerTick: "Tick"}
"""Names that differ from those in the code."""


def said_event(event: Any) -> str:
    return f"{event.now:7.3f}  {_event(event)}"


def _event(event: Any) -> str:
    match event:
        case on.LeadershipGained():
            gangs = ", ".join(f"{gang.id} {gang.state.value}" for gang, _ in event.gangs) or "none"
            return f"leadership gained: term {event.term}, fence {event.fence}, gangs in the ledger: {gangs}"
        case on.LeadershipLost():
            return f"leadership lost: {event.reason}"
        case on.WorkerSeen():
            facts = event.worker
            draining = ", draining" if facts.draining else ""
            return f"worker {facts.id}: epoch {facts.epoch}, {facts.total} slots{draining}"
        case on.HoldAnswered():
            words = f"held, {' '.join(event.tokens)}" if event.accepted else f"refused: {event.reason}"
            return f"{event.worker} answers hold of {event.gang}: {words}"
        case on.Formed() | on.MemberStarted() | on.MemberFailed():
            return _of_member(event)
        case on.AcquireAsked():
            return f"acquire {event.request.id}: size {event.request.size}, {event.request.strategy.value}"
        case on.RenewAsked() | on.ReleaseAsked() | on.EndAsked():
            return f"{type(event).__name__.removesuffix('Asked').lower()} {event.request.id}"
        case on.SetSeen():
            return f"set {event.name}: {event.record.gangs if event.record is not None else 'deleted'}"
        case on.Committed():
            return f"committed at revision {event.revision}"
        case on.Refenced():
            state = event.record.state.value if event.record is not None else "no record"
            return f"fence is {event.fence} now; the ledger has: {state}"
        case on.TeardownConfirmed() | on.TeardownUnanswered():
            how = type(event).__name__.removeprefix("Teardown").lower()
            return f"{event.worker} {how} teardown of {event.gang}.{event.generation}"
        case on.LoadSeen():
            return f"load of {event.worker}: {event.load.ongoing} of {event.load.total}"
        case on.WorkerGone():
            return f"worker {event.worker} gone: {event.reason}"
        case _:
            where = f" {event.worker}" if hasattr(event, "worker") else ""
            return f"{_WORDS.get(type(event), type(event).__name__)}{where}"


def _of_member(event: on.Formed | on.MemberStarted | on.MemberFailed) -> str:
    gang = f"{event.gang}.{event.generation}"
    match event:
        case on.Formed():
            return f"{event.worker} has formed {gang}: all has started there"
        case on.MemberStarted():
            return f"member of {gang} rank {event.rank} has started"
        case on.MemberFailed():
            return f"member of {gang} rank {event.rank}: {event.cause.value}"


def said_effect(effect: do.Effect) -> str:
    return f"         -> {_effect(effect)}"


def _effect(effect: do.Effect) -> str:
    match effect:
        case do.SendHold():
            ranks = ",".join(str(seat.rank) for seat in effect.request.seats)
            return f"{effect.worker}: hold {effect.request.gang}.{effect.request.generation} rank {ranks}"
        case do.ReleaseHold():
            return f"{effect.worker}: unhold {effect.request.gang}.{effect.request.generation}"
        case do.SendReserve():
            return f"{effect.worker}: keep {effect.request.slots} for {effect.request.gang}"
        case do.Commit():
            keys = ", ".join(f"{'' if write.record else 'delete '}{write.key}" for write in effect.writes)
            return f"commit {effect.what}: {keys}"
        case do.WriteFence():
            return f"refence, then read gang.{effect.gang}"
        case do.SendForm():
            return (
                f"{effect.worker}: form {effect.request.gang}.{effect.request.generation} fence {effect.request.fence}"
            )
        case do.SendTeardown():
            only = f" only {' '.join(effect.request.only)}" if effect.request.only else ""
            request = effect.request
            return f"{effect.worker}: tear down {request.gang}.{request.generation}{only} ({request.reason})"
        case do.PingWorker():
            gangs = ", ".join(f"{gang}.{generation}" for gang, generation in effect.request.gangs.items())
            return f"{effect.worker}: ping {gangs}"
        case do.Broadcast():
            event = effect.event
            reason = f" ({event.reason})" if event.reason else ""
            return f"event {event.gang}.{event.generation} {event.kind.value}{reason}"
        case do.AnswerRequest():
            if effect.error is not None:
                return f"answer {effect.reply_to}: {type(effect.error).__name__}: {effect.error}"
            assert effect.reply is not None
            return f"answer {effect.reply_to}: {effect.reply.step}, generation {effect.reply.generation}"
        case do.SetGangTimer():
            return "no timer" if effect.at is None else f"timer at {effect.at:.3f}"
        case do.StepDown():
            return f"stop: {effect.reason}"
