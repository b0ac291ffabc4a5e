"""Requests to sharded coordinators: all leaders receive each request, and the responsible one answers.

Callers need not know about shards: they send to `<ns>.gang.<operation>`, and get "no responders" if there is no leader.
Every leader receives each request, and serves it if the gang, or the pools of the requested gang, are its own. For each
request the server also chooses one leader as the *fallback responder*: it answers requests that belong to no shard,
reports at once that a shard has no leader, and collects lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from ...bus.port.bus import Bus, KeyValue, Message, NoResponders
from ...bus.rpc.requester import read_answer
from ...bus.rpc.responder import Listening, Responder
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError, InvalidRequest, NoCoordinator
from ...schemas.messages.gangs import AcquireRequest, GangListReply, GangListRequest, GangQuery, GangReply, ShardReply
from ...schemas.messages.operations import parse_request
from ...schemas.names import GangOperation, Names
from ...schemas.records.gangs import GangRecord
from ...schemas.wire import codec
from ...schemas.wire.codec import Format
from ...telemetry.logs import Log
from ..core.gang_core import SchedulerCore
from ..ledger.storage import parse
from ..sharding.shards import Shard, pools_of, shard_of
from .request_server import RequestServer

_ASK_S: Final = 1.0
"""How long to wait for the leader of another shard."""
_LAST_S: Final = 3 * _ASK_S
"""How long a leaving leader waits for its last answers."""
_KNOWS: Final = "knows"
_LIST: Final = "list"
_OF_ONE: Final = frozenset(GangOperation) - {GangOperation.ACQUIRE, GangOperation.LIST}
"""Operations on an existing gang, named by its id (in a report: by `gang`)."""


R = TypeVar("R", bound=BaseModel)


class ShardRouter:
    """Filters requests for the request server of one shard's leader."""

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        names: Names,
        shard: Shard,
        core: SchedulerCore,
        request_server: RequestServer,
        *,
        shards: Callable[[], Mapping[str, tuple[str, ...]]],
        trusted: Callable[[], bool],
        log: Log,
    ) -> None:
        """
        Args:
            shards: current pools by shard.
            trusted: whether we may act as the leader at this instant.
        """
        self._bus = bus
        self._kv = kv
        self._names = names
        self._shard = shard
        self._tasks = TaskSet("shards", log)
        self._had = frozenset[str]()
        """Ids of our gangs when the leadership ended."""
        self._requests = Listening()
        self._fallbacks = Listening()
        self._core = core
        self._server = request_server
        self._shards = shards
        self._trusted = trusted
        self._log = log

    async def listen(self) -> None:
        """Start to serve requests."""
        names, bus = self._names, self._bus
        for subject in names.both(names.shard(self._shard.name, "*")):
            await self._requests.add(bus, subject, self._peer)
        for subject in names.gang_subjects:
            await self._requests.add(bus, subject, self._take)
            await self._fallbacks.add(bus, subject, self._fall_back, names.gang_queue)

    async def stop_falling_back(self) -> None:
        """Answer the requests that only we received, and receive no more of that kind. Call while still trusted."""
        await self._fallbacks.drain()
        await self._tasks.rest(_LAST_S)

    def cancel(self) -> None:
        """The leadership ends, and the core forgets its gangs."""
        self._had = frozenset(gang.id for gang in self._core.gangs())
        self._tasks.cancel()

    async def stop(self) -> None:
        """Unsubscribe; requests that have arrived are still answered."""
        await asyncio.gather(self._requests.drain(), self._fallbacks.drain())
        await self._tasks.rest()

    # -- every request -----------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        _, request, gang = self._read(message)
        if not self._is_ours(request, gang):
            return
        if request is not None:
            self._acquire(message, request)
        else:
            self._server.take(message)

    def _is_ours(self, request: AcquireRequest | None, gang: str) -> bool:
        """Whether our shard answers it, and no fallback responder."""
        if request is not None:
            return self._shard.owns(request)
        return gang in self._had or self._core.get(gang) is not None

    def _acquire(self, message: Message, request: AcquireRequest) -> None:
        if not self._trusted() or (
            self._shard.keeps_all(request) and (request.id is None or self._core.get(request.id) is not None)
        ):
            self._server.take(message)
        elif not self._shard.keeps_all(request):
            Responder(self._bus, message, self._log).fail(self._straddles(request))
        else:
            self._start(message, self._acquire_once(message, request.id or ""))

    def _start(self, message: Message, answering: Coroutine[Any, Any, None]) -> None:
        """Answer a request that no other leader answers. If our leadership ends first, its sender is to ask again."""
        task = self._tasks.start(answering)
        task.add_done_callback(lambda done: self._server.take(message) if done.cancelled() else None)

    async def _acquire_once(self, message: Message, gang: str) -> None:
        """Ids are unique in the namespace, not only in one shard: the ledger has one record for each."""
        if await self._elsewhere(gang) is None or not self._trusted():
            self._server.take(message)
        else:
            error = InvalidRequest(f"the id {gang} belongs to a gang in other pools: choose another, or give none")
            Responder(self._bus, message, self._log).fail(error)

    def _straddles(self, request: AcquireRequest) -> InvalidRequest:
        kept = {pool: shard_of(pool, self._shards()) for pool in pools_of(request)}
        said = ", ".join(f"{pool} ({f'shard {name}' if name else 'no shard'})" for pool, name in kept.items())
        return InvalidRequest(
            f"one gang must have all its pools in one shard of the coordinators, and these are not: {said}",
            details={"shards": kept},
        )

    # -- one of all leaders for each request --------------------------------------------------------------------------

    def _fall_back(self, message: Message) -> None:
        operation, request, gang = self._read(message)
        if self._is_ours(request, gang):
            return
        if operation == GangOperation.LIST and self._trusted():
            self._start(message, self._list(message))
        elif request is None and not gang:
            self._server.take(message)  # says what is wrong with it
        elif not self._trusted():
            return  # another shard may answer
        elif request is not None:
            self._tasks.start(self._direct(message, pools_of(request)[0]))
        else:
            self._tasks.start(self._find(message, gang))

    async def _direct(self, message: Message, pool: str) -> None:
        """An acquire for another shard's pool: its leader, if there is one, has the request already."""
        shards = self._shards()
        name = shard_of(pool, shards)
        if name is None:
            said = "; ".join(f"{other} keeps {', '.join(pools)}" for other, pools in sorted(shards.items()))
            error: GanglineError = InvalidRequest(f"no coordinator keeps pool {pool!r}; of the shards, {said}")
        elif await self._leads(name):
            return
        else:
            error = _leaderless(name)
        if self._trusted():
            Responder(self._bus, message, self._log).fail(error)

    async def _leads(self, shard: str) -> bool:
        """Whether the shard has a leader. One that is slow to say so has the request all the same: if we refused it,
        its gang might form and nobody would know."""
        try:
            return await self._ask(shard, _KNOWS, GangQuery(id="-"), ShardReply) is not None
        except GanglineError:
            return True

    async def _find(self, message: Message, gang: str) -> None:
        """We have no such gang. If no shard has it, say so."""
        where = await self._elsewhere(gang)
        if where is None:
            self._server.take(message)
        elif where and self._trusted():
            Responder(self._bus, message, self._log).fail(_leaderless(where))

    async def _elsewhere(self, gang: str) -> str | None:
        """Which other shard has it: "" if its leader says so, the shard's name if it has no leader, None if no shard
        has it."""
        others = [name for name in self._shards() if name != self._shard.name]
        answers = await self._ask_all(others, _KNOWS, GangQuery(id=gang), ShardReply)
        if any(answer is not None and answer.known for answer in answers):
            return ""
        silent = {name for name, answer in zip(others, answers, strict=True) if answer is None}
        if not silent:
            return None
        try:
            entry = await self._kv.get(Names.gang_key(gang))
        except GanglineError as error:
            self._log.info("cannot look for a gang: %s", error, extra={"action": "shards.find", "gang": gang})
            return None
        record = parse(GangRecord, entry, self._log) if entry is not None else None
        owner = shard_of(pools_of(record.spec)[0], self._shards()) if record is not None else None
        return owner if owner in silent else None

    async def _list(self, message: Message) -> None:
        responder = Responder(self._bus, message, self._log)
        try:
            wanted = parse_request(GangListRequest, responder.body())
        except GanglineError as error:
            responder.fail(error)
            return
        others = [name for name in sorted(self._shards()) if name != self._shard.name]
        answers = await self._ask_all(others, _LIST, wanted, GangListReply)
        gangs: list[GangReply] = list(self._server.list(wanted).gangs)
        for answer in answers:
            gangs += answer.gangs if answer is not None else ()
        if tenant := self._server.tenant_of(responder):
            gangs = [gang for gang in gangs if gang.tenant == tenant]
        gangs.sort(key=lambda gang: (gang.created_at, gang.id))
        silent = tuple(name for name, answer in zip(others, answers, strict=True) if answer is None)
        whole = GangListReply(gangs=tuple(gangs), missing=silent)
        bare = tuple(gang.model_copy(update={"seats": ()}) for gang in gangs)
        responder.reply(whole, shorter=GangListReply(gangs=bare, missing=silent))

    def _read(self, message: Message) -> tuple[str, AcquireRequest | None, str]:
        """The operation; what an acquire asks for; and the id of the gang that another request is about. None and "" if
        it has none that can be read."""
        operation, _ = self._names.parse_gang(message.subject)
        try:
            body = codec.decode_request(message.data, Format.of(message.headers))
            if operation == GangOperation.ACQUIRE:
                return operation, parse_request(AcquireRequest, body), ""
        except GanglineError:
            return operation, None, ""
        return operation, None, _id_of(body) if operation in _OF_ONE else ""

    # -- among leaders ------------------------------------------------------------------------------------------------

    async def _ask(self, shard: str, operation: str, request: BaseModel, reply: type[R]) -> R | None:
        """None: nobody leads there.

        Raises:
            GanglineError: its leader does not answer.
        """
        subject, body = self._names.shard(shard, operation), codec.to_json(request.model_dump(mode="json"))
        try:
            try:
                answer = await self._bus.request(self._names.private(subject), body, timeout_s=_ASK_S)
            except NoResponders:  # perhaps an older version
                answer = await self._bus.request(subject, body, timeout_s=_ASK_S)
            return read_answer(answer, reply, f"shard {shard}")
        except NoResponders:
            return None
        except GanglineError as error:
            self._log.info("shard %s did not answer: %s", shard, error, extra={"action": "shards.ask", "shard": shard})
            raise

    async def _ask_all(
        self, shards: Sequence[str], operation: str, request: BaseModel, reply: type[R]
    ) -> list[R | None]:
        """None: nobody leads there, or it does not answer."""
        asked = (self._ask(shard, operation, request, reply) for shard in shards)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer if isinstance(answer, reply) else None for answer in answers]

    def _peer(self, message: Message) -> None:
        """The leader of another shard asks."""
        if not self._trusted():
            return
        responder = Responder(self._bus, message, self._log)
        try:
            if message.subject.endswith(f".{_KNOWS}"):
                responder.reply(
                    ShardReply(known=self._core.get(parse_request(GangQuery, responder.body()).id) is not None)
                )
            elif message.subject.endswith(f".{_LIST}"):
                found = self._server.list(parse_request(GangListRequest, responder.body()))
                bare = tuple(gang.model_copy(update={"seats": ()}) for gang in found.gangs)
                responder.reply(found, shorter=GangListReply(gangs=bare))
        except GanglineError as error:
            responder.fail(error)


def _id_of(body: Any) -> str:
    found = (body.get("id") or body.get("gang")) if isinstance(body, dict) else None
    return found if isinstance(found, str) else ""


def _leaderless(shard: str) -> NoCoordinator:
    return NoCoordinator(f"shard {shard} of the coordinators has no leader right now: ask again")
