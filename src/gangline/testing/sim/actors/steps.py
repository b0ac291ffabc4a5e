"""Plays steps of a plan, through the public client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, cast

from ....dispatcher.client.client import Client
from ....dispatcher.leases.lease import Lease
from ....dispatcher.leases.selection import Selection
from ....schemas.errors.base import DeadlineExceeded, GanglineError, LeaseExpired, SelectionUsed
from ....schemas.names import public_id
from ..calls.outcomes import SimulatedRequest, lost_worker
from ..plan.plan import Step, StepKind
from ..stage.stage import Stage
from ..tasks.tasks import IDEMPOTENT, result_of

ACQUIRE_S = 3.0
"""Timeout of steps that choose a worker or lease slots."""


class RequestRecorder:
    """Records the outcomes of a step's requests, and traces them; `step` names the step."""

    def __init__(self, world: Stage, node: str, client: Client, step: str) -> None:
        self._world = world
        self._node = node
        self._client = client
        self._label = step
        self._uses = 0
        """Number of requests so far."""

    @contextmanager
    def _recorded(self, request: SimulatedRequest) -> Iterator[None]:
        """Record how the request ends in the block, unless the block does that."""
        try:
            yield
        except asyncio.CancelledError:
            self._cancelled(request)
            raise
        except GanglineError as error:
            self._failed(request, error)

    async def _answer(self, request: SimulatedRequest, asked: Awaitable[object], *, expected: object = None) -> None:
        """Wait for the answer and record it. Never raises, except when cancelled."""
        with self._recorded(request):
            value = await asked
            self._note(request, "ok")
            wanted = result_of(request.id) if expected is None else expected
            self._world.outcomes.succeeded(request, value, wanted)

    async def _several(self, count: int, together: bool, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it so often, all at once or one after another."""
        if together:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(once())
        else:
            for _ in range(count):
                await once()

    def _failed(self, request: SimulatedRequest, error: GanglineError) -> None:
        if request.outcome is None:  # otherwise it was answered, and this ended its selection, lease or gang
            self._note(request, f"{error.code} (may have started: {error.may_have_started}): {error.message}")
            started = error.may_have_started
            self._world.outcomes.failed(request, error.code, may_have_started=started, lost=self._lost(error))

    def _lost(self, error: GanglineError) -> str | None:
        """The worker that the error reports as lost, if the checks should judge that."""
        return None

    def _cancelled(self, request: SimulatedRequest | None) -> None:
        if request is not None and request.outcome is None:
            self._note(request, "cancelled")
            self._world.outcomes.cancelled(request)

    def _note(self, request: SimulatedRequest, text: str) -> None:
        self._world.trace.note(self._node, f"{request.id} of {self._label} got {text}")


class StepRunner(RequestRecorder):
    """Plays one step for one client process."""

    def __init__(self, world: Stage, node: str, client: Client, step: Step) -> None:
        super().__init__(world, node, client, f"step {step.number} ({step.kind})")
        self._step = step

    def __repr__(self) -> str:
        return f"{self._step.kind} {self._step.pool}.{self._step.method} {self._step.ending}"

    async def run(self) -> None:
        """Play the step to its end. Expected errors are handled here; others are raised."""
        match self._step.kind:
            case StepKind.CALL:
                await self._call()
            case StepKind.STREAM:
                await self._stream()
            case StepKind.DISPATCH | StepKind.CHOOSE | StepKind.TWICE:
                await self._choose()
            case StepKind.LEASE | StepKind.HOLD:
                await self._lease()

    # -- kinds of steps -------------------------------------------------------------------------------------------

    async def _call(self) -> None:
        step = self._step
        request = self._begin()
        client = self._client.options(timeout_s=step.timeout_s, key=step.key)
        await self._answer(request, client.call(f"{step.pool}.{step.method}", **self._arguments(request)))

    async def _stream(self) -> None:
        step = self._step
        request = self._begin()
        client = self._client.options(timeout_s=step.timeout_s, key=step.key)
        items = client.stream(f"{step.pool}.items", **self._arguments(request), count=step.uses)
        await self._answer(request, _collect(items), expected=list(range(step.uses)))

    async def _choose(self) -> None:
        step = self._step
        request = self._begin(ACQUIRE_S)
        client = self._client.options(timeout_s=ACQUIRE_S, key=step.key)
        with self._recorded(request):
            async with client.choose_worker(f"{step.pool}.{step.method}") as selection:
                self._world.holders[public_id(selection.token)] = (self._node, selection)
                self._world.outcomes.extend(request, step.hold_s)
                if step.hold_s:
                    await asyncio.sleep(step.hold_s)
                if step.kind is StepKind.CHOOSE:
                    self._world.outcomes.failed(request, "left without dispatching", may_have_started=False)
                    return
                self._world.outcomes.extend(request, step.timeout_s)
                await self._dispatch(selection, request)

    async def _dispatch(self, selection: Selection, request: SimulatedRequest) -> None:
        step = self._step
        await self._send(selection, request)
        if step.kind is StepKind.TWICE:
            second = self._begin(step.timeout_s)
            await self._send(selection, second)
            unsent = request.outcome == second.outcome == LeaseExpired.code  # neither left this process
            if second.outcome != SelectionUsed.code and not unsent:
                self._world.checker.fail("L3", f"a second dispatch of {selection!r} ended as {second.outcome}")

    async def _send(self, selection: Selection, request: SimulatedRequest) -> None:
        step, arguments = self._step, self._arguments(request)
        client = self._client.options(timeout_s=step.timeout_s)
        if step.method == "items":
            items = client.stream(selection, "items", **arguments, count=step.uses)
            await self._answer(request, _collect(items), expected=list(range(step.uses)))
        else:
            await self._answer(request, client.dispatch(selection, step.method, **arguments))

    async def _lease(self) -> None:
        step = self._step
        client = self._client.options(timeout_s=step.timeout_s, key=step.key)
        acquiring = self._begin()
        with self._recorded(acquiring):
            async with client.lease(step.pool, slots=step.slots, ttl_s=step.ttl_s) as lease:
                self._world.holders[public_id(lease.token)] = (self._node, lease)
                self._world.outcomes.failed(acquiring, "leased", may_have_started=False)
                if step.hold_s:
                    await asyncio.sleep(step.hold_s)
                if step.kind is StepKind.LEASE:
                    await self._several(step.uses, step.together, lambda: self._use(lease))

    async def _use(self, lease: Lease) -> None:
        request = self._begin()
        await self._answer(request, lease.call(self._step.method, **self._arguments(request)))

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _begin(self, timeout_s: float | None = None) -> SimulatedRequest:
        step = self._step
        self._uses += 1
        request = self._world.outcomes.begin(
            f"r{step.number}.{self._uses}",
            self._node,
            idempotent=step.method in IDEMPOTENT,
            timeout_s=step.timeout_s if timeout_s is None else timeout_s,
        )
        request.pool, request.method = step.pool, step.method
        request.plain = step.kind is StepKind.CALL and step.key is None
        return request

    def _arguments(self, request: SimulatedRequest) -> dict[str, Any]:
        return {"request": request.id, "duration_s": self._step.duration_s, "ending": str(self._step.ending)}

    def _failed(self, request: SimulatedRequest, error: GanglineError) -> None:
        if request.outcome is None and isinstance(error, DeadlineExceeded):
            self._world.told_too_late(request)
        super()._failed(request, error)

    def _lost(self, error: GanglineError) -> str | None:
        return lost_worker(error)


async def _collect(items: object) -> list[object]:
    async with aclosing(cast("AsyncGenerator[object, None]", items)) as each:
        return [item async for item in each]
