"""`client.gang(...)`: slots on many workers, all or nothing, that live, fail and restart together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, TypedDict, TypeVar, overload

from ...bus.port.bus import Bus
from ...runtime.clock import Environment
from ...runtime.timers import Backoff
from ...runtime.tracebacks import FRAMES_HIDDEN, frames_hidden
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GangFailed,
    GanglineError,
    GangNotFormed,
    GangRestarted,
    InvalidRequest,
    InvalidSettings,
    LeaseError,
    NoWorkers,
    OutcomeUnknown,
    SelectionUsed,
    TaskCancelled,
    TaskCrashed,
    WrongPool,
)
from ...schemas.handles import P, R, decoded, method_of
from ...schemas.messages.gangs import AcquireRequest, GangEvent
from ...schemas.names import Names
from ...schemas.records.gangs import Bundle, HostPort
from ...schemas.text import brief
from ...telemetry.tracing import Attributes, tracer
from ..calls.call import DEFAULTS, Call, CallOptions
from ..leases.lease import RequestObserver
from ..routing.settings import RouterSettings
from .collective_call import Arguments, by_rank, run_on_all, same_for_all
from .coordinator_client import CoordinatorClient
from .members import Formation, GangMember, MemberChannelFactory
from .owner import EventQueue, GangOwner, OwnedState

T = TypeVar("T")

VERDICT_S: Final = 4.5
"""How long a call whose member seems lost waits for the coordinator to report the state of the gang: a frozen worker is
detected within 4 s."""

_MEMBER_LOST: Final = (OutcomeUnknown, TaskCrashed, TaskCancelled, LeaseError, NoWorkers)
"""Errors of one rank that the end of the whole generation may have caused."""

_UNREACHED: Final = (OutcomeUnknown, NoWorkers, Disconnected)
"""Errors of a rank that are not failures of its task."""

_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangCallOptions:
    """Options of tasks on a gang."""

    call: CallOptions = DEFAULTS
    retries: int = 0
    """How often a run (or call) is retried: on the next generation if its own was torn down; on the same one if a
    member could not be reached and either nothing can have started or the task is idempotent. Tasks then run again from
    the beginning."""
    partial: bool = False
    """Whether a run waits for all ranks and returns errors among the results, instead of raising the first error."""


class Gang:
    """A gang that this process owns; renewed automatically while held. Not for use after its `async with` block."""

    def __init__(
        self,
        owner: GangOwner,
        *,
        deadline: Callable[[CallOptions], float | None],
        observe: RequestObserver,
        options: GangCallOptions,
    ) -> None:
        self._owner = owner
        self._deadline = deadline
        self._observe = observe
        self._options = options

    # -- properties -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._owner.id

    @property
    def generation(self) -> int:
        """Generation of the current members; grows with each restart."""
        return self._newest.generation

    @property
    def size(self) -> int:
        """Number of ranks (the world size). With a range of sizes, that of the current members."""
        return self._newest.size

    @property
    def members(self) -> tuple[GangMember, ...]:
        """By rank."""
        return self._newest.members

    @property
    def rendezvous(self) -> HostPort | None:
        """Host and port at rank 0's worker where the tasks can meet; the port was free when the gang was formed."""
        return None if self._newest.rendezvous is None else self._newest.rendezvous.plain

    @property
    def fence(self) -> int:
        """Fencing token: grows across the whole system with each generation, so that resources can reject stale
        holders."""
        return self._newest.fence

    @property
    def restarts(self) -> int:
        """How often the gang was formed again or repaired, for any reason: the number of generations before this one.
        The ledger, answers and events have the same number."""
        return self._owner.core.restarts

    @property
    def failures(self) -> int:
        """Failures counted against `max_restarts` so far; drains and preemptions are not counted."""
        return self._owner.core.failures

    @property
    def state(self) -> OwnedState:
        """Formed, repairing, restarting, unconfirmed or ended."""
        return self._owner.state

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks that are lost and being replaced while the others continue (`restart="restart_member"`), ascending.
        Tasks in progress there have ended with GangRestarted; new ones wait for the replacement."""
        return tuple(sorted(self._newest.lost))

    @property
    def lost(self) -> GanglineError | None:
        """Why nothing can be sent now: ended, between two generations, or not renewed in time. None while tasks can be
        sent to at least the ranks that are not in `lost_ranks`."""
        try:
            self._owner.check()
        except GanglineError as error:
            return error
        return self._newest.down() if self._newest.down is not None else None

    # -- work -----------------------------------------------------------------------------------------------------

    def options(
        self,
        *,
        timeout_s: float | None = None,
        deadline_s: float | None = None,
        idempotent: bool | None = None,
        retries: int | None = None,
        partial: bool | None = None,
    ) -> Gang:
        """A cheap copy of this gang with these options; those not given are inherited.

        Args:
            timeout_s: limit of one attempt; its tasks are cancelled when it passes. See CallOptions.
            deadline_s: limit of each call or run from its start, all attempts together. Default: `timeout_s`.
            idempotent: see CallOptions.
            retries: see GangCallOptions.
            partial: see GangCallOptions.

        Raises:
            InvalidSettings: a value is out of bounds.
        """
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
            raise InvalidSettings(f"retries is {retries!r}, it must be a whole number, at least 0")
        mine = self._options
        call = replace(
            mine.call,
            timeout_s=mine.call.timeout_s if timeout_s is None else timeout_s,
            deadline_s=mine.call.deadline_s if deadline_s is None else deadline_s,
            idempotent=mine.call.idempotent if idempotent is None else idempotent,
        )
        options = GangCallOptions(
            call=call,
            retries=mine.retries if retries is None else retries,
            partial=mine.partial if partial is None else partial,
        )
        return Gang(self._owner, deadline=self._deadline, observe=self._observe, options=options)

    @overload
    async def run(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]: ...

    @overload
    async def run(  # a task that yields: the list of its items, by rank
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[list[R]]: ...

    @overload
    async def run(
        self, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    async def run(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[R]: ...

    @frames_hidden
    async def run(self, method: Any, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a task on all ranks with the same arguments, and return the results by rank.

        Waits for the next generation if the gang is restarting. Cancelling cancels all ranks.

        Args:
            method: name of the task; each rank runs that of its own pool. Or the task's function, as for Client.call.
            *args: positional arguments of the task.
            **kwargs: named arguments of the task.

        Raises:
            GangFailed: a rank failed (`rank`, `__cause__`) and the others were cancelled; the gang stays formed.
            GangRestarted: the generation was torn down; the next one follows. See `options(retries=...)`.
            GangEnded, GangFailed: the gang has ended.
            LeaseExpired: it could not be renewed in time; nothing was sent.
            DeadlineExceeded, InvalidRequest: as for Client.call.
        """
        return await self._run(method, lambda size: same_for_all(size, args, kwargs))

    @overload
    async def run_each(
        self, method: str, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /
    ) -> list[Any]: ...

    @overload
    async def run_each(
        self,
        method: Callable[..., AsyncIterator[R] | Iterator[R]],
        arguments: Sequence[Any] | Callable[[int], Sequence[Any]],
        /,
    ) -> list[list[R]]: ...

    @overload
    async def run_each(
        self,
        method: Callable[..., Coroutine[Any, Any, R]],
        arguments: Sequence[Any] | Callable[[int], Sequence[Any]],
        /,
    ) -> list[R]: ...

    @overload
    async def run_each(
        self, method: Callable[..., R], arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /
    ) -> list[R]: ...

    @frames_hidden
    async def run_each(self, method: Any, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /) -> list[Any]:
        """Run a task on all ranks, each with its own arguments; otherwise like `run`.

        Args:
            arguments: by rank: a tuple or list of positional arguments, or a dict of named ones. Or a function that
                returns this list for a world size, which may change at restarts of a gang with a range of sizes.

        Raises:
            InvalidArguments: the number of items is not the number of ranks; nothing was sent.
        """
        return await self._run(
            method, lambda size: by_rank(size, arguments(size) if callable(arguments) else arguments)
        )

    @overload
    async def call(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    async def call(
        self, rank: int, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    async def call(
        self, rank: int, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def call(self, rank: int, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @frames_hidden
    async def call(self, rank: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on one rank and return its result. Waits while all slots of the member are in use. `method` is as
        for `run`.

        Raises:
            GanglineError: the task's error; otherwise as `run`.
        """

        name, task = (method, None) if isinstance(method, str) else method_of(method)

        async def once(formation: Formation, deadline: float | None) -> Any:
            order = self._order(formation, rank, name, (args, kwargs), deadline)
            with self._observe(order) as (_, span):
                return await self._guarded(formation, rank, formation.lines[rank].call(order, span), deadline)

        result = await self._retried(name, once, rank)
        return result if task is None else decoded(task, result)

    @overload
    def stream(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]: ...

    @overload
    def stream(
        self, rank: int, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]: ...

    async def stream(self, rank: int, method: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run a task on one rank and yield its items. Leaving the loop early cancels the task. Never retried. `method`
        is as for `run`.

        Raises:
            GanglineError: as `call`; StreamBroken if items were lost.
        """
        with FRAMES_HIDDEN:
            name, task = (method, None) if isinstance(method, str) else method_of(method)
            deadline = self._deadline(self._options.call)
            formation = await self._living(deadline, rank)
            order = self._order(formation, rank, name, (args, kwargs), deadline)
            with self._observe(order) as (_, span):
                items = formation.lines[rank].stream(order, span)
                async with contextlib.aclosing(items):
                    while True:
                        try:
                            item = await self._guarded(formation, rank, anext(items), deadline)
                        except StopAsyncIteration:
                            return
                        yield item if task is None else task.decode(item)

    @frames_hidden
    async def wait_formed(self) -> int:
        """The current generation; waits for the next one between two generations and while ranks are lost.

        Raises:
            GangEnded, GangFailed, ClosedError: there will be no further generation.
        """
        return (await self._owner.formed()).generation

    @frames_hidden
    async def ready(self) -> int:
        """The current generation, once the `gang_start` functions of all its members have succeeded. Waits for that,
        across restarts, until the deadline of `options(timeout_s=...)`, if there is one.

        Raises:
            GangNotFormed: not ready by the deadline; the gang stays.
            GangEnded, GangFailed, ClosedError: it has ended, for example because its start failed too often.
        """
        try:
            async with asyncio.timeout_at(self._deadline(self._options.call)):
                return (await self._owner.ready()).generation
        except TimeoutError:
            raise GangNotFormed(
                f"gang {self.id} was not ready by the deadline: its members have not all started"
            ) from (self._newest.down() if self._newest.down is not None else None)

    def events(self) -> AsyncGenerator[GangEvent, None]:
        """Events of this gang, from now until it has ended. Events may be lost."""
        return _events(self._owner.listen())

    async def release(self) -> None:
        """Release the gang; returns when its members have stopped. Idempotent. Calls in progress end with
        ClosedError."""
        self._owner.check_loop()
        await asyncio.shield(self._owner.release())

    def __repr__(self) -> str:
        lost = self.lost
        state = f"lost: {lost.code}" if lost else self.state.value
        return f"Gang({self.id}, generation={self.generation}, size={self.size}, {state})"

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _newest(self) -> Formation:
        assert self._owner.formation is not None, "acquired"
        return self._owner.formation

    async def _living(self, deadline: float | None, rank: int | None = None) -> Formation:
        """The generation to whose members (or to whose `rank`) tasks can be sent."""
        self._owner.check()
        if self._newest.fate(rank) is None:
            return self._newest
        try:
            async with asyncio.timeout_at(deadline):
                return await self._owner.formed(rank)
        except TimeoutError:
            fate = self._newest.fate(rank)
            what = "was torn down and not formed again" if self._newest.down is not None else "was not repaired"
            text = f"gang {self.id} {what} by the deadline"
            raise GangNotFormed(text) from (None if fate is None else fate())

    async def _run(self, target: object, arguments: Callable[[int], list[Arguments]]) -> list[Any]:
        method, task = (target, None) if isinstance(target, str) else method_of(target)

        async def once(formation: Formation, deadline: float | None) -> list[Any]:
            given = arguments(formation.size)
            run = self._owner.next_run()
            attributes: Attributes = {"gangline.gang": self.id, "gangline.generation": formation.generation}

            async def on_rank(rank: int, item: Arguments) -> Any:
                order = self._order(formation, rank, method, item, deadline, run)
                with self._observe(order) as (_, span):
                    return await self._guarded(formation, rank, formation.lines[rank].call(order, span), deadline)

            with tracer.span(f"gangline.gang.run {method}", kind="client", attributes=attributes):
                return await run_on_all(formation, on_rank, given, partial=self._options.partial)

        results = await self._retried(method, once)
        if task is None:
            return results
        return [item if isinstance(item, GanglineError) else decoded(task, item) for item in results]

    async def _retried(
        self, method: str, once: Callable[[Formation, float | None], Awaitable[T]], rank: int | None = None
    ) -> T:
        """`rank`: the only rank used by `once`; None: all."""
        deadline = self._deadline(self._options.call)
        left, started = self._options.retries, False
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while True:
            try:
                formation = await self._living(deadline, rank)
                results = await once(formation, deadline)
            except GanglineError as error:
                again = left > 0 and self._worth_another(error, method)
                started = error.may_have_started = started or error.may_have_started
                if not again:
                    raise
                restarted = isinstance(error, GangRestarted)
            else:
                failed = [item for item in _items(results) if isinstance(item, GanglineError)]
                if left == 0 or not any(self._worth_another(item, method) for item in failed):
                    for item in failed:
                        item.may_have_started = started or item.may_have_started
                    return results
                started = True
                restarted = any(isinstance(item, GangRestarted) for item in failed)
            left -= 1
            if not restarted:
                await asyncio.sleep(backoff.next_s())

    def _worth_another(self, error: GanglineError, method: str) -> bool:
        """Whether a run that ended with this error may be retried."""
        if isinstance(error, GangRestarted):
            return True
        cause = error.__cause__ if isinstance(error, GangFailed) else error
        if not isinstance(cause, _UNREACHED):
            return False
        return error.may_have_started is False or self._idempotent(method)

    def _idempotent(self, method: str) -> bool:
        if self._options.call.idempotent is not None:
            return self._options.call.idempotent
        name = method.rpartition(".")[2]
        return all(line.idempotent(name) for line in self._newest.lines)

    async def _guarded(self, formation: Formation, rank: int, work: Awaitable[Any], deadline: float | None) -> Any:
        """Replace an error that the end of the rank or of the whole generation may have caused by one that says so, if
        that is known by the deadline."""
        try:
            return await work
        except (*_MEMBER_LOST, GangFailed) as error:
            if isinstance(error, GangFailed) and not _did_not_start(error, formation):
                raise
            fate = formation.fate(rank)
            if fate is None:
                self._owner.suspect()
                left_s = VERDICT_S if deadline is None else deadline - asyncio.get_running_loop().time()
                fate = await formation.wait_fate(rank, max(0.0, min(VERDICT_S, left_s)))
            if fate is None:
                raise
            whole = fate()
            whole.may_have_started = error.may_have_started
            raise whole from error

    def _order(
        self,
        formation: Formation,
        rank: int,
        method: str,
        arguments: Arguments,
        deadline: float | None,
        run: int = 0,
    ) -> Call:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < formation.size:
            raise InvalidRequest(f"rank is {rank!r}: ranks of this gang go from 0 to {formation.size - 1}")
        pool = formation.lines[rank].seat.pool
        endpoint, dot, name = method.rpartition(".")
        if dot and endpoint != pool:
            raise WrongPool(f"rank {rank} is of pool {pool!r}, not of {endpoint!r}")
        order = Call(
            endpoint=pool,
            method=name,
            args=arguments[0],
            kwargs=arguments[1],
            options=self._options.call,
            deadline=deadline,
            run=run,
        )
        order.generation = formation.later
        return order


class GangAcquisition:
    """`async with client.gang(...) as gang`: waits until it is formed, releases it on exit.

    A normal exit returns when the members have stopped; after an error, it returns at once and the release continues.
    """

    def __init__(self, make: Callable[[], Awaitable[Gang]]) -> None:
        self._make = make
        self._gang: Gang | None = None

    @frames_hidden
    async def __aenter__(self) -> Gang:
        if self._gang is not None:
            raise SelectionUsed("this was entered already: call gang again")
        self._gang = await self._make()
        return self._gang

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gang is None:
            return
        if error is not None:
            # Nothing is awaited: neither a coordinator that does not answer nor a cancellation may delay or replace the
            # body's error.
            self._gang._owner.release()
            return
        with contextlib.suppress(ClosedError):
            await self._gang.release()


def _did_not_start(error: GangFailed, formation: Formation) -> bool:
    """Whether a worker reports that its member did not start; the coordinator decides what follows."""
    return error.may_have_started is False and error.generation == formation.generation


async def _events(queue: EventQueue) -> AsyncGenerator[GangEvent, None]:
    while (event := await queue.get()) is not None:
        yield event


def _items(results: object) -> list[object]:
    """Results by rank, possibly with errors among them; empty for the result of one rank."""
    return list(results) if isinstance(results, list) else []


class GangOptions(TypedDict, total=False):
    """Arguments of `Client.gang`. None means the default, except for `max_restarts`."""

    pool: str | None
    """Pool of the members, if all have the same shape; otherwise give `bundles`."""
    size: int | tuple[int, int] | None
    """Number of members. `(2, 8)`: formed as soon as 2 fit, with up to 8 if there is room. Each generation is placed
    again, so its size may differ from the one before; see `gang.size`. Above the minimum, only slots that are free and
    that no other gang in the queue needs are used. Default: 1."""
    slots: int | None
    """Slots per member. Default: 1."""
    labels: Mapping[str, str] | None
    """Labels that the workers must have."""
    bundles: Sequence[Bundle | Mapping[str, Any]] | None
    """Instead of these four: members of several shapes, across several pools; see schemas.records.gangs.Bundle."""
    strategy: str | None
    """`pack`, `spread`, `strict_pack` (all on one node) or `strict_spread` (one node each)."""
    deadline_s: float | None
    """Give up when not formed within this many seconds. None: wait forever, as long as a coordinator leads."""
    wait_for_workers: bool | None
    """Wait even if the workers that are registered now could never hold the gang (rolling deployment, autoscaler);
    otherwise GangImpossible is raised at once."""
    priority: int | None
    """Gangs with a higher priority go first."""
    preempt: bool | None
    """Whether gangs of lower priority may be torn down to make room."""
    restart: str | None
    """What to do when a member fails: `restart_gang`, `restart_member` or `fail`."""
    max_restarts: int | None
    """Failures before it ends; None: unlimited."""
    backoff_s: float | None
    """Wait before the first restart, in seconds; doubles with each."""
    grace_s: float | None
    """How long a member may take to stop before it is killed, in seconds."""
    start_timeout_s: float | None
    """How long the `gang_start` functions of a member may take, in seconds, before its start counts as failed."""
    ttl_s: float | None
    """The gang ends when it is not renewed for this many seconds: how long it outlives this process."""


class GangClient:
    """Acquires gangs, and releases all when the router stops."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        ambient: Environment,
        settings: RouterSettings,
        *,
        lines: MemberChannelFactory,
        deadline: Callable[[CallOptions], float | None],
        observe: RequestObserver,
        owner: str,
    ) -> None:
        self.coordinator_client = CoordinatorClient(bus, names)
        self._bus = bus
        self._names = names
        self._ambient = ambient
        self._settings = settings
        self._lines = lines
        self._deadline = deadline
        self._observe = observe
        self._owner_name = owner
        self._owned: dict[GangOwner, object] = {}
        self._stopped = False

    def gang(self, fields: Mapping[str, Any], options: CallOptions) -> GangAcquisition:
        """See Client.gang. `fields` are those of AcquireRequest.

        Raises:
            InvalidRequest: names each invalid field.
        """
        given = {name: value for name, value in fields.items() if value is not None or name == "max_restarts"}
        given.setdefault("owner", self._owner_name)
        if "labels" in given:
            labels: Any = given["labels"]
            if not isinstance(labels, Mapping):
                raise InvalidSettings(f"labels is {brief(labels)}: give a dict of texts")
            given["labels"] = dict(labels)
        if "bundles" in given:
            bundles: Any = given["bundles"]
            if not isinstance(bundles, Iterable):
                raise InvalidSettings(f"bundles is {brief(bundles)}: give a list of Bundle")
            given["bundles"] = tuple(_plain(bundle) for bundle in bundles)
        wanted = AcquireRequest.parse(given)

        async def make() -> Gang:
            request = wanted.model_copy(
                update={
                    "id": wanted.id or f"g{self._ambient.token()}",
                    "owner_token": wanted.owner_token or self._ambient.token(),
                    "traceparent": wanted.traceparent or tracer.traceparent(),
                }
            )
            return await self._acquire(request, options)

        return GangAcquisition(make)

    async def _acquire(self, request: AcquireRequest, options: CallOptions) -> Gang:
        if self._stopped:
            raise ClosedError("this client was closed")
        owner = GangOwner(
            self._bus, self._names, request, coordinator_client=self.coordinator_client, lines=self._lines
        )
        self._owned[owner] = None
        owner.on_released = self._owned.pop
        inherited = self._deadline(DEFAULTS)
        deadline = None if request.deadline_s is None else asyncio.get_running_loop().time() + request.deadline_s
        if inherited is not None:
            deadline = inherited if deadline is None else min(deadline, inherited)
        try:
            await owner.acquire(deadline, self._settings.saturated_wait_s)
        except BaseException:
            self._owned.pop(owner, None)
            raise
        if self._stopped:
            await owner.abandon(ClosedError("this client was closed"))
            raise ClosedError("this client was closed")
        return Gang(owner, deadline=self._deadline, observe=self._observe, options=GangCallOptions(call=options))

    async def stop(self) -> None:
        """Release all gangs without waiting for their members; calls on them end with ClosedError. Idempotent."""
        self._stopped = True
        owned, self._owned = list(self._owned), {}
        for owner in owned:
            await owner.abandon(ClosedError("this client was closed"))

    def statistics(self) -> dict[str, int]:
        """The number of gangs owned now."""
        return {"gangs": len(self._owned)}

    def __repr__(self) -> str:
        return f"GangClient({', '.join(owner.id for owner in self._owned) or 'none'})"


def _plain(bundle: object) -> dict[str, Any]:
    if not isinstance(bundle, (Bundle, Mapping)):
        raise InvalidSettings(f"{brief(bundle)} is not a Bundle: give Bundle(...), or a dict of its fields")
    return bundle.model_dump() if isinstance(bundle, Bundle) else dict(bundle)
