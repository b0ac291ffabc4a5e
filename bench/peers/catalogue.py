"""The durable peers: their packages, processes, and guarantees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Server(StrEnum):
    """The storage of the tasks."""

    NATS = "nats"
    REDIS = "redis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One configuration of one system."""

    name: str
    """The name in the results."""
    app: str
    """Module of `apps`."""
    server: Server
    worker: tuple[str, ...]
    """Command line of its worker: a script of its environment, and its arguments."""
    says: str
    """Changes from the defaults."""
    acks: str
    """When a task is acknowledged, which determines what happens if its worker dies."""
    durable: bool = True
    """Whether a task survives its worker, and the storage's process."""
    tuned: bool = False
    kind: str = ""
    environ: tuple[tuple[str, str], ...] = ()
    """Environment variables of its worker."""
    results: bool = False
    """Whether it is also measured with results kept and awaited."""

    @property
    def stores(self) -> str:
        return "JetStream, file" if self.server is Server.NATS else "Redis, append-only file, synced each second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One system."""

    name: str
    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    """Packages whose versions are shown."""
    runs: tuple[Run, ...]


MANY: Final = 512
"""Tasks in each call of submit_many."""
_APPS: Final = "bench.peers.apps"
_AFTER: Final = "after it ran"

OURS: Final = Run(
    name="gangline",
    app="ours",
    server=Server.NATS,
    worker=("worker", f"{_APPS}.ours:pool"),
    says="defaults; 256 slots; result_ttl_s=0",
    acks=_AFTER,
    results=True,
)
"""With a `gangline dispatcher` process in addition to the worker."""
OURS_MANY: Final = replace(
    OURS,
    name="gangline, submit_many",
    kind="many",
    results=False,
    says=f"{OURS.says}; {MANY} tasks in each submit_many",
)

_TASKIQ: Final = ("taskiq", "worker", f"{_APPS}.taskiq_nats_app:broker", "--workers", "1")
_CELERY: Final = ("celery", "-A", f"{_APPS}.celery_app", "worker", "--loglevel", "ERROR", "--concurrency", "1")
_DRAMATIQ: Final = ("dramatiq", f"{_APPS}.dramatiq_app", "--processes", "1")

