"""Settings of a coordinator process: storage, event feeds, and timeouts of requests to workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final

from ...bus.port.bus import BucketSettings
from ...schemas.errors.base import InvalidSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of one coordinator process, in seconds unless the name says otherwise.

    Raises:
        InvalidSettings: a value out of its bounds.
    """

    bucket: BucketSettings = field(default_factory=BucketSettings)
    """How to create the ledger if it does not exist."""
    node: str = field(default_factory=socket.gethostname)
    """Machine name shown by service discovery and `gangline health`."""
    silence_s: float = 3.0
    """A worker that sends nothing for this time is looked up in the ledger, and counts as gone if its heartbeat key is
    gone. The workers' `heartbeat_ttl_s` or a little more; 0.5 to 60."""
    reconcile_s: float = 5.0
    """Interval at which all registrations and heartbeats are read again, in case live feeds missed one; 0.5 to 300."""
    sweep_s: float = 30.0
    """Interval of the search for member records that belong to no gang; 1 to 3600."""
    ping_wait_s: float = 1.0
    """Timeout of a ping. A timeout alone does not prove that the worker is gone; 0.1 to 10."""
    form_wait_s: float = 1.0
    """Timeout of a worker's confirmation that its members have formed, before it is asked again; 0.1 to 30."""
    form_tries: int = 3
    """How many times a worker is asked to form; after that, pings decide. 1 to 100."""
    start_timeout_s: float = 15.0
    """How long to wait for storage at start, for example during a cluster's election; 0 to 600."""
    disconnects: str = "$SYS.ACCOUNT.*.DISCONNECT"
    """Subject on which the server reports lost connections, if this account imports it; empty: none. It only speeds up
    what pings detect."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InvalidSettings(f"{name} is {value!r}, it must be between {low:g} and {high:g}")


_BOUNDS: Final = (
    ("silence_s", 0.5, 60.0),
    ("reconcile_s", 0.5, 300.0),
    ("sweep_s", 1.0, 3600.0),
    ("ping_wait_s", 0.1, 10.0),
    ("form_wait_s", 0.1, 30.0),
    ("form_tries", 1, 100),
    ("start_timeout_s", 0.0, 600.0),
)
