"""Accidents that are aimed: not at a time, but at a step of something that is under way.

An owner is killed while its gang is queued, granted, committed, told to its members, or formed; the server is restarted
just then, or when a standing gang has been granted, or while a stream gives its items.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ....bus.port.bus import KvEntry, KvOperation, Message
from ....schemas.names import GangOperation, Names, Operation
from ....schemas.records.gangs import GangRecord
from ..gangs.ledger import STANDING
from .plan import Accident, Plan, PlanEvent


class Moment(StrEnum):
    """A step of something that is under way."""

    QUEUED = "queued"
    """A gang has been asked for."""
    GRANTED = "granted"
    """A worker is asked to hold slots for it."""
    COMMITTED = "committed"
    """Its record says formed."""
    TOLD = "told"
    """A worker is told so."""
    FORMED = "formed"
    """Its owner has it."""
    SET_COMMITTED = "set committed"
    """The record of a standing gang says formed."""
    SET_TOLD = "set told"
    STREAM = "stream"
    """A task that gives items begins."""


OF_OWNERS: Final = (Moment.QUEUED, Moment.GRANTED, Moment.COMMITTED, Moment.TOLD, Moment.FORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What happens so long after a moment has passed for the `nth` time."""

    moment: Moment
    nth: int
    accident: Accident
    """The crash of the owner, or a restart of the server."""
    after_s: float
    for_s: float


def draw_aims(plan: Plan) -> tuple[Aim, ...]:
    """Those of the seed; the same for ever."""
    rng = random.Random(f"gangline aims {plan.seed}")
    moments = tuple(Moment) if plan.gangs is not None else (Moment.STREAM,)
    found: list[Aim] = []
    for _ in range(rng.choice((1, 2, 3))):
        moment = rng.choice(moments)
        kill = moment in OF_OWNERS and rng.random() < 0.6
        found.append(
            Aim(
                moment=moment,
                nth=rng.choice((1, 1, 2, 3, 5)),
                accident=Accident.CLIENT_CRASH if kill else Accident.SERVER_RESTART,
                after_s=rng.choice((0.0, 0.0003, 0.001, 0.01, 0.2)) * rng.uniform(0.5, 1.5),
                for_s=rng.choice((0.02, 0.3, 1.0, 2.5)) * rng.uniform(0.5, 1.5),
            )
        )
    return tuple(found)


def with_aims(plan: Plan) -> Plan:
    """The same plan, and what befalls it at its moments."""
    return replace(plan, aims=draw_aims(plan))


class Aimer:
    """Counts moments, and lets happen what is due. Taps the hub.

    Args:
        later: calls something after some seconds, on behalf of no process.
        happen: lets an accident happen, unless its time is over.
    """

    def __init__(
        self,
        plan: Plan,
        names: Names,
        *,
        later: Callable[[float, Callable[[], None]], None],
        happen: Callable[[PlanEvent], None],
    ) -> None:
        self._aims = plan.aims
        self._names = names
        self._later = later
        self._happen = happen
        self._counts = dict.fromkeys(Moment, 0)
        self._prefix = f"{names.namespace}.worker."
        self._sets: set[str] = set()
        """Gangs of standing sets."""
        steps = plan.gangs.steps if plan.gangs is not None else ()
        self._owners = {f"q{step.number}": step.client for step in steps}
        """Of gangs whose ids are given by the plan."""

    def passes(self, moment: Moment, gang: str = "") -> None:
        """It is reached, by that gang."""
        self._counts[moment] += 1
        for aim in self._aims:
            if aim.moment is moment and aim.nth == self._counts[moment]:
                target = self._owner(gang) if aim.accident is Accident.CLIENT_CRASH else ""
                event = PlanEvent(at_s=0.0, accident=aim.accident, target=target, for_s=aim.for_s)
                self._later(aim.after_s, lambda event=event: self._happen(event))  # type: ignore[misc]

    def _owner(self, gang: str) -> str:
        """The client that asked for it; it names its gangs after its own process."""
        return self._owners.get(gang) or gang.rpartition("-")[0].partition("_")[0]

    # -- what passes ------------------------------------------------------------------------------------------------

    def on_message(self, _sender: str, message: Message) -> None:
        """Something has reached the server."""
        if message.subject == self._names.gang(GangOperation.ACQUIRE):
            self.passes(Moment.QUEUED, json.loads(message.data).get("id", ""))
        elif message.subject.startswith(self._prefix):
            operation = message.subject.rpartition(".")[2]
            if operation in (Operation.HOLD, Operation.FORM):
                gang = json.loads(message.data)["gang"]
                told = Moment.SET_TOLD if gang in self._sets else Moment.TOLD
                self.passes(Moment.GRANTED if operation == Operation.HOLD else told, gang)

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision."""
        if bucket != self._names.ledger_bucket or entry.operation is not KvOperation.PUT:
            return
        if entry.key.partition(".")[0] != "gang":
            return
        record = GangRecord.model_validate_json(entry.value)
        if record.state not in STANDING:
            return
        if record.gangset:
            self._sets.add(record.id)
        self.passes(Moment.SET_COMMITTED if record.gangset else Moment.COMMITTED, record.id)
