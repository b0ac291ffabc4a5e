"""Finds endpoints: the names of pools, standing sets, routes and published tasks.

A tenant can publish tasks for any name, and each would get a queue. So those that only tenants' tasks name are limited
by the quota `endpoints`; those above it get no queue, and after `unknown_after_s` their tasks are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ....bus.port.bus import KvEntry, Stream
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, InvalidSettings
from ....schemas.names import belongs_to, check_name
from ....schemas.permissions.quotas import exceeded
from ....schemas.text import count_of
from ....schemas.wire import headers
from ...jobs.stored import header_of, split_subject
from ..workers.context import DispatcherContext

_COUNTED_PER_S: Final = 1_000
"""Delayed tasks that are counted per second, at most, on average."""
_READ_AT_ONCE: Final = 100


class EndpointDiscovery:
    """Finds endpoints for one dispatcher."""

    def __init__(
        self,
        context: DispatcherContext,
        *,
        found: Callable[[frozenset[str]], None],
        strays: Callable[[Stream, list[str], Mapping[str, GanglineError]], None],
        held: Callable[[], Collection[str]],
        counted: Callable[[Mapping[str, int], int], None],
        registered: Callable[[Sequence[KvEntry]], None],
    ) -> None:
        """
        Args:
            found: called with all endpoints, each time.
            strays: called with subjects in the stream that belong to no endpoint, and with those that are refused and
                why, which is kept up to date.
            held: endpoints whose queues some dispatcher has.
            counted: called with the number of tasks in the stream by endpoint, and its last sequence, each time.
            registered: called with all registrations of workers, each time.
        """
        self._context, self._names, self._log = context, context.names, context.log
        self._known = context.known.names
        self._found = found
        self._strays = strays
        self._held = held
        self._counted = counted
        self._registered = registered
        self._quotas = context.settings.quotas
        self._refused: dict[str, GanglineError] = {}
        """Subjects of tasks above a quota `endpoints`, and why."""
        self._above_since: dict[str, float] = {}
        """Endpoints above a quota, and since when (monotonic, without the time in which we heard nothing). They are
        refused after `unknown_after_s`: workers may still start, or a dispatcher that knew of them earlier may have
        their queues."""
        self._work = TaskSet("endpoints", context.log)
        self._told = ""
        self.delayed: Mapping[str, int] = {}
        """Tasks that wait for their time by endpoint, as of the last count; schedules, too."""
        self._count_delayed_at = 0.0
        self._delayed_targets: dict[str, str] = {}
        """By subject: endpoints of those whose ids have none."""

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
        claims: dict[str, dict[str, list[str]]] = {}
        """Subjects of tenants' tasks, by endpoint and tenant."""
        others: set[str] = set()
        """Endpoints with tasks of our own account."""
        for subject, count in state.subjects.items():
            endpoint = self._endpoint_of(subject)
            if endpoint is None:
                strays.append(subject)
            else:
                depths[endpoint] = depths.get(endpoint, 0) + count
                _, at, tenant = subject.partition(".@")
                if at:
                    claims.setdefault(endpoint, {}).setdefault(tenant, []).append(subject)
                else:
                    others.add(endpoint)
        self._counted(depths, state.last_sequence)
        await self._count_delayed()
        ledger, router = await self._context.router.ledger(make=True), self._context.router
        registrations = await ledger.entries(self._names.registrations_of())
        self._registered(registrations)
        for entry in registrations:
            with contextlib.suppress(InvalidName):
                self._known.add(self._names.parse_worker_key(entry.key).pool)
        for entry in await ledger.entries(self._names.gangset_key()):
            with contextlib.suppress(InvalidName):
                self._known.add(check_name(entry.key.partition(".")[2], "standing set"))
        await router.routes.ready()
        above: Collection[str] = ()
        if claims or self._refused:
            others.update(self._known, router.routes.known)
            above = self._refuse({name: its for name, its in claims.items() if name not in others})
        self._found(frozenset((*depths, *self._known, *router.routes.known)).difference(above))
        if strays or self._refused:
            self._strays(stream, strays, self._refused)

    async def _count_delayed(self) -> None:
        every_s, now = self._context.settings.count_delayed_s, asyncio.get_running_loop().time()
        if not every_s or now < self._count_delayed_at:
            return
        self._count_delayed_at = now + every_s
        try:
            stream = await self._context.streams.schedules()
            subjects = (await stream.state(self._names.schedules)).subjects
            await self._remove_forbidden(stream, subjects)
            targets = await self._targets(stream, [subject for subject in subjects if not self._owner_of(subject)])
        except GanglineError as error:
            self._log.debug("cannot count delayed tasks: %s", error, extra={"action": "endpoints.delayed"})
            return
        # Each has a subject of its own, so their list is long.
        self._count_delayed_at = now + max(every_s, len(subjects) / _COUNTED_PER_S)
        owners = (self._owner_of(subject) or targets.get(subject) for subject in subjects)
        self.delayed = Counter(owner for owner in owners if owner)

    async def _remove_forbidden(self, stream: Stream, subjects: Collection[str]) -> None:
        """Remove what tenants have scheduled that may have nothing there, for example because they are gone."""
        for tenant, quota in self._quotas.named.items():
            if quota.schedules != 0 or quota.delayed_tasks != 0:
                continue
            own = [subject for subject in subjects if belongs_to(self._names.parse_schedule(subject), tenant)]
            for subject in own:
                await stream.purge(subject)
            if own:
                self._log.warning(
                    "removed %s of tenant %s, whose quotas schedules and delayed_tasks are 0",
                    count_of(len(own), "scheduled task"),
                    tenant,
                    extra={"action": "schedules.forbidden", "tenant": tenant},
                )

    def _owner_of(self, subject: str) -> str:
        """The endpoint that the id of a delayed task begins with; empty: it has none, as those that were published
        without an id."""
        endpoint, dot, _ = self._names.parse_schedule(subject).partition(".")
        return endpoint if dot else ""

    async def _targets(self, stream: Stream, subjects: list[str]) -> Mapping[str, str]:
        """The endpoints of tasks whose ids have none; empty: unknown. Each is read once, some at a time."""
        known = self._delayed_targets
        self._delayed_targets = targets = {subject: known[subject] for subject in subjects if subject in known}
        for subject in [subject for subject in subjects if subject not in known][:_READ_AT_ONCE]:
            message = await stream.last(subject)
            given = {} if message is None else message.headers or {}
            due = header_of(given, headers.SCHEDULE_TARGET) or ""
            targets[subject] = split_subject(due, self._names.due[:-1])[0]
        return targets

    def _above_quotas(self, claims: Mapping[str, Collection[str]]) -> dict[str, dict[str, GanglineError]]:
        """Endpoints that none of their tenants may have, by tenant why. Those that have a queue go first."""
        held, within, above = self._held(), set[str](), dict[str, dict[str, GanglineError]]()
        tenants = {tenant for its in claims.values() for tenant in its}
        for tenant in tenants:
            names = [name for name, its in claims.items() if tenant in its]
            names.sort(key=lambda name: (name not in held, name))
            quota = self._quotas.of(tenant)
            limit = len(names) if quota is None or quota.endpoints is None else quota.endpoints
            within.update(names[:limit])
            advice = "start workers or set a route for them first, or have an operator raise the quota and replay it"
            what = "endpoints without a pool, standing set or route"
            for name in names[limit:]:
                above.setdefault(name, {})[tenant] = exceeded(tenant, "endpoints", limit, limit, what, advice)
        return {name: why for name, why in above.items() if name not in within and name not in held}

    def _refuse(self, claims: Mapping[str, Mapping[str, list[str]]]) -> Collection[str]:
        """Endpoints that get no queue, of these that only tenants' tasks name."""
        above = self._above_quotas(claims)
        now, wait_s = asyncio.get_running_loop().time(), self._context.settings.unknown_after_s
        now -= self._context.guard.unheard_s  # workers may have come and gone meanwhile
        before, self._above_since = self._above_since, {name: self._above_since.get(name, now) for name in above}
        self._refused.clear()
        for name, since in self._above_since.items():
            if name in before and now - since >= wait_s:
                for tenant, error in above[name].items():
                    self._refused.update(dict.fromkeys(claims[name][tenant], error))
        return above.keys()

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
