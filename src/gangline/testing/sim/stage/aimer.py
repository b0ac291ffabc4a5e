"""Triggers what a plan has aimed: see plan.aims."""

from __future__ import annotations

import json
from collections.abc import Callable

from ....bus.port.bus import KvEntry, KvOperation, Message
from ....schemas.names import GangOperation, Names, Operation
from ....schemas.records.gangs import GangRecord
from ..gangs.ledger import STANDING
from ..plan.plan import Accident, Moment, Plan, PlanEvent


class Aimer:
    """Counts moments, and lets happen what is due. Taps the hub.

    Args:
        later: calls something after some seconds, on behalf of no process.
    """

    def __init__(
        self,
        plan: Plan,
        names: Names,
        *,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._aims = plan.aims
        self._names = names
        self._later = later
        self.happen: Callable[[PlanEvent], None] = _nothing
        """Triggers a fault, unless its time is over."""
        self._counts = dict.fromkeys(Moment, 0)
        self._prefix = f"{names.namespace}.worker."
        self._sets: set[str] = set()
        """Gangs of standing sets."""
        steps = plan.gangs.steps if plan.gangs is not None else ()
        self._owners = {f"q{step.number}": step.client for step in steps}
        """Of gangs whose ids are given by the plan."""

    def passes(self, moment: Moment, gang: str = "") -> None:
        """That gang reaches this moment."""
        self._counts[moment] += 1
        for aim in self._aims:
            if aim.moment is moment and aim.nth == self._counts[moment]:
                target = self._owner(gang) if aim.accident is Accident.CLIENT_CRASH else ""
                event = PlanEvent(at_s=0.0, accident=aim.accident, target=target, for_s=aim.for_s)
                self._later(aim.after_s, lambda event=event: self.happen(event))  # type: ignore[misc]

    def _owner(self, gang: str) -> str:
        """The client that acquired it; it names its gangs after its own process."""
        return self._owners.get(gang) or gang.rpartition("-")[0].partition("_")[0]

    # -- what passes ------------------------------------------------------------------------------------------------

    def on_message(self, _sender: str, message: Message) -> None:
        """A message has reached the server."""
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


def _nothing(_event: PlanEvent) -> None:
    """No play has begun."""
