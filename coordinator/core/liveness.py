"""Pings to workers that have members, which also renew the gangs there."""

from __future__ import annotations

from ...schemas.messages.gangs import PingRequest
from ...schemas.names import WorkerId
from ..model.effects import PingWorker
from ..model.events import PingAnswered, PingUnanswered
from ..model.gang import GRANTED
from .commit_pipeline import GrantPipeline
from .members import MemberFailures
from .state import SchedulerState

GONE_AFTER = 2
"""Pings in a row without responders. One may hit a worker that is just connecting again."""


class HeartbeatMonitor:
    """Asks workers whether they are there. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, members: MemberFailures, granting: GrantPipeline) -> None:
        self._state = scheduler_state
        self._granting = granting
        self._members = members

    def ping(self, worker: WorkerId) -> None:
        scheduler_state = self._state
        here = scheduler_state.on.get(worker)
        if here:
            gangs = {gang: scheduler_state.gangs[gang].generation for gang in here}
            scheduler_state.out.append(PingWorker(worker=worker, request=PingRequest(gangs=gangs)))
            scheduler_state.agenda.set(("ping", str(worker)), scheduler_state.now + scheduler_state.settings.ping_s)

    def answered(self, event: PingAnswered) -> None:
        view = self._state.inventory.workers.get(event.worker)
        if view is not None:
            view.silent = 0
        for gang_id, generation in event.started.items():
            self._members.started(gang_id, generation, None, event.worker)
        for gang_id, generation in event.missing.items():
            gang = self._state.gangs.get(gang_id)
            if gang is not None and gang.step in GRANTED and gang.generation == generation:
                # Our `form` was lost. Told again, the worker either has it or refuses, which is a failure of its own.
                self._granting.announce(gang, only=event.worker)

    def unanswered(self, event: PingUnanswered) -> None:
        scheduler_state = self._state
        view = scheduler_state.inventory.workers.get(event.worker)
        if view is None:
            return
        view.silent += 1
        if view.silent >= GONE_AFTER:
            self._members.worker_gone(event.worker, "no responders")
        else:
            scheduler_state.agenda.set(
                ("ping", str(event.worker)), scheduler_state.now + scheduler_state.settings.confirm_s
            )
