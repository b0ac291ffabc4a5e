"""Recurring schedules: as they are stored, and how operators list, pause, resume and delete them.

A task with `cron` is taken by the dispatcher of its endpoint, which stores a schedule (`put_schedule`); the server
publishes its runs. A paused schedule is kept in its place without `Nats-Schedule`, so that the server ignores it.

To declare a schedule in code, submit with `options(cron=..., time_zone=..., idempotency_key=NAME)`, at every start of
the program if need be: there is one schedule of that name, as last declared, and one that an operator has paused stays
paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from ...bus.port.bus import PublishRefused, Stream
from ...runtime.clock import Environment
from ...schemas.errors.base import InvalidRequest, UnknownJob
from ...schemas.names import Names, check_name, short_job, split_tenant
from ...schemas.wire import headers
from .storage import TaskStreams
from .stored import DUE_KEPT, Schedule, begins_with, declared_at_ms, header_of, recurring
from .submitter import rfc3339

_WRONG_LAST_SEQUENCE: Final = 10071
_AT_ONCE: Final = 256
_PREFIX: Final = 4
"""The least number of characters of an abbreviated id."""
_OF_THE_SERVER: Final = frozenset(
    name.lower()
    for name in (headers.SCHEDULE, headers.SCHEDULE_TARGET, headers.SCHEDULE_TTL, headers.SCHEDULE_TIME_ZONE)
)
_OF_A_PAUSE: Final = frozenset(
    name.lower() for name in (headers.PAUSED, headers.CRON, headers.TIME_ZONE, headers.SUBJECT)
)


async def put_schedule(schedules: Stream, names: Names, subject: str, data: bytes, given: Mapping[str, str]) -> None:
    """Store a schedule in place of the one that is there, unless that was declared later. If that is paused, so is the
    new one.

    Dispatchers of earlier versions stored those of tenants under ids without the tenant: such a one is replaced, too.

    Raises:
        PublishRefused: the server will never accept it.
        StorageUnavailable, Disconnected.
    """
    earlier = names.schedule(short_job(names.parse_schedule(subject)))
    while True:
        found = await schedules.last(subject)
        before = None if earlier == subject else await schedules.last(earlier)
        if before is not None and _tenant_of(before.headers or {}) != _tenant_of(given):
            before = None
        known = before if found is None or _tenant_of(found.headers or {}) != _tenant_of(given) else found
        if found is not None and known is found and declared_at_ms(found.headers or {}) > declared_at_ms(given) > 0:
            return
        since = None if known is None else header_of(known.headers or {}, headers.PAUSED)
        fields = dict(given) if since is None else _as_paused(names, given, since)
        if await _replace(schedules, subject, data, fields, 0 if found is None else found.sequence):
            if before is not None:
                # One of our own account may have taken its place meanwhile.
                await schedules.purge(earlier, before=before.sequence + 1)
            return


def _tenant_of(given: Mapping[str, str]) -> str:
    """Whose a schedule is, paused or not."""
    return split_tenant(header_of(given, headers.SCHEDULE_TARGET) or header_of(given, headers.SUBJECT) or "")[1]


async def _replace(schedules: Stream, subject: str, data: bytes, given: Mapping[str, str], sequence: int) -> bool:
    """Store a message in place of the one with that sequence (0: there is none); False: another one is there now."""
    try:
        await schedules.publish(subject, data, headers={**given, headers.EXPECTED_SUBJECT_SEQUENCE: str(sequence)})
    except PublishRefused as error:
        if error.details.get("err_code") != _WRONG_LAST_SEQUENCE:
            raise
        return False
    return True


def _is_paused(given: Mapping[str, str]) -> bool:
    return header_of(given, headers.PAUSED) is not None


def _kept(given: Mapping[str, str]) -> dict[str, str]:
    """The task's own headers."""
    ours = _OF_THE_SERVER | _OF_A_PAUSE
    return {
        name: value
        for name, value in given.items()
        if name.lower() not in ours and not name.lower().startswith("nats-")
    }


def _as_paused(names: Names, given: Mapping[str, str], since: str) -> dict[str, str]:
    """The headers of the same schedule, paused."""
    zone = header_of(given, headers.SCHEDULE_TIME_ZONE)
    id = header_of(given, headers.MESSAGE_ID)
    return {
        **_kept(given),
        headers.PAUSED: since,
        headers.CRON: header_of(given, headers.SCHEDULE) or "",
        **({headers.TIME_ZONE: zone} if zone else {}),
        headers.SUBJECT: names.task_of_due(header_of(given, headers.SCHEDULE_TARGET) or ""),
        **({headers.MESSAGE_ID: id} if id else {}),
        headers.ROLLUP: "sub",
    }


