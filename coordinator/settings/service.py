"""What may be tuned in the shell around the gang core: storage, feeds and patience with workers."""

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
    """How the ledger is made if it does not exist yet."""
    node: str = field(default_factory=socket.gethostname)
    """Machine, as discovery and `gangline health` show it."""
    silence_s: float = 3.0
    """A worker not heard of for so long is looked up: gone when its heartbeat key is gone as well. The workers' own
    `heartbeat_ttl_s`, or a little more; 0.5 to 60."""
    reconcile_s: float = 5.0
    """How often all registrations and heartbeats are read again, for what live feeds may have missed; 0.5 to 300."""
    sweep_s: float = 30.0
    """How often the ledger is searched for member records that belong to no gang; 1 to 3600."""
    ping_wait_s: float = 1.0
    """How long the answer to a ping is waited for. None in time proves nothing; 0.1 to 10."""
    form_wait_s: float = 1.0
    """How long a worker's word that it formed is waited for before it is asked again; 0.1 to 30."""
    form_tries: int = 3
    """How often it is asked; after that, pings find out. 1 to 100."""
    start_timeout_s: float = 15.0
    """How long a start waits for storage, in a cluster that holds an election for example; 0 to 600."""
    disconnects: str = "$SYS.ACCOUNT.*.DISCONNECT"
    """Where the server tells of lost connections, if this account imports that; empty: not listened to. It only
    speeds up what pings find out."""

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