PEERS: Final = (
    Peer(
        name="taskiq",
        requirements=("taskiq==0.13.0", "taskiq-nats==0.7.0", "uvloop==0.23.0"),
        packages=("taskiq", "taskiq-nats", "nats-py", "uvloop"),
        runs=(
            Run(
                name="taskiq-nats pull",
                app="taskiq_nats_app",
                server=Server.NATS,
                worker=_TASKIQ,
                kind="pull",
                says="defaults: one message for each pull",
                acks=_AFTER,
            ),
            Run(
                name="taskiq-nats pull, tuned",
                app="taskiq_nats_app",
                server=Server.NATS,
                worker=(*_TASKIQ, "--max-async-tasks", "256", "--no-parse"),
                kind="pull",
                tuned=True,
                says="256 messages for each pull, 256 tasks at once, arguments unchecked",
                acks=_AFTER,
                results=True,
            ),
            Run(
                name="taskiq-nats push",
                app="taskiq_nats_app",
                server=Server.NATS,
                worker=_TASKIQ,
                kind="push",
                says="defaults; the submitter leaves the queue group",
                acks=_AFTER,
                results=True,
            ),
        ),
    ),
    Peer(
        name="faststream",
        requirements=("faststream[nats,cli]==0.7.8", "uvloop==0.23.0"),
        packages=("faststream", "nats-py", "uvloop"),
        runs=(
            Run(
                name="FastStream",
                app="faststream_app",
                server=Server.NATS,
                worker=("faststream", "run", f"{_APPS}.faststream_app:app", "--log-level", "error"),
                says="defaults: pushed to a durable queue group, one at a time",
                acks=_AFTER,
            ),
            Run(
                name="FastStream, tuned",
                app="faststream_app",
                server=Server.NATS,
                worker=("faststream", "run", f"{_APPS}.faststream_app:app", "--log-level", "error"),
                tuned=True,
                says="pushed, its own injection and validation off",
                acks=_AFTER,
            ),
        ),
    ),
    Peer(
        name="celery",
        requirements=("celery[redis]==5.7.0",),
        packages=("celery", "kombu", "redis"),
        runs=(
            Run(
                name="Celery",
                app="celery_app",
                server=Server.REDIS,
                worker=_CELERY,
                says="defaults, with one process",
                acks="before it runs: lost with its worker",
                durable=False,
            ),
            Run(
                name="Celery, tuned",
                app="celery_app",
                server=Server.REDIS,
                worker=(*_CELERY, "--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"),
                tuned=True,
                says="acks_late, 256 prefetched, in the worker's own process, no gossip",
                acks=_AFTER,
                results=True,
            ),
        ),
    ),
    Peer(
        name="dramatiq",
        requirements=("dramatiq[redis]==2.2.1",),
        packages=("dramatiq", "redis"),
        runs=(
            Run(
                name="Dramatiq",
                app="dramatiq_app",
                server=Server.REDIS,
                worker=_DRAMATIQ,
                says="defaults: 8 threads",
                acks=_AFTER,
            ),
            Run(
                name="Dramatiq, tuned",
                app="dramatiq_app",
                server=Server.REDIS,
                worker=(*_DRAMATIQ, "--threads", "2"),
                tuned=True,
                environ=(("dramatiq_queue_prefetch", "256"),),
                says="2 threads, 256 prefetched",
                acks=_AFTER,
            ),
        ),
    ),
    Peer(
        name="arq",
        requirements=("arq==0.28.0", "uvloop==0.23.0"),
        packages=("arq", "redis", "uvloop"),
        runs=(
            Run(
                name="arq",
                app="arq_app",
                server=Server.REDIS,
                worker=("arq", f"{_APPS}.arq_app.WorkerSettings"),
                says="defaults: looks for tasks each 0.5 s, 10 at once",
                acks=_AFTER,
            ),
            Run(
                name="arq, tuned",
                app="arq_app",
                server=Server.REDIS,
                worker=("arq", f"{_APPS}.arq_app.WorkerSettings"),
                tuned=True,
                says="looks each 5 ms, 256 at once",
                acks=_AFTER,
                results=True,
            ),
        ),
    ),
    Peer(
        name="saq",
        requirements=("saq[redis,hiredis]==0.26.4", "typing_extensions>=4.12", "uvloop==0.23.0"),
        packages=("saq", "redis", "hiredis", "uvloop"),
        runs=(
            Run(
                name="SAQ",
                app="saq_app",
                server=Server.REDIS,
                worker=("saq", f"{_APPS}.saq_app.settings", "--quiet"),
                says="defaults: 10 at once",
                acks=_AFTER,
                results=True,
            ),
            Run(
                name="SAQ, tuned",
                app="saq_app",
                server=Server.REDIS,
                worker=("saq", f"{_APPS}.saq_app.settings", "--quiet"),
                tuned=True,
                says="64 at once",
                acks=_AFTER,
                results=True,
            ),
        ),
    ),
    Peer(
        name="streaq",
        requirements=("streaq[web]==7.2.0", "uvloop==0.23.0"),
        packages=("streaq", "coredis", "uvloop"),
        runs=(
            Run(
                name="streaq",
                app="streaq_app",
                server=Server.REDIS,
                worker=("streaq", "run", f"{_APPS}.streaq_app:worker"),
                says="defaults: 16 at once",
                acks=_AFTER,
            ),
            Run(
                name="streaq, tuned",
                app="streaq_app",
                server=Server.REDIS,
                worker=("streaq", "run", f"{_APPS}.streaq_app:worker"),
                tuned=True,
                says="256 at once, 256 prefetched",
                acks=_AFTER,
            ),
        ),
    ),
)

RESULTS_SAY: Final = {
    "gangline": "defaults; 256 slots; results are kept for an hour",
    "taskiq-nats push": "results in an object store, looked for each 0.2 s",
    "taskiq-nats pull, tuned": "results in an object store, looked for each 5 ms",
    "Celery, tuned": "results in Redis, each waited for by a thread",
    "SAQ": "looked for each 0.5 s",
    "SAQ, tuned": "looked for each 5 ms",
    "arq, tuned": "looked for each 5 ms, on both sides",
}
"""How results are awaited, where that is a choice of the run."""

RAY_SERVE: Final = Peer(name="rayserve", requirements=("ray[serve]==2.60.0",), packages=("ray",), runs=())
"""Not a queue: it is called, not submitted to. Tuned: 512 requests at once per replica, as many as our worker has
slots, and RAY_SERVE_THROUGHPUT_OPTIMIZED."""