def _as_active(names: Names, given: Mapping[str, str]) -> dict[str, str]:
    """The headers of a paused schedule, resumed."""
    zone = header_of(given, headers.TIME_ZONE)
    return {
        **_kept(given),
        headers.SCHEDULE: header_of(given, headers.CRON) or "",
        **({headers.SCHEDULE_TIME_ZONE: zone} if zone else {}),
        headers.SCHEDULE_TARGET: names.due_of(header_of(given, headers.SUBJECT) or ""),
        headers.SCHEDULE_TTL: DUE_KEPT,
    }


class Schedules:
    """Lists, pauses and resumes schedules. One per client."""

    def __init__(self, streams: TaskStreams, ambient: Environment) -> None:
        self._streams = streams
        self._names = streams.names
        self._ambient = ambient

    async def all(self, endpoint: str | None = None) -> list[Schedule]:
        """See Client.schedules."""
        stream = await self._streams.schedules(make=False)
        pattern = self._names.schedules
        wanted = None if endpoint is None else check_name(endpoint, "endpoint")
        subjects = sorted((await stream.state(pattern)).subjects)
        found: list[Schedule] = []
        for start in range(0, len(subjects), _AT_ONCE):
            messages = await asyncio.gather(*map(stream.last, subjects[start : start + _AT_ONCE]))
            each = (recurring(self._names, one, wall=self._ambient.wall()) for one in messages if one is not None)
            found += [one for one in each if one is not None and wanted in (None, one.endpoint)]
        return sorted(found, key=lambda one: (one.endpoint, one.name or one.id))

    async def find(self, which: str) -> Schedule:
        """The schedule with this id, name, `ENDPOINT.NAME`, or beginning of an id.

        Raises:
            UnknownJob: there is none.
            InvalidRequest: there are several; or the name is empty, which would be that of any unnamed schedule.
        """
        if not which:
            raise InvalidRequest("the name of the schedule is empty: 'gangline schedules ls' lists them")
        found = await self.all()
        exact = [one for one in found if which in (one.id, one.name, f"{one.endpoint}.{one.name}")]
        close = exact or [one for one in found if _begins(one.id, which)]
        if len(close) > 1:
            ids = ", ".join(one.id for one in close[:5])
            raise InvalidRequest(
                f"{which!r} is the name or the beginning of several schedules: {ids}; ENDPOINT.NAME says which"
            )
        if not close:
            raise UnknownJob(
                f"there is no schedule {which!r}: 'gangline schedules ls' lists them", details={"job": which}
            )
        return close[0]

    async def pause(self, which: str) -> Schedule:
        """See Client.pause_schedule."""
        since = rfc3339(datetime.fromtimestamp(self._ambient.wall(), UTC))
        return await self._change(
            which, lambda given: None if _is_paused(given) else _as_paused(self._names, given, since)
        )

    async def resume(self, which: str) -> Schedule:
        """See Client.resume_schedule."""
        return await self._change(which, lambda given: _as_active(self._names, given) if _is_paused(given) else None)

    async def _change(self, which: str, change: Callable[[Mapping[str, str]], dict[str, str] | None]) -> Schedule:
        """Store it with other headers; `change`: None if they are right already."""
        schedule = await self.find(which)
        stream, subject = await self._streams.schedules(), self._names.schedule(schedule.id)
        while True:
            message = await stream.last(subject)
            found = None if message is None else recurring(self._names, message, wall=self._ambient.wall())
            if message is None or found is None:
                raise UnknownJob(f"schedule {schedule.id!r} was deleted just now", details={"job": schedule.id})
            given = change(found.headers)
            if given is None:
                return found
            given.pop(headers.MESSAGE_ID, None)
            await _replace(stream, subject, message.data, given, message.sequence)

    def __repr__(self) -> str:
        return f"Schedules({self._names.namespace})"


def _begins(id: str, text: str) -> bool:
    """Whether a text is the beginning of an id, or of its part after the endpoint, with or without its tenant."""
    return len(text) >= _PREFIX and begins_with(id, text)
