"""What clients do with routes, beside following them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...schemas.names import check_name
from ...schemas.records.routes import RouteRecord, parse_route
from ...schemas.wire import codec
from ..jobs.storage import TaskStreams
from ..router.router import Router


class RouteOperations:
    """The part of Client that is about routes."""

    _router: Router
    _route_streams: TaskStreams

    def _check_open(self) -> None:
        raise NotImplementedError

    async def set_route(self, endpoint: str, route: RouteRecord | Mapping[str, Any], /) -> RouteRecord:
        """Send an endpoint's traffic where `route` says, from now on and from everywhere; replaces the route it has.

        ::

            await client.set_route("resize", {"to": {"resize-v1": 90, "resize-v2": 10}, "shadow": {"resize-v3": 5}})

        Everybody follows within a second; this client when it returns.

        Raises:
            InvalidRoute: it cannot be followed; which field, and why. Nothing was written.
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        body = route.model_dump(mode="json", exclude_defaults=True) if isinstance(route, RouteRecord) else dict(route)
        value = codec.to_json(body)
        record = parse_route(check_name(endpoint, "endpoint"), value)
        await (await self._route_streams.routes()).put(endpoint, value)
        await self._router.routes.refresh(endpoint)
        return record

    async def delete_route(self, endpoint: str, /) -> None:
        """The endpoint is the pool of its name again. One that has no route is no error.

        Raises:
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        await (await self._route_streams.routes()).delete(check_name(endpoint, "endpoint"))
        await self._router.routes.refresh(endpoint)

    async def routes(self) -> dict[str, RouteRecord]:
        """Routes by endpoint, as they are followed now. Values that cannot be followed are in
        `statistics()["routes"]["refused"]`.

        Raises:
            Disconnected, Unavailable: they could not be read.
        """
        self._check_open()
        table = self._router.routes
        await table.ready()
        return dict(table.known)
