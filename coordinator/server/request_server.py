"""Serves requests of owners, operators and workers on the subjects `<ns>.gang.<operation>`. Only a leader does.

A request from another account comes from a tenant, which sees only its own gangs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from ...bus.port.bus import Bus, KeyValue, Message
from ...bus.rpc.responder import OperationTable, Responder
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GangImpossible, GanglineError, NoCoordinator, NotOwner, UnknownGang
from ...schemas.messages.gangs import (
    AcquireRequest,
    EndRequest,
    GangListReply,
    GangListRequest,
    GangObstacle,
    GangQuery,
    GangReply,
    GangWhyReply,
    GetRequest,
    MemberCause,
    MemberReport,
    OwnedRequest,
    ReportReply,
)
from ...schemas.messages.operations import parse_request
from ...schemas.names import GangOperation, Names, WorkerId, public_id
from ...schemas.records.gangs import GangState
from ...schemas.records.workers import LeaseRecord
from ...schemas.wire.headers import account_of
from ...telemetry.logs import Log
from ..core.gang_core import SchedulerCore
from ..ledger.storage import parse
from ..ledger.worker_registry import WorkerRegistry
from ..model import effects as do
from ..model import events as on
from .observation import GangTracer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A request that was passed to the core."""

    responder: Responder
    operation: str
    acquire: on.AcquireAsked | None = None
    asked_at: float = 0.0
    """Of an acquire: when it arrived. If refused as impossible, it is tried once more after a newer read."""
    final: bool = True
    """No second attempt."""


Counts = dict[str, list[int]]

_MOST_LATE: Final = 1024


class LateRequests:
    """Requests that were delivered to the leader, and read when it might no longer be one, such as after a freeze.

    Another leader may have the same ones, and two answers would be worse than none. But if this coordinator leads again
    and nobody led in between, nobody else will ever answer them: then their senders are told to ask again. The oldest
    are forgotten.
    """

    def __init__(self, bus: Bus, log: Log) -> None:
        self._bus = bus
        self._log = log
        self._requests: deque[tuple[int, Message]] = deque(maxlen=_MOST_LATE)
        self._term = 0

    def add(self, message: Message, term: int) -> None:
        """A request that was delivered to us in `term`."""
        if term + 1 == self._term:
            self._refuse(message)
        else:
            self._requests.append((term, Message(message.subject, b"", message.reply, message.headers)))

    def leads(self, term: int) -> None:
        """We lead again. Each term has the number after the previous one, whoever led it."""
        self._term = term
        for number, message in self._requests:
            if number + 1 == term:
                self._refuse(message)
        self._requests.clear()

    def _refuse(self, message: Message) -> None:
        Responder(self._bus, message, self._log).fail(_stepped_down())


