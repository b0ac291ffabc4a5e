"""Plays steps of a plan that concern gangs, through the public client or with plain requests, as other languages do."""

from __future__ import annotations

import asyncio
from typing import Any

from ....bus.memory.server import MemoryBus
from ....bus.port.bus import RequestTimeout
from ....bus.rpc.requester import raise_if_error
from ....dispatcher.client.client import Client
from ....dispatcher.gangs.gang import Gang
from ....schemas.errors.base import GangEnded, GanglineError, NotOwner, UnknownGang
from ....schemas.messages.gangs import GangReply
from ....schemas.names import GangOperation
from ....schemas.records.gangs import GangState, RestartPolicy
from ....schemas.wire import codec
from ..calls.outcomes import SimulatedRequest
from ..plan.gang_plan import Breaking, GangKind, GangStep
from ..plan.plan import Moment
from ..stage.stage import Stage
from ..tasks.tasks import rank_result, result_of
from .steps import RequestRecorder

LAST_WORD_S = 1.5
"""How long after the deadline of an acquire the coordinator may still answer."""
RELEASE_S = 5.0
"""How long a release is repeated, and how long to wait for its answer beyond the grace time."""
ASK_S = 1.0


class GangStepRunner(RequestRecorder):
    """Plays one step for one client process."""

    def __init__(self, world: Stage, bus: MemoryBus | None, node: str, client: Client, step: GangStep) -> None:
        super().__init__(world, node, client, f"gang step {step.number}")
        self._bus = bus
        self._step = step

    def __repr__(self) -> str:
        step = self._step
        shapes = " + ".join(f"{each.count}x{each.slots} {each.pool}" for each in step.bundles)
        return f"{step.kind} {step.target or shapes} {step.strategy} {step.restart} {step.breaking}"

    async def run(self) -> None:
        """Play the step to its end. Errors of requests are handled here; unexpected ones are raised."""
        match self._step.kind:
            case GangKind.RUN | GangKind.CALL | GangKind.HOLD:
                await self._own()
            case GangKind.QUEUE:
                await self._queue()
            case GangKind.VANISH:
                await self._ask(GangOperation.ACQUIRE, self._wanted())
            case GangKind.SET_CALL:
                await self._call_set()

    # -- an owned gang --------------------------------------------------------------------------------------------

    async def _own(self) -> None:
        step = self._step
        # A late answer may have to be confirmed before it is trusted, within the time to live.
        acquiring = self._begin(step.deadline_s + LAST_WORD_S + step.ttl_s)
        releasing: SimulatedRequest | None = None
        try:
            async with self._client.gang(
                bundles=step.bundles,
                strategy=step.strategy,
                deadline_s=step.deadline_s,
                priority=step.priority,
                preempt=step.preempt,
                restart=step.restart,
                max_restarts=step.max_restarts,
                backoff_s=step.backoff_s,
                grace_s=step.grace_s,
                ttl_s=step.ttl_s,
            ) as gang:
                self._note(acquiring, f"{gang}")
                self._world.outcomes.failed(acquiring, "acquired", may_have_started=False)
                self._world.gangs.owned[gang.id] = (self._node, gang)
                self._world.aims.passes(Moment.FORMED, gang.id)
                repaired = step.restart is RestartPolicy.RESTART_MEMBER
                if step.kind is GangKind.RUN and repaired and len({each.worker for each in gang.members}) > 1:
                    self._world.aims.passes(Moment.TO_RUN, gang.id)
                try:
                    if step.hold_s:
                        await asyncio.sleep(step.hold_s)
                    if step.kind is GangKind.RUN:
                        await self._runs(gang)
                    elif step.kind is GangKind.CALL:
                        await self._calls(gang)
                finally:
                    self._world.gangs.owned.pop(gang.id, None)
                    releasing = self._begin(2 * (step.grace_s + RELEASE_S) + RELEASE_S)
            assert releasing is not None
            self._world.outcomes.failed(releasing, "released", may_have_started=False)
        except asyncio.CancelledError:
            self._cancelled(acquiring)
            self._cancelled(releasing)
            raise
        except GanglineError as error:
            self._failed(acquiring, error)
            if releasing is not None:
                self._world.checker.fail("error", f"the release of a gang raised {error!r}")

    async def _runs(self, gang: Gang) -> None:
        step = self._step
        gang = gang.options(timeout_s=step.timeout_s, retries=step.retries, partial=step.partial)
        for _ in range(step.runs):
            request = self._begin(step.timeout_s)
            broken = (step.number + self._uses) % gang.size if step.breaking is not Breaking.NOTHING else -1
            arguments = {
                "request": request.id,
                "duration_s": step.duration_s,
                "breaking": str(step.breaking),
                "broken": broken,
                "meets": step.meets,
            }
            with self._recorded(request):
                results = await gang.run("rank", **arguments)
                self._note(request, f"{results}")
                bundles = step.bundles
                least, most = sum(bundle.count for bundle in bundles), sum(bundle.most for bundle in bundles)
                self._check_results(request, results, min(max(least, len(results)), most))

    def _check_results(self, request: SimulatedRequest, results: list[Any], size: int) -> None:
        """One result for each rank, all from one generation."""
        outcomes = self._world.outcomes
        errors = [item for item in results if isinstance(item, GanglineError)]
        if errors and self._step.partial and len(results) == size:
            started = any(error.may_have_started is not False for error in errors) or len(errors) < size
            outcomes.failed(request, "partial", may_have_started=started)
            return
        generation = results[0][2] if results and not errors else 0
        outcomes.succeeded(request, results, [rank_result(request.id, rank, generation) for rank in range(size)])

    async def _calls(self, gang: Gang) -> None:
        step = self._step
        gang = gang.options(timeout_s=step.timeout_s, retries=step.retries)
        await self._several(step.runs, step.together, lambda: self._call(gang))

    async def _call(self, gang: Gang) -> None:
        request = self._begin(self._step.timeout_s, idempotent=bool(self._step.retries))
        await self._answer(request, gang.call(self._uses % gang.size, "work", **self._arguments(request)))

    async def _call_set(self) -> None:
        # With the route `all`, it runs once on each rank.
        request = self._begin(self._step.timeout_s, idempotent=True)
        client = self._client.options(timeout_s=self._step.timeout_s)
        expected = result_of(request.id)
        with self._recorded(request):
            value = await client.call(f"{self._step.target}.work", **self._arguments(request))
            self._note(request, "ok")
            wanted = [expected] * len(value) if isinstance(value, list) else expected
            self._world.outcomes.succeeded(request, value, wanted)

    # -- as other languages do ------------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, Any]:
        step = self._step
        return {
            "id": f"q{step.number}",
            "owner_token": f"owner{step.number}",
            "bundles": [bundle.model_dump(mode="json") for bundle in step.bundles],
            "strategy": step.strategy,
            "deadline_s": step.deadline_s,
            "priority": step.priority,
            "preempt": step.preempt,
            "restart": step.restart,
            "max_restarts": step.max_restarts,
            "backoff_s": step.backoff_s,
            "grace_s": step.grace_s,
            "ttl_s": step.ttl_s,
            "wait": False,
        }

    async def _queue(self) -> None:
        """Acquire a gang, poll until it is formed or the step's time is over, renew it, try to release it without its
        token, and release it."""
        step, loop = self._step, asyncio.get_running_loop()
        owned = {"id": f"q{step.number}", "owner_token": f"owner{step.number}"}
        give_up_at = loop.time() + step.deadline_s + step.hold_s
        state = await self._ask(GangOperation.ACQUIRE, self._wanted())
        while state is not None and loop.time() < give_up_at:
            await asyncio.sleep(step.ttl_s / 4)
            await self._ask(GangOperation.GET, {"id": owned["id"]})
            state = await self._ask(GangOperation.RENEW, owned)
        answer = await self._ask(GangOperation.RELEASE, {**owned, "owner_token": "stranger"}, stranger=True)
        if answer is not None:
            self._world.checker.fail("outcome", f"a stranger released gang {owned['id']}: {answer}")
        await self._ask(GangOperation.RELEASE, owned, timeout_s=step.grace_s + 2 * RELEASE_S)

    async def _ask(
        self, operation: GangOperation, body: dict[str, Any], *, timeout_s: float = ASK_S, stranger: bool = False
    ) -> GangState | None:
        """Make one request and record its outcome. None: it failed, or the run is over."""
        request, bus, since = self._begin(timeout_s), self._bus, self._world.now()
        assert bus is not None
        try:
            answer = await bus.request(self._world.names.gang(operation), codec.to_json(body), timeout_s=timeout_s)
            raise_if_error(answer)
            reply = GangReply.model_validate_json(answer.data)
        except asyncio.CancelledError:
            self._cancelled(request)
            raise
        except GanglineError as error:
            self._note(request, f"{operation}: {error.code}: {error.message}")
            self._world.outcomes.failed(request, f"{operation}: {error.code}", may_have_started=False)
            if stranger and not isinstance(error, (NotOwner, UnknownGang)) and error.status < 500:
                self._world.checker.fail("outcome", f"a stranger was told {error!r}")
            if isinstance(error, (GangEnded, UnknownGang, NotOwner)):
                return None
            return GangState.QUEUED if isinstance(error, RequestTimeout) and not stranger else None
        self._note(request, f"{operation}: {reply.state} in generation {reply.generation}")
        if operation is GangOperation.RENEW:
            self._world.gangs.renewed(reply.id, self._step.ttl_s, since=since)
        self._world.outcomes.failed(request, f"{operation}: {reply.state}", may_have_started=False)
        return None if reply.state is GangState.ENDED else reply.state

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _begin(self, timeout_s: float, *, idempotent: bool = False) -> SimulatedRequest:
        self._uses += 1
        # How often each rank of a run begins is counted by rank and generation, not here.
        idempotent = idempotent or self._step.kind is GangKind.RUN
        name = f"g{self._step.number}.{self._uses}"
        return self._world.outcomes.begin(name, self._node, idempotent=idempotent, timeout_s=timeout_s)

    def _arguments(self, request: SimulatedRequest) -> dict[str, Any]:
        ending = "raise" if self._step.breaking is Breaking.RAISE else "return"
        return {"request": request.id, "duration_s": self._step.duration_s, "ending": ending}
