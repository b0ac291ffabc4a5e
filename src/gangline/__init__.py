"""Gangline: lease a slot on a worker over NATS before you send to it.

The names below are the public API; they are loaded when first used, so that `import gangline` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import errors as errors
    from .bus.port.bus import BucketSettings as BucketSettings
    from .bus.settings.connection import ConnectionSettings as ConnectionSettings
    from .coordinator.election.election_core import ElectionSettings as ElectionSettings
    from .coordinator.service import Coordinator as Coordinator
    from .coordinator.settings.settings import CoordinatorSettings as CoordinatorSettings
    from .coordinator.settings.settings import ServiceSettings as ServiceSettings
    from .dispatcher.client.client import Client as Client
    from .dispatcher.client.client import connect as connect
    from .dispatcher.client.hooks import CallHook as CallHook
    from .dispatcher.client.hooks import ClientRequest as ClientRequest
    from .dispatcher.client.hooks import StreamHook as StreamHook
    from .dispatcher.client.hooks import SubmitHook as SubmitHook
    from .dispatcher.client.operations import WorkerInfo as WorkerInfo
    from .dispatcher.client.sync import SyncClient as SyncClient
    from .dispatcher.client.sync import connect_sync as connect_sync
    from .dispatcher.durable.policies.settings import DispatcherSettings as DispatcherSettings
    from .dispatcher.durable.service import Dispatcher as Dispatcher
    from .dispatcher.durable.service import run_dispatcher as run_dispatcher
    from .dispatcher.gangs.gang import Gang as Gang
    from .dispatcher.gateway.gateway import Gateway as Gateway
    from .dispatcher.gateway.gateway import GatewaySettings as GatewaySettings
    from .dispatcher.jobs.dead_letters import DeadLetter as DeadLetter
    from .dispatcher.jobs.job import Job as Job
    from .dispatcher.jobs.listing import JobPage as JobPage
    from .dispatcher.jobs.storage import TaskStorage as TaskStorage
    from .dispatcher.jobs.stored import Schedule as Schedule
    from .dispatcher.leases.lease import Lease as Lease
    from .dispatcher.leases.selection import Selection as Selection
    from .dispatcher.routing.policy import Candidates as Candidates
    from .dispatcher.routing.policy import Policy as Policy
    from .dispatcher.routing.policy import PolicyBase as PolicyBase
    from .dispatcher.routing.policy import PowerOfTwo as PowerOfTwo
    from .dispatcher.routing.policy import Requirements as Requirements
    from .dispatcher.routing.policy import Sticky as Sticky
    from .dispatcher.routing.settings import RouterSettings as RouterSettings
    from .runtime.clock import Environment as Environment
    from .schemas.errors.base import DoNotRetry as DoNotRetry
    from .schemas.errors.base import GanglineError as GanglineError
    from .schemas.handles import handle as handle
    from .schemas.handles import remote as remote
    from .schemas.names import Names as Names
    from .schemas.records.gangs import Bundle as Bundle
    from .schemas.records.jobs import JobState as JobState
    from .worker.context.task_context import GangContext as GangContext
    from .worker.context.task_context import GangPeer as GangPeer
    from .worker.context.task_context import TaskContext as TaskContext
    from .worker.context.task_context import current_task as current_task
    from .worker.ledger.settings import WorkerSettings as WorkerSettings
    from .worker.pool.pool import CallNext as CallNext
    from .worker.pool.pool import Middleware as Middleware
    from .worker.pool.pool import Pool as Pool
    from .worker.pool.signature import Resource as Resource
    from .worker.pool.signature import resource as resource
    from .worker.service import Worker as Worker

# Name -> module below this package.
_PUBLIC = {
    "BucketSettings": "bus.port.bus",
    "Bundle": "schemas.records.gangs",
    "CallHook": "dispatcher.client.hooks",
    "CallNext": "worker.pool.pool",
    "Candidates": "dispatcher.routing.policy",
    "Client": "dispatcher.client.client",
    "ClientRequest": "dispatcher.client.hooks",
    "ConnectionSettings": "bus.settings.connection",
    "Coordinator": "coordinator.service",
    "CoordinatorSettings": "coordinator.settings.settings",
    "DeadLetter": "dispatcher.jobs.dead_letters",
    "Dispatcher": "dispatcher.durable.service",
    "DispatcherSettings": "dispatcher.durable.policies.settings",
    "DoNotRetry": "schemas.errors.base",
    "ElectionSettings": "coordinator.election.election_core",
    "Environment": "runtime.clock",
    "Gang": "dispatcher.gangs.gang",
    "GangContext": "worker.context.task_context",
    "GangPeer": "worker.context.task_context",
    "GanglineError": "schemas.errors.base",
    "Gateway": "dispatcher.gateway.gateway",
    "GatewaySettings": "dispatcher.gateway.gateway",
    "Job": "dispatcher.jobs.job",
    "JobPage": "dispatcher.jobs.listing",
    "JobState": "schemas.records.jobs",
    "Lease": "dispatcher.leases.lease",
    "Middleware": "worker.pool.pool",
    "Names": "schemas.names",
    "Policy": "dispatcher.routing.policy",
    "PolicyBase": "dispatcher.routing.policy",
    "Pool": "worker.pool.pool",
    "PowerOfTwo": "dispatcher.routing.policy",
    "Requirements": "dispatcher.routing.policy",
    "Resource": "worker.pool.signature",
    "RouterSettings": "dispatcher.routing.settings",
    "Schedule": "dispatcher.jobs.stored",
    "Selection": "dispatcher.leases.selection",
    "ServiceSettings": "coordinator.settings.settings",
    "Sticky": "dispatcher.routing.policy",
    "StreamHook": "dispatcher.client.hooks",
    "SubmitHook": "dispatcher.client.hooks",
    "SyncClient": "dispatcher.client.sync",
    "TaskContext": "worker.context.task_context",
    "TaskStorage": "dispatcher.jobs.storage",
    "Worker": "worker.service",
    "WorkerInfo": "dispatcher.client.operations",
    "WorkerSettings": "worker.ledger.settings",
    "connect": "dispatcher.client.client",
    "connect_sync": "dispatcher.client.sync",
    "current_task": "worker.context.task_context",
    "handle": "schemas.handles",
    "remote": "schemas.handles",
    "resource": "worker.pool.signature",
    "run_dispatcher": "dispatcher.durable.service",
}

# Public names that have changed: the old name works for one more release, with a warning.
_RENAMED = {
    "Ambient": "Environment",
    "Demand": "Requirements",
    "GangMember": "GangPeer",
    "Hooks": "PolicyBase",
    "NonRetryable": "DoNotRetry",
    "ShellSettings": "ServiceSettings",
}

__all__ = [
    "BucketSettings",
    "Bundle",
    "CallHook",
    "CallNext",
    "Candidates",
    "Client",
    "ClientRequest",
    "ConnectionSettings",
    "Coordinator",
    "CoordinatorSettings",
    "DeadLetter",
    "Dispatcher",
    "DispatcherSettings",
    "DoNotRetry",
    "ElectionSettings",
    "Environment",
    "Gang",
    "GangContext",
    "GangPeer",
    "GanglineError",
    "Gateway",
    "GatewaySettings",
    "Job",
    "JobPage",
    "JobState",
    "Lease",
    "Middleware",
    "Names",
    "Policy",
    "PolicyBase",
    "Pool",
    "PowerOfTwo",
    "Requirements",
    "Resource",
    "RouterSettings",
    "Schedule",
    "Selection",
    "ServiceSettings",
    "Sticky",
    "StreamHook",
    "SubmitHook",
    "SyncClient",
    "TaskContext",
    "TaskStorage",
    "Worker",
    "WorkerInfo",
    "WorkerSettings",
    "connect",
    "connect_sync",
    "current_task",
    "errors",
    "handle",
    "remote",
    "resource",
    "run_dispatcher",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name == "__version__":
        return import_module("importlib.metadata").version("gangline")
    if name in _RENAMED:
        from ._renamed import renamed

        return renamed(__name__, name, getattr(import_module(__name__), _RENAMED[name]))
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