class RequestServer:
    """Takes requests during one leadership, and answers each exactly once."""

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        names: Names,
        clock: EventClock,
        tasks: TaskSet,
        core: SchedulerCore,
        worker_registry: WorkerRegistry,
        traces: GangTracer,
        *,
        feed: Callable[[on.Happening], None],
        trusted: Callable[[], bool],
        late: Callable[[Message], None],
        counts: Counts,
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            trusted: whether we may act as the leader at this instant.
            late: called with requests that are read when we might no longer be the leader.
            counts: requests and errors by operation, counted on.
        """
        self._bus = bus
        self._kv = kv
        self._names = names
        self._clock = clock
        self._tasks = tasks
        self._core = core
        self._registry = worker_registry
        self._traces = traces
        self._feed = feed
        self._trusted = trusted
        self._late = late
        self._counts = counts
        self._log = log
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._resigned = False
        self._table = OperationTable("a coordinator", bus, log, counts=counts)
        self._table.add(
            {
                GangOperation.ACQUIRE: self._acquire,
                GangOperation.RENEW: self._renew,
                GangOperation.RELEASE: self._release,
                GangOperation.END: self._end,
                GangOperation.GET: self._get,
                GangOperation.LIST: self._list,
                GangOperation.WHY: self._why,
                GangOperation.REPORT: self._report,
            }
        )

    def __len__(self) -> int:
        """Requests not yet answered."""
        return len(self._waiting)

    def take(self, message: Message) -> None:
        """One request."""
        if self._trusted():
            self._table.take(self._names.parse_gang(message.subject)[0], message)
        elif self._resigned:  # so nobody else has it
            Responder(self._bus, message, self._log).fail(_stepped_down())
        else:
            self._late(message)

    def answer(self, effect: do.AnswerRequest) -> None:
        """The core's answer to a request."""
        waiting = self._waiting.pop(effect.reply_to)
        if effect.error is not None:
            if isinstance(effect.error, GangImpossible) and not waiting.final:
                self._waiting[effect.reply_to] = replace(waiting, final=True)
                self._tasks.start(self._look_again(effect))
                return
            self._counts[waiting.operation][1] += 1
            waiting.responder.fail(effect.error)
            if waiting.acquire is not None:
                self._forget(waiting.acquire, effect.error)
        elif effect.reply is not None:
            waiting.responder.reply(effect.reply)

    async def _look_again(self, effect: do.AnswerRequest) -> None:
        """A worker may have just registered, and we may not have seen it yet: read before calling the gang
        impossible."""
        waiting = self._waiting[effect.reply_to]
        try:
            await self._registry.pull(waiting.asked_at)
        except GanglineError as error:
            self._log.info("cannot read the workers: %s", error, extra={"action": "gang.look_again"})
            self.answer(effect)
            return
        assert waiting.acquire is not None
        self._feed(replace(waiting.acquire, **self._clock.moment()))

    def _forget(self, event: on.AcquireAsked, error: GanglineError) -> None:
        """A gang that was never queued has no trace."""
        gang = event.request.id or event.new_id
        if self._core.get(gang) is None:
            self._traces.refused(gang, error)

    def close(self, *, resigned: bool) -> None:
        """We no longer lead: waiting callers ask another leader."""
        self._resigned = resigned
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.responder.fail(_stepped_down())

    def _number(self, responder: Responder, operation: GangOperation) -> int:
        number = next(self._numbers)
        self._waiting[number] = _Waiting(responder=responder, operation=operation)
        return number

    # -- owners ------------------------------------------------------------------------------------------------------

    def _acquire(self, responder: Responder, body: Any) -> None:
        request = AcquireRequest.parse(body)
        new_id = f"g{self._clock.token()}"
        gang = request.id or new_id
        parent = request.traceparent or responder.traceparent
        if self._core.get(gang) is None:
            goes_on = self._traces.asked(gang, parent)
            if goes_on != request.traceparent:
                request = request.model_copy(update={"traceparent": goes_on})
        number = next(self._numbers)
        event = on.AcquireAsked(
            **self._clock.moment(),
            request=request,
            reply_to=number,
            new_id=new_id,
            new_token=self._clock.token(),
            tenant=self.tenant_of(responder),
        )
        self._waiting[number] = _Waiting(
            responder=responder, operation=GangOperation.ACQUIRE, acquire=event, asked_at=event.now, final=False
        )
        self._feed(event)

    def _renew(self, responder: Responder, body: Any) -> None:
        request = parse_request(OwnedRequest, body)
        number = self._number(responder, GangOperation.RENEW)
        self._feed(on.RenewAsked(**self._clock.moment(), request=request, reply_to=number))

    def _release(self, responder: Responder, body: Any) -> None:
        request = parse_request(OwnedRequest, body)
        number = self._number(responder, GangOperation.RELEASE)
        self._feed(on.ReleaseAsked(**self._clock.moment(), request=request, reply_to=number))

    def _end(self, responder: Responder, body: Any) -> None:
        request = parse_request(EndRequest, body)
        told = {"action": "gang.end_asked", "gang": request.id, "reason": request.reason}
        self._log.info("an operator ends gang %s: %s", request.id, request.reason or "no reason given", extra=told)
        number = self._number(responder, GangOperation.END)
        self._feed(on.EndAsked(**self._clock.moment(), request=request, reply_to=number))

    # -- operators ---------------------------------------------------------------------------------------------------

    def _get(self, responder: Responder, body: Any) -> None:
        query = parse_request(GetRequest, body)
        found = self._seen(query.id, responder)
        if query.owner_token is not None:
            owned = self._core.get_owned(query.id, query.owner_token)
            if owned is None:
                raise NotOwner(f"gang {query.id} belongs to another owner: ask without owner_token")
            responder.reply(owned)
        else:
            responder.reply(found.public())

    def tenant_of(self, responder: Responder) -> str:
        """The tenant that asks; empty: a user of our own account."""
        return self._core.tenant_of(account_of(responder.headers)) if responder.headers else ""

    def _seen(self, gang: str, responder: Responder) -> GangReply:
        """The gang, if the requester may see it."""
        found, tenant = self._core.get(gang), self.tenant_of(responder)
        if found is None or (tenant and found.tenant != tenant):
            raise _unknown(gang)
        return found

    def list(self, wanted: GangListRequest, tenant: str = "") -> GangListReply:
        """The gangs of this leader; only those of a tenant, if one asks."""
        gangs = (g for g in self._core.gangs() if wanted.gangset is None or g.gangset == wanted.gangset)
        return GangListReply(gangs=tuple(gang.public() for gang in gangs if not tenant or gang.tenant == tenant))

    def _list(self, responder: Responder, body: Any) -> None:
        found = self.list(parse_request(GangListRequest, body), self.tenant_of(responder))
        bare = tuple(gang.model_copy(update={"seats": ()}) for gang in found.gangs)
        responder.reply(found, shorter=GangListReply(gangs=bare))

    def _why(self, responder: Responder, body: Any) -> None:
        query = parse_request(GangQuery, body)
        self._seen(query.id, responder)
        self._tasks.start(self._say_why(self._number(responder, GangOperation.WHY), query.id))

    async def _say_why(self, number: int, gang: str) -> None:
        responder = self._waiting[number].responder
        reply = self._core.why(gang)
        if reply is None:
            del self._waiting[number]
            responder.fail(_unknown(gang))
            return
        members = {public_id(seat.token) for other in self._core.gangs() for seat in other.seats}
        try:
            reply = await name_leases(
                self._kv, self._names, reply, members=members, wall=self._clock.wall, log=self._log
            )
        except GanglineError as error:
            # Reply in any case with what the core knows.
            self._log.info("cannot read the leases: %s", error, extra={"action": "gang.why"})
        del self._waiting[number]
        responder.reply(self._without_others(reply, self.tenant_of(responder)))

    def _without_others(self, reply: GangWhyReply, tenant: str) -> GangWhyReply:
        """For a tenant: only its own gangs by their ids, and no owners of leases."""
        if not tenant:
            return reply
        own = {f"gang {gang.id}" for gang in self._core.gangs() if gang.tenant == tenant}
        obstacles = tuple(
            item
            if item.holder in own
            else item.model_copy(update={"holder": item.holder.partition(" ")[0], "owner": ""})
            for item in reply.obstacles
        )
        return reply.model_copy(update={"obstacles": obstacles})

    # -- workers -----------------------------------------------------------------------------------------------------

    def _report(self, responder: Responder, body: Any) -> None:
        report = parse_request(MemberReport, body)
        _, worker = self._names.parse_gang(responder.subject)
        gang, generation, rank = report.gang, report.generation, report.rank
        if worker is not None and not self._core.seated(gang, generation, rank, worker):
            extra = {"action": "gang.report_ignored", "gang": gang, "worker": str(worker)}
            self._log.info("%s reports rank %d of gang %s (generation %d), which it does not have: ignored",
                           worker, rank, gang, generation, extra=extra)  # fmt: skip
            responder.reply(ReportReply(known=False))
            return
        found = self._core.get(gang)
        known = found is not None and found.state is not GangState.ENDED and found.generation == generation
        moment = self._clock.moment()
        if report.cause is MemberCause.STARTED:
            self._feed(on.MemberStarted(**moment, gang=gang, generation=generation, rank=rank))
        else:
            cause, detail = report.cause, report.detail
            self._feed(
                on.MemberFailed(**moment, gang=gang, generation=generation, rank=rank, cause=cause, detail=detail)
            )
        responder.reply(ReportReply(known=known))


