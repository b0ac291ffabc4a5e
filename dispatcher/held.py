"""What can be told of slots that are held, whatever for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .hold import Hold


class Held:
    """Whose slots they are, and what they are known by. Stays true after they were given back."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        """For the router."""

    @property
    def pool(self) -> str:
        return self.hold.pool.name

    @property
    def endpoint(self) -> str:
        """What was asked for: the pool, or an endpoint whose route led there."""
        return self.hold.endpoint

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it; of a standing set, where rank 0 of the gang is. The same goes for
        what else is told of the worker."""
        return str(self.hold.worker.id)

    @property
    def gang(self) -> str | None:
        """The gang of a standing set whose slots they are: of rank 0, or of every rank. None: of no gang."""
        return self.hold.gang

    @property
    def node(self) -> str:
        return self.hold.worker.node

    @property
    def zone(self) -> str:
        return self.hold.worker.zone

    @property
    def address(self) -> str:
        """Where others can reach the process, if it told; host or host:port."""
        return self.hold.worker.address

    @property
    def labels(self) -> Mapping[str, str]:
        return MappingProxyType(self.hold.worker.labels)

    @property
    def token(self) -> str:
        """As it stands in the ledger."""
        return self.hold.token

    @property
    def epoch(self) -> int:
        """The worker's epoch; the token dies with it."""
        return self.hold.epoch

    @property
    def fence(self) -> int:
        """A number that grows with each lease of the worker, for resources that refuse zombies; of a lease with
        `ledger="sync"` it grows over the whole system."""
        return self.hold.fence

    @property
    def slots(self) -> int:
        """How many; of a gang whose calls run on all ranks, so many of each."""
        return self.hold.slots
