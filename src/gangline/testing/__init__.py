"""For tests: an in-memory cluster that runs your tasks without a server, and a loop on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loop import Deadlock, VirtualLoop, VirtualTimeout

if TYPE_CHECKING:
    from .in_memory import Cluster, cluster
    from .in_memory_sync import SyncCluster, cluster_sync

__all__ = ["Cluster", "Deadlock", "SyncCluster", "VirtualLoop", "VirtualTimeout", "cluster", "cluster_sync"]


def __getattr__(name: str) -> object:
    # Late, so that users of the loop alone do not load workers and clients.
    if name in ("Cluster", "cluster"):
        from . import in_memory

        return getattr(in_memory, name)
    if name in ("SyncCluster", "cluster_sync"):
        from . import in_memory_sync

        return getattr(in_memory_sync, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
