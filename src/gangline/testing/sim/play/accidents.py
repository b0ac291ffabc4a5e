"""Plays a plan's storms and faults, and ends them."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable

from ..actors.processes import Process
from ..history.troubles import SERVER, SILENCE, WEATHER
from ..plan.durable_draw import HOLDER
from ..plan.gang_draw import LEADER
from ..plan.plan import (
    CALM_RATES,
    NOTICED_S,
    ONLY_SERVER,
    SERVERS,
    Accident,
    Plan,
    PlanEvent,
    Storm,
    leader_of,
    server_of,
)
from .world import World

TWIN_AFTER_S = 0.1
"""When a second process with the same id starts, measured from the beginning of a freeze."""
CATCHES_UP_S = 0.1
"""Time within which a server that wakes up serves each of its connections."""
ELECTED_S = 4.0
"""How long a cluster has no JetStream leader after the leading server has failed."""
SOURCED_S = 16.0
"""How long after an election a stream may not find its sources."""


class Accidents:
    """All faults of a run. Each begins once and ends once, at its time or in `heal`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[int, Callable[[], None]] = {}
        """Functions that end the current faults."""
        self._storms: list[Storm] = []
        self._numbers = 0
        self._over = False
        self._leader = leader_of(world.plan.seed)
        """The server that leads JetStream."""
        world.aims.happen = self.happen

    def schedule(self, plan: Plan) -> None:
        """Set a timer for each storm and fault; their times are measured from now."""
        loop = asyncio.get_running_loop()
        for storm in plan.storms:
            loop.call_later(storm.from_s, self._storm, storm)
        for event in plan.events:
            loop.call_later(event.at_s, self.happen, event)

    def heal(self) -> None:
        """End all faults; no other begins after this."""
        self._over = True
        for number in list(self._open):
            self._finish(number)

    def _storm(self, storm: Storm) -> None:
        if self._over:
            return
        self._storms.append(storm)
        troubles = self._world.troubles
        troubles.calm = False
        troubles.lossy |= storm.rates.drop > 0
        troubles.doubling |= storm.rates.duplicate > 0
        self._blow()

        def abate() -> None:
            self._storms.remove(storm)
            self._blow()

        self._begin(f"storm {storm.rates}", storm.until_s - storm.from_s, abate, WEATHER)

    def _blow(self) -> None:
        """Apply the rates of the latest storm."""
        self._world.faults.rates = self._storms[-1].rates if self._storms else CALM_RATES

    def happen(self, event: PlanEvent) -> None:
        """Begin a fault now, unless all faults have ended or its target is down."""
        if self._over:
            return
        process = self._process(event.target)
        if process is None and event.target:
            return  # nobody leads or has a queue right now
        if process is not None and (process.bus is None or process.frozen):
            return  # it is already down
        who = event.target if process is None else process.name
        self._world.trace.note("sim", f"{event.accident.value} {who} for {event.for_s:.3f} s")
        match event.accident:
            case Accident.SERVER_RESTART:
                self._server_restart(event)
            case Accident.STORAGE_OUTAGE:
                self._world.hub.storage_down()
                self._begin("storage outage", event.for_s, self._world.hub.storage_back, SERVER)
            case Accident.SILENCE:
                self._silence(event)
            case Accident.SPLIT:
                self._split(event)
            case Accident.RESIZE | Accident.DRAIN:
                self._world.workers[event.target].operate(event)
            case Accident.ROLL_OUT:
                for dispatcher in self._world.dispatchers.values():
                    dispatcher.stop()
                asyncio.get_running_loop().call_later(event.for_s, self._world.workers[event.target].operate, event)
            case Accident.DISPATCHER_STOP:
                if process is not None:
                    self._world.dispatchers[process.name].stop()
            case _:
                if process is not None:
                    self._befall(process, event)

    def _befall(self, process: Process, event: PlanEvent) -> None:
        hub, bus = self._world.hub, process.bus
        assert bus is not None
        match event.accident:
            case Accident.WORKER_CRASH | Accident.CLIENT_CRASH | Accident.COORDINATOR_CRASH | Accident.DISPATCHER_CRASH:
                process.crash()
                self._begin(f"crash of {event.target}", event.for_s, process.start, process.name)
            case (
                Accident.WORKER_FREEZE
                | Accident.CLIENT_FREEZE
                | Accident.COORDINATOR_FREEZE
                | Accident.DISPATCHER_FREEZE
            ):
                process.freeze()
                self._begin(f"freeze of {event.target}", event.for_s, process.thaw, process.name)
            case Accident.WORKER_TWIN:
                first = self._world.workers[process.name]
                first.freeze()
                second = asyncio.get_running_loop().call_later(TWIN_AFTER_S, self._world.start_twin, first)

                def wake() -> None:
                    second.cancel()
                    first.thaw()

                self._begin(f"standstill of {first.node}", event.for_s, wake, process.name)
            case Accident.REFUSED_DELETE:
                self._world.operator.delete_in_vain(self._world.workers[event.target].plan)
            case Accident.DISCONNECT:
                hub.disconnect(bus)
                reconnect = functools.partial(hub.reconnect, bus)
                self._begin(f"disconnection of {event.target}", event.for_s, reconnect, process.name)
            case Accident.PARTITION | Accident.LEADER_PARTITION | Accident.DISPATCHER_PARTITION:
                hub.partition(bus)
                self._world.troubles.late = True
                notice = asyncio.get_running_loop().call_later(NOTICED_S, hub.disconnect, bus)

                def mend() -> None:
                    notice.cancel()
                    hub.heal(bus)
                    hub.reconnect(bus)

                self._begin(f"partition of {event.target}", event.for_s, mend, process.name)
            case Accident.DISPATCHER_UNHEARD:
                hub.mute(bus, loses=bool(event.amount))
                self._world.troubles.late = True
                self._world.troubles.lossy |= bool(event.amount)
                unmute = functools.partial(hub.unmute, bus)
                self._begin(f"silence of {process.name}", event.for_s, unmute, process.name)
            case _:
                raise ValueError(f"{event.accident} does not befall a process")

    def _server_restart(self, event: PlanEvent) -> None:
        hub = self._world.hub
        hub.stop()
        self._world.troubles.forgetful = True
        self._begin("server restart", event.for_s, hub.start, SERVER)

    # -- servers of a cluster -----------------------------------------------------------------------------------------

    def _silence(self, event: PlanEvent) -> None:
        hub, server = self._world.hub, event.amount
        self._world.troubles.late = True
        if server == ONLY_SERVER:
            draw = random.Random(f"{self._world.plan.seed}-thaw {event.at_s}")
            hub.freeze()
            thaw = functools.partial(hub.thaw, lambda: draw.uniform(0.0, CATCHES_UP_S))
            self._begin("silence of the only server", event.for_s, thaw, SILENCE)
            return
        buses = [bus for bus in hub.connections if self._is_at(server, bus.name)]
        for bus in buses:
            hub.partition(bus)

        def wake() -> None:
            for bus in buses:
                hub.heal(bus)

        self._begin(f"silence of server {server}", event.for_s, wake, SILENCE, *self._names_at(server))
        self._without_leader(server, event.for_s)

    def _split(self, event: PlanEvent) -> None:
        hub, server = self._world.hub, event.amount
        self._world.troubles.late = True
        if hub.is_split:
            return
        split = hub.split(lambda name: self._is_at(server, name))

        def notice() -> None:
            self._world.trace.note("sim", f"server {server} and the others give each other up")
            self._world.troubles.lossy = True
            split.notice()

        # The servers' pings notice half of those that last long enough.
        noticed = None
        if (self._world.plan.seed + round(event.at_s)) % 2:
            noticed = asyncio.get_running_loop().call_later(NOTICED_S, notice)

        def mend() -> None:
            if noticed is not None:
                noticed.cancel()
            hub.mend()
            self._world.ledger.delivered()

        self._begin(f"split of server {server}", event.for_s, mend, SILENCE, *self._names_at(server))
        self._without_leader(server, event.for_s)

    def _without_leader(self, server: int, for_s: float) -> None:
        """JetStream has no leader until another server leads, or this one can again."""
        hub = self._world.hub
        if server != self._leader or not hub.storage_up:
            return
        hub.storage_down()
        hub.stand_still()
        sourcing = hub.streams.sourcing
        if sourcing:
            hub.streams.hold_sources()

        def elected() -> None:
            hub.storage_back()
            hub.go_on()
            if sourcing and self._over:
                hub.streams.release_sources()
            elif sourcing:
                draw = random.Random(f"{self._world.plan.seed}-sources {server} {for_s}")
                self._begin("a look for sources", draw.uniform(0.0, SOURCED_S), hub.streams.release_sources, SILENCE)

        if for_s > ELECTED_S:
            self._leader = (server + 1) % SERVERS
        self._begin("election", min(for_s, ELECTED_S), elected, SILENCE)

    def _is_at(self, server: int, node: str) -> bool:
        return server_of(self._world.plan.seed, node.partition(".")[0]) == server

    def _names_at(self, server: int) -> list[str]:
        world = self._world
        groups = (world.workers, world.clients, world.coordinators, world.dispatchers)
        return [name for group in groups for name in group if self._is_at(server, name)]

    def _process(self, name: str) -> Process | None:
        world = self._world
        if name == LEADER:
            return world.leading()
        if name == HOLDER:
            return world.holding()
        for processes in (world.workers, world.clients, world.coordinators, world.dispatchers):
            if name in processes:
                return processes[name]
        return None

    def _begin(self, name: str, for_s: float, end: Callable[[], None], *whom: str) -> None:
        """Begin the target's trouble; returns the target."""
        self._numbers += 1
        self._world.troubles.calm = False
        number = self._numbers
        self._world.ledger.disturb()
        overs = [self._world.troubles.begin(who) for who in whom]

        def finish() -> None:
            self._world.trace.note("sim", f"{name} ends")
            self._world.ledger.settle()
            for over in overs:
                over()
            end()

        self._open[number] = finish
        asyncio.get_running_loop().call_later(for_s, self._finish, number)

    def _finish(self, number: int) -> None:
        finish = self._open.pop(number, None)
        if finish is not None:
            finish()
