"""The gangs that one router's process owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from ...bus.port.bus import Bus
from ...runtime.clock import Environment
from ...schemas.errors.base import ClosedError
from ...schemas.messages.gangs import AcquireRequest
from ...schemas.names import Names
from ...schemas.records.gangs import Bundle
from ...telemetry.tracing import tracer
from ..calls.call import CallOptions
from ..leases.lease import RequestObserver
from ..routing.settings import RouterSettings
from .coordinator_client import CoordinatorClient
from .gang import Gang, GangAcquisition, GangCallOptions
from .members import MemberChannelFactory
from .owner import GangOwner


class GangOptions(TypedDict, total=False):
    """What `Client.gang` takes. None stands for the default, but for `max_restarts`."""

    pool: str | None
    """Where the members are, if they are all of one shape; else give `bundles`."""
    size: int | tuple[int, int] | None
    """So many members. `(2, 8)`: as soon as 2 fit, and as many as there is room for, up to 8. Each generation is placed
    anew, so it may be larger or smaller than the one before; `gang.size` tells. Beyond the smallest size it takes what
    is free and what no other gang in the queue needs. Default: 1."""
    slots: int | None
    """Of each member. Default: 1."""
    labels: Mapping[str, str] | None
    """Labels that the workers must have."""
    bundles: Sequence[Bundle | Mapping[str, Any]] | None
    """Instead of these four: members of several shapes, over several pools; see schemas.records.gangs.Bundle."""
    strategy: str | None
    """`pack`, `spread`, `strict_pack` (one node) or `strict_spread` (a node for each)."""
    deadline_s: float | None
    """Give up when not formed by then. None: wait for ever, if a coordinator leads."""
    wait_for_workers: bool | None
    """Wait even if the workers that are registered now could never hold it (a rolling deployment, an autoscaler); else
    that is GangImpossible at once."""
    priority: int | None
    """Higher goes first."""
    preempt: bool | None
    """Gangs of lower priority may be torn down to make room."""
    restart: str | None
    """`restart_gang`, `restart_member` or `fail`: what becomes of it when a member fails."""
    max_restarts: int | None
    """Failures before it ends; None: no bound."""
    backoff_s: float | None
    """Wait before the first restart; doubles with each."""
    grace_s: float | None
    """How long a member may take to stop before it is killed."""
    start_timeout_s: float | None
    """How long the `gang_start` functions of a member may take before it has failed at its start."""
    ttl_s: float | None
    """The gang ends when it is not renewed for so long; says how long it outlives this process."""


class GangClient:
    """Acquires gangs, and gives all back when the router stops."""

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
            InvalidRequest: names each field that is wrong.
        """
        given = {name: value for name, value in fields.items() if value is not None or name == "max_restarts"}
        given.setdefault("owner", self._owner_name)
        if "labels" in given:
            given["labels"] = dict(given["labels"])
        if "bundles" in given:
            given["bundles"] = tuple(_plain(bundle) for bundle in given["bundles"])
        wanted = AcquireRequest.parse(given)

        async def make() -> Gang:
            request = wanted.model_copy(
                update={
                    "id": wanted.id or self._ambient.token(),
                    "owner_token": wanted.owner_token or self._ambient.token(),
                    "traceparent": wanted.traceparent or tracer.traceparent(),
                }
            )
            return await self._acquire(request, options)

        return GangAcquisition(make)

    async def _acquire(self, request: AcquireRequest, options: CallOptions) -> Gang:
        if self._stopped:
            raise ClosedError("this router was stopped")
        owner = GangOwner(
            self._bus, self._names, request, coordinator_client=self.coordinator_client, lines=self._lines
        )
        self._owned[owner] = None
        owner.on_released = self._owned.pop
        inherited = self._deadline(CallOptions())
        deadline = None if request.deadline_s is None else asyncio.get_running_loop().time() + request.deadline_s
        if inherited is not None:
            deadline = inherited if deadline is None else min(deadline, inherited)
        try:
            await owner.acquire(deadline, self._settings.saturated_wait_s)
        except BaseException:
            self._owned.pop(owner, None)
            raise
        if self._stopped:
            await owner.abandon(ClosedError("this router was stopped"))
            raise ClosedError("this router was stopped")
        return Gang(owner, deadline=self._deadline, observe=self._observe, options=GangCallOptions(call=options))

    async def stop(self) -> None:
        """Give all gangs back, without waiting for their members; calls on them end with ClosedError. Idempotent."""
        self._stopped = True
        owned, self._owned = list(self._owned), {}
        for owner in owned:
            await owner.abandon(ClosedError("this router was stopped"))

    def statistics(self) -> dict[str, int]:
        """Gangs owned now."""
        return {"gangs": len(self._owned)}

    def __repr__(self) -> str:
        return f"GangClient({', '.join(owner.id for owner in self._owned) or 'none'})"


def _plain(bundle: Bundle | Mapping[str, Any]) -> dict[str, Any]:
    return bundle.model_dump() if isinstance(bundle, Bundle) else dict(bundle)
