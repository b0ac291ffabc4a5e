"""For tests: an in-memory cluster that runs your tasks without a server, and a loop on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loop import Deadlock, VirtualLoop, VirtualTimeout

if TYPE_CHECKING:
    from .in_memory import Cluster, cluster

__all__ = ["Cluster", "Deadlock", "VirtualLoop", "VirtualTimeout", "cluster"]


def __getattr__(name: str) -> object:
    # Late, so that whoever only wants the loop does not load workers and clients.
    if name in ("Cluster", "cluster"):
        from . import in_memory

        return getattr(in_memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
