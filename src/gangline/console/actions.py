"""What can be done in the console: only with `--actions`, on a connection of its own, with a reason, and recorded in
the audit trail before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, JsonValue

from ..dispatcher.client.audit import AuditTrail
from ..dispatcher.client.client import Client
from ..dispatcher.jobs.dead_letters import DeadLetter, audited
from ..dispatcher.jobs.storage import TaskStreams
from ..schemas.errors.base import GanglineError, InvalidRequest, UnknownGang
from ..schemas.messages.operations import Request, parse_request
from ..schemas.names import check_job, check_name
from ..schemas.records.audit import MAX_REASON_CHARS
from ..schemas.records.gangs import GangSetRecord
from ..schemas.records.routes import parse_route
from ..schemas.wire import codec

MOST_JOBS: Final = 5000


class ActionRequest(Request):
    """The body of `POST /api/act/<action>`."""

    target: str = Field(default="", max_length=1000)
    """A worker, gang, job, endpoint or set."""
    reason: str = Field(min_length=1, max_length=MAX_REASON_CHARS - 300)
    """Why; it goes into the audit trail."""
    grace_s: float | None = None
    """Of `drain`."""
    slots: int | None = None
    """Of `resize`."""
    gangs: int | None = None
    """Of `scale`."""
    jobs: tuple[str, ...] = Field(default=(), max_length=MOST_JOBS)
    """Of `replay` and `drop`: exactly these dead letters."""
    route: dict[str, JsonValue] | None = None
    """Of `route`: the new route; None deletes it."""
    change: Literal["pause", "resume", "rm"] | None = None
    """Of `schedule`."""
    was: dict[str, JsonValue] | None = None
    """Of `route`: the route that was shown when this was asked for. If it is another one by now, nothing is changed."""


class UnknownRoute(InvalidRequest):
    code = "unknown_route"
    status = 404


Done = dict[str, Any]


class Actions:
    """Carries out actions.

    Args:
        client: of an operator.
        allowed: names of the allowed actions.
    """

    def __init__(self, client: Client, allowed: frozenset[str]) -> None:
        self._client = client
        self._allowed = allowed
        self._trail = AuditTrail(client.router.bus, client.router.names)
        self._by_name: dict[str, tuple[str, Callable[[ActionRequest], Awaitable[Done]]]] = {
            "drain": ("drain", self._drain),
            "resize": ("resize", self._resize),
            "cancel": ("cancel", self._cancel),
            "release": ("gang rm", self._release),
            "route": ("route set", self._route),
            "scale": ("gangset scale", self._scale),
            "schedule": ("schedules", self._schedule),
        }
        self._on_letters: dict[str, tuple[str, Callable[[str | DeadLetter], Awaitable[object]]]] = {
            "replay": ("dead replay", client.replay),
            "drop": ("dead rm", client.drop),
        }

    async def act(self, name: str, body: object, user: str) -> Done:
        """
        Args:
            user: who is signed in at the console.

        Raises:
            InvalidRequest: there is no such action, it is not allowed, or its request is wrong.
            GanglineError: as the action.
        """
        if name not in {*self._by_name, *self._on_letters} & self._allowed:
            raise InvalidRequest(f"the action {name!r} is not allowed here: see --actions")
        request = parse_request(ActionRequest, body, empty=False)
        if not request.reason.strip():
            raise InvalidRequest("give a reason")
        reason = f"{request.reason} (by {user} in the console)"
        if name in self._on_letters:
            told, do_with = self._on_letters[name]
            chosen = await self._letters(request.jobs)
            async with self._trail.noted(told, audited(list(chosen.values())), reason):
                return await _each(chosen, do_with)
        told, do = self._by_name[name]
        if name == "schedule":
            told = f"schedules {request.change or ''}".rstrip()
        if name == "route" and request.route is None:
            told = "route rm"
        async with self._trail.noted(told, request.target, reason):
            return await do(request)

    async def _drain(self, request: ActionRequest) -> Done:
        return (await self._client.drain(request.target, grace_s=request.grace_s)).model_dump(mode="json")

    async def _resize(self, request: ActionRequest) -> Done:
        if request.slots is None:
            raise InvalidRequest("give slots")
        return (await self._client.resize(request.target, request.slots)).model_dump(mode="json")

    async def _cancel(self, request: ActionRequest) -> Done:
        return {"cancelled": await self._client.job(check_job(request.target)).cancel()}

    async def _release(self, request: ActionRequest) -> Done:
        ended = await self._client.end_gang(request.target, reason=request.reason[:256])
        return ended.model_dump(mode="json")

    async def _letters(self, jobs: tuple[str, ...]) -> dict[str, str | DeadLetter]:
        """The newest letter of each job; for one without, its id, with which the action fails."""
        if not jobs:
            raise InvalidRequest("give jobs: whose dead letters")
        letters = {letter.job: letter for letter in await self._client.dead_letters(limit=None, bodies=False)}
        return {job: letters.get(job, job) for job in jobs}

    async def _route(self, request: ActionRequest) -> Done:
        """Written only if the route is still the one that was shown."""
        endpoint = check_name(request.target, "endpoint")
        bucket = await TaskStreams(self._client.router.bus, self._client.router.names).routes()
        entry = await bucket.get(endpoint)
        now = None if entry is None else _body(parse_route(endpoint, entry.value))
        if now != request.was:
            raise InvalidRequest(f"the route of {endpoint} has changed meanwhile: look at it again")
        if request.route is None:
            if entry is None:
                raise UnknownRoute(f"{endpoint} has no route: it is the pool of its name")
            await bucket.delete(endpoint, revision=entry.revision)
            return {"route": None}
        record = parse_route(endpoint, codec.to_json(request.route))
        value = codec.to_json(_body(record))
        await bucket.put(endpoint, value, revision=0 if entry is None else entry.revision)
        return {"route": _body(record)}

    async def _scale(self, request: ActionRequest) -> Done:
        if request.gangs is None:
            raise InvalidRequest("give gangs: how many the set shall have")
        name = check_name(request.target, "set")
        ledger = await self._client.router.ledger()
        entry = await ledger.get(self._client.router.names.gangset_key(name))
        if entry is None:
            raise UnknownGang(f"there is no set {name!r}")
        record = GangSetRecord.read(entry.value)
        changed = GangSetRecord.model_validate(
            {**record.model_dump(mode="json", exclude_unset=True), "gangs": request.gangs}
        )
        await ledger.put(
            entry.key, codec.to_json(changed.model_dump(mode="json", exclude_unset=True)), revision=entry.revision
        )
        return {"gangs": changed.gangs}

    async def _schedule(self, request: ActionRequest) -> Done:
        match request.change:
            case "pause":
                schedule = await self._client.pause_schedule(request.target)
            case "resume":
                schedule = await self._client.resume_schedule(request.target)
            case "rm":
                schedule = await self._client.delete_schedule(request.target)
            case None:
                raise InvalidRequest("give change: pause, resume or rm")
        return {"id": schedule.id, "paused": schedule.paused, "in_code": schedule.in_code}


async def _each(chosen: Mapping[str, str | DeadLetter], do: Callable[[str | DeadLetter], Awaitable[object]]) -> Done:
    """A failure does not stop the others."""
    done, failed = 0, dict[str, str]()
    for job, which in chosen.items():
        try:
            await do(which)
            done += 1
        except GanglineError as error:
            failed[job] = error.message
    return {"done": done, "failed": failed}


def _body(route: Any) -> Mapping[str, JsonValue]:
    body: dict[str, JsonValue] = route.model_dump(mode="json", exclude_defaults=True)
    return body