def _unknown(gang: str) -> UnknownGang:
    return UnknownGang(f"gang {gang} is not known: it was never acquired, or ended a while ago")


def _stepped_down() -> NoCoordinator:
    return NoCoordinator("this coordinator no longer leads: ask again, with the same id and owner_token if given")


_MOST_WORKERS: Final = 64
"""Leases are looked up for at most this many workers; for more, only the number of slots is given."""


async def name_leases(
    kv: KeyValue, names: Names, reply: GangWhyReply, *, members: Set[str], wall: float, log: Log
) -> GangWhyReply:
    """`reply` with leases, each with its end, instead of the lines that only say how many slots are in use.

    Args:
        members: public ids of gangs' seats, which are in the reply already.
        wall: Unix time now.

    Raises:
        Unavailable: the ledger cannot be read.
    """
    unnamed = {WorkerId(item.pool, item.worker): item.slots for item in reply.obstacles if item.holder == "tasks"}
    asked = list(unnamed)[:_MOST_WORKERS]
    if not asked:
        return reply
    leases: dict[WorkerId, list[GangObstacle]] = {worker: [] for worker in asked}
    for entry in await kv.entries(*(names.leases_of(worker.pool, worker.worker) for worker in asked)):
        lease = parse(LeaseRecord, entry, log)
        if lease is None or public_id(lease.token) in members:
            continue
        worker = WorkerId(lease.pool, lease.worker)
        leases.setdefault(worker, []).append(
            GangObstacle(
                pool=lease.pool,
                worker=lease.worker,
                holder=f"lease {public_id(lease.token)}",
                slots=lease.slots,
                owner=lease.owner,
                ends_in_s=round(max(0.0, lease.expires_at - wall), 3),
            )
        )
    found: list[GangObstacle] = []
    for item in reply.obstacles:
        worker = WorkerId(item.pool, item.worker)
        if item.holder != "tasks" or worker not in leases:
            found.append(item)
            continue
        found += leases[worker]
        rest = item.slots - sum(lease.slots for lease in leases[worker])
        if rest > 0:
            found.append(item.model_copy(update={"slots": rest}))
    return reply.model_copy(update={"obstacles": tuple(found)})
