"""Gangline: lease a slot on a worker over NATS before you send to it.

The names below are the public API; they are loaded when first used, so that `import gangline` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .bus.ambient import Ambient as Ambient
    from .bus.port import BucketSettings as BucketSettings
    from .bus.settings import ConnectionSettings as ConnectionSettings
    from .coordinator.election import ElectionSettings as ElectionSettings
    from .coordinator.service import Coordinator as Coordinator
    from .coordinator.settings import CoordinatorSettings as CoordinatorSettings
    from .coordinator.shell_settings import ShellSettings as ShellSettings
    from .dispatcher.candidates import Candidates as Candidates
    from .dispatcher.candidates import Demand as Demand
    from .dispatcher.client import Client as Client
    from .dispatcher.client import connect as connect
    from .dispatcher.dead_letters import DeadLetter as DeadLetter
    from .dispatcher.durable.runner import run_dispatcher as run_dispatcher
    from .dispatcher.durable.service import Dispatcher as Dispatcher
    from .dispatcher.durable.settings import DispatcherSettings as DispatcherSettings
    from .dispatcher.durable.task_streams import TaskStorage as TaskStorage
    from .dispatcher.gang import Gang as Gang
    from .dispatcher.gateway import Gateway as Gateway
    from .dispatcher.gateway import GatewaySettings as GatewaySettings
    from .dispatcher.hooks import CallHook as CallHook
    from .dispatcher.hooks import ClientRequest as ClientRequest
    from .dispatcher.hooks import StreamHook as StreamHook
    from .dispatcher.hooks import SubmitHook as SubmitHook
    from .dispatcher.jobs import Job as Job
    from .dispatcher.leases import Lease as Lease
    from .dispatcher.operators import WorkerInfo as WorkerInfo
    from .dispatcher.policy import Hooks as Hooks
    from .dispatcher.policy import Policy as Policy
    from .dispatcher.policy import PowerOfTwo as PowerOfTwo
    from .dispatcher.policy import Sticky as Sticky
    from .dispatcher.selection import Selection as Selection
    from .dispatcher.settings import RouterSettings as RouterSettings
    from .dispatcher.sync import SyncClient as SyncClient
    from .dispatcher.sync import connect_sync as connect_sync
    from .schemas.errors import GanglineError as GanglineError
    from .schemas.errors import NonRetryable as NonRetryable
    from .schemas.gangs import Bundle as Bundle
    from .schemas.jobs import JobState as JobState
    from .schemas.names import Names as Names
    from .worker.context import TaskContext as TaskContext
    from .worker.context import current_task as current_task
    from .worker.gang_context import GangContext as GangContext
    from .worker.gang_context import GangMember as GangMember
    from .worker.middleware import CallNext as CallNext
    from .worker.middleware import Middleware as Middleware
    from .worker.pool import Pool as Pool
    from .worker.resources import Resource as Resource
    from .worker.service import Worker as Worker
    from .worker.settings import WorkerSettings as WorkerSettings

# Name -> module below this package.
_PUBLIC = {
    "Ambient": "bus.ambient",
    "BucketSettings": "bus.port",
    "Bundle": "schemas.gangs",
    "CallHook": "dispatcher.hooks",
    "CallNext": "worker.middleware",
    "Candidates": "dispatcher.candidates",
    "Client": "dispatcher.client",
    "ClientRequest": "dispatcher.hooks",
    "ConnectionSettings": "bus.settings",
    "Coordinator": "coordinator.service",
    "CoordinatorSettings": "coordinator.settings",
    "DeadLetter": "dispatcher.dead_letters",
    "Demand": "dispatcher.candidates",
    "Dispatcher": "dispatcher.durable.service",
    "DispatcherSettings": "dispatcher.durable.settings",
    "ElectionSettings": "coordinator.election",
    "Gang": "dispatcher.gang",
    "GangContext": "worker.gang_context",
    "GangMember": "worker.gang_context",
    "GanglineError": "schemas.errors",
    "Gateway": "dispatcher.gateway",
    "GatewaySettings": "dispatcher.gateway",
    "Hooks": "dispatcher.policy",
    "Job": "dispatcher.jobs",
    "JobState": "schemas.jobs",
    "Lease": "dispatcher.leases",
    "Middleware": "worker.middleware",
    "Names": "schemas.names",
    "NonRetryable": "schemas.errors",
    "Policy": "dispatcher.policy",
    "Pool": "worker.pool",
    "PowerOfTwo": "dispatcher.policy",
    "Resource": "worker.resources",
    "RouterSettings": "dispatcher.settings",
    "Selection": "dispatcher.selection",
    "ShellSettings": "coordinator.shell_settings",
    "Sticky": "dispatcher.policy",
    "StreamHook": "dispatcher.hooks",
    "SubmitHook": "dispatcher.hooks",
    "SyncClient": "dispatcher.sync",
    "TaskContext": "worker.context",
    "TaskStorage": "dispatcher.durable.task_streams",
    "Worker": "worker.service",
    "WorkerInfo": "dispatcher.operators",
    "WorkerSettings": "worker.settings",
    "connect": "dispatcher.client",
    "connect_sync": "dispatcher.sync",
    "current_task": "worker.context",
    "run_dispatcher": "dispatcher.durable.runner",
}

__all__ = [
    "Ambient",
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
    "Demand",
    "Dispatcher",
    "DispatcherSettings",
    "ElectionSettings",
    "Gang",
    "GangContext",
    "GangMember",
    "GanglineError",
    "Gateway",
    "GatewaySettings",
    "Hooks",
    "Job",
    "JobState",
    "Lease",
    "Middleware",
    "Names",
    "NonRetryable",
    "Policy",
    "Pool",
    "PowerOfTwo",
    "Resource",
    "RouterSettings",
    "Selection",
    "ShellSettings",
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
    "run_dispatcher",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
