"""Finds endpoints: the names of pools, standing sets, routes and published tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from ....bus.port.bus import Stream
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, InvalidSettings
from ....schemas.names import check_name
from ..workers.context import DispatcherContext


class EndpointDiscovery:
    """Finds endpoints for one dispatcher."""

    def __init__(
        self,
        context: DispatcherContext,
        *,
        found: Callable[[frozenset[str]], None],
        strays: Callable[[Stream, list[str]], None],
    ) -> None:
        """
        Args:
            found: called with all endpoints, each time.
            strays: called with subjects in the stream that belong to no endpoint.
        """
        self._context, self._names, self._log = context, context.names, context.log
        self._known = context.known.names
        self._found = found
        self._strays = strays
        self._work = TaskSet("endpoints", context.log)
        self._told = ""
        self.depths: Mapping[str, int] = {}
        """Tasks in the stream by endpoint, as of the last search."""

    def start(self) -> None:
        """Search now, and then every `look_s`."""
        self._work.start(self._go_on())

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        await self._work.stop()

    async def _go_on(self) -> None:
        while True:
            try:
                await self._look()
            except GanglineError as error:
                # Other errors go away with time.
                told = not isinstance(error, InvalidSettings) or error.message == self._told
                level = logging.DEBUG if told else logging.ERROR
                self._told = error.message
                self._log.log(level, "cannot search for endpoints: %s", error, extra={"action": "endpoints.look"})
            except Exception:
                self._log.exception("the search for endpoints failed", extra={"action": "endpoints.bug"})
            await asyncio.sleep(self._context.settings.look_s)

    async def _look(self) -> None:
        stream = await self._context.streams.tasks()
        state = await stream.state(">")
        depths: dict[str, int] = {}
        strays: list[str] = []
        for subject, count in state.subjects.items():
            endpoint = self._endpoint_of(subject)
            if endpoint is None:
                strays.append(subject)
            else:
                depths[endpoint] = depths.get(endpoint, 0) + count
        self.depths = depths
        ledger, router = await self._context.router.ledger(), self._context.router
        for entry in await ledger.entries(self._names.registrations_of()):
            with contextlib.suppress(InvalidName):
                self._known.add(self._names.parse_worker_key(entry.key).pool)
        for entry in await ledger.entries(self._names.gangset_key()):
            with contextlib.suppress(InvalidName):
                self._known.add(check_name(entry.key.partition(".")[2], "standing set"))
        await router.routes.ready()
        self._found(frozenset((*depths, *self._known, *router.routes.known)))
        if strays:
            self._strays(stream, strays)

    def _endpoint_of(self, subject: str) -> str | None:
        """The endpoint whose queue has this subject, or None."""
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
