"""The gangs that one router's process owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ...bus.port.bus import Bus
from ...runtime.clock import Ambient
from ...schemas.errors.base import ClosedError
from ...schemas.messages.gangs import AcquireRequest
from ...schemas.names import Names
from ...telemetry.tracing import tracer
from ..calls.call import CallOptions
from ..leases.lease import Observe
from ..routing.settings import RouterSettings
from .coordinator_client import GangDesk
from .gang import Gang, GangCallOptions, Ganging
from .members import LineMaker
from .owner import GangOwner


class Gangs:
    """Acquires gangs, and gives all back when the router stops."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        ambient: Ambient,
        settings: RouterSettings,
        *,
        lines: LineMaker,
        deadline: Callable[[CallOptions], float | None],
        observe: Observe,
        owner: str,
    ) -> None:
        self.desk = GangDesk(bus, names)
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

    def gang(self, fields: Mapping[str, Any], max_restarts: int | None, options: CallOptions) -> Ganging:
        """See Client.gang. `fields` are those of AcquireRequest; None stands for the default.

        Raises:
            InvalidRequest: names each field that is wrong.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        given.setdefault("owner", self._owner_name)
        wanted = AcquireRequest.parse({**given, "max_restarts": max_restarts})

        async def make() -> Gang:
            request = wanted.model_copy(
                update={
                    "id": wanted.id or self._ambient.token(),
                    "owner_token": wanted.owner_token or self._ambient.token(),
                    "traceparent": wanted.traceparent or tracer.traceparent(),
                }
            )
            return await self._acquire(request, options)

        return Ganging(make)

    async def _acquire(self, request: AcquireRequest, options: CallOptions) -> Gang:
        if self._stopped:
            raise ClosedError("this router was stopped")
        owner = GangOwner(self._bus, self._names, request, desk=self.desk, lines=self._lines)
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
        return f"Gangs({', '.join(owner.id for owner in self._owned) or 'none'})"
