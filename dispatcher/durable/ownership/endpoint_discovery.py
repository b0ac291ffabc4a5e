"""Which endpoints there are: names of pools, of standing sets, of routes, and of what was published."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from ....bus.port.bus import Stream
from ....schemas.errors.base import GanglineError, InvalidName
from ....schemas.names import Names, check_name
from ....telemetry.logs import Log
from ...jobs.storage import TaskStreams
from ...router.router import Router
from ...traffic.table import RouteTable
from ..workers.pool_observer import KnownPools

_MANY: Final = 1000
_RARELY: Final = 10
"""With more schedules than that in the stream only each tenth look lists them: each has a subject of its own."""


class EndpointDiscovery:
    """Looks once in a while. One of each dispatcher."""

    def __init__(
        self,
        names: Names,
        streams: TaskStreams,
        *,
        router: Router,
        routes: RouteTable,
        known: KnownPools,
        look_s: float,
        found: Callable[[frozenset[str]], None],
        sweeper: Callable[[Stream, list[str]], None],
        log: Log,
    ) -> None:
        """
        Args:
            found: told of all endpoints, each time.
            strays: told of subjects in the stream that are no endpoint's.
        """
        self._names = names
        self._streams = streams
        self._router = router
        self._routes = routes
        self._known = known
        self._look_s = look_s
        self._found = found
        self._sweeper = sweeper
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._looks = 0
        self._whole_every = 1
        self.depths: Mapping[str, int] = {}
        """Tasks in the stream by endpoint, as of the last look."""

    async def start(self) -> None:
        """Look for the first time, as far as storage answers, and go on."""
        self._task = asyncio.get_running_loop().create_task(self._go_on(), name="gangline-endpoints")

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _go_on(self) -> None:
        while True:
            try:
                await self._look()
            except GanglineError as error:
                self._log.debug("endpoints cannot be looked for: %s", error, extra={"action": "endpoints.look"})
            except Exception:
                self._log.exception("looking for endpoints failed", extra={"action": "endpoints.bug"})
            await asyncio.sleep(self._look_s)

    async def _look(self) -> None:
        stream = await self._streams.tasks()
        whole = self._looks % self._whole_every == 0
        self._looks += 1
        state = await stream.state(">" if whole else self._names.tasks)
        depths: dict[str, int] = {}
        sweeper: list[str] = []
        for subject, count in state.subjects.items():
            endpoint = self._endpoint_of(subject)
            if endpoint is None:
                sweeper.append(subject)
            else:
                depths[endpoint] = depths.get(endpoint, 0) + count
        self.depths = depths
        await self._look_for_pools()
        await self._look_for_sets()
        await self._routes.ready()
        self._found(frozenset((*depths, *self._known.names, *self._routes.known)))
        if whole:
            self._whole_every = _RARELY if len(sweeper) > _MANY else 1
            self._looks = 1
            if sweeper:
                self._sweeper(stream, sweeper)

    async def _look_for_pools(self) -> None:
        ledger = await self._router.ledger()
        for entry in await ledger.entries(self._names.registrations_of()):
            with contextlib.suppress(InvalidName):
                self._known.names.add(self._names.parse_worker_key(entry.key).pool)

    async def _look_for_sets(self) -> None:
        ledger = await self._router.ledger()
        for entry in await ledger.entries(self._names.gangset_key()):
            with contextlib.suppress(InvalidName):
                self._known.names.add(check_name(entry.key.partition(".")[2], "standing set"))

    def _endpoint_of(self, subject: str) -> str | None:
        """The endpoint whose queue takes this subject; None if none does."""
        prefix = self._names.tasks[: -len(">")]
        if not subject.startswith(prefix):
            return None
        endpoint, dot, rest = subject[len(prefix) :].partition(".")
        if not dot or not rest:
            return None
        try:
            return check_name(endpoint, "endpoint")
        except InvalidName:
            return None
