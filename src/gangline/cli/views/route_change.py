"""What is to be changed of a route. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...schemas.records.routes import RouteRecord, parse_route
from ...schemas.wire import codec
from ..console.route_options import NONE

_ROUTE_FIELDS: Final = ("to", "shadow", "limits", "by_key")
_RULE_FIELDS: Final = {
    "max_running": "max_running",
    "per_key": "per_key",
    "ordered": "ordered",
    "rate": "rate_per_s",
    "burst": "burst",
    "max_attempts": "max_attempts",
    "backoff": "backoff_s",
    "backoff_max": "backoff_max_s",
    "timeout": "timeout_s",
    "result_ttl": "result_ttl_s",
    "paused": "paused",
}
"""Option -> field of the queue's rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """Fields to be set, or (NONE) to be taken back."""

    route: Mapping[str, Any]
    queue: Mapping[str, Any]
    replace: bool = False
    """Whether what is not named is taken back, too."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *, replace: bool) -> RouteChange:
        """From a command's options; None is "not given"."""
        return cls(
            route={name: given[name] for name in _ROUTE_FIELDS if given.get(name) is not None},
            queue={field: given[name] for name, field in _RULE_FIELDS.items() if given.get(name) is not None},
            replace=replace,
        )

    def apply(self, endpoint: str, before: RouteRecord | None) -> RouteRecord:
        """The route as it is to be.

        Raises:
            InvalidRoute: it could not be followed; which field, and why.
        """
        old = {} if before is None or self.replace else before.model_dump(mode="json", exclude_defaults=True)
        new = _changed(old, self.route)
        if queue := _changed(old.get("queue", {}), self.queue):
            new["queue"] = queue
        return parse_route(endpoint, codec.to_json(new))


def _changed(old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    new = {name: value for name, value in old.items() if name not in given and name != "queue"}
    return new | {name: value for name, value in given.items() if value != NONE}
