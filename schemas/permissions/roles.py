"""The permissions that each role needs on the server: subjects to publish to and to subscribe to.

Roles can be combined: a program that calls and submits tasks is ROUTER and PRODUCER. Inboxes are `_INBOX.<user>.>`:
each user may subscribe only to its own, so nobody reads another's answers. Roles that answer requests may publish to
all inboxes, since their names cannot be guessed. `allow_responses` would be stricter, but the server keeps a table of
permitted responses with a time limit. Answers may come hours after a request, and many go to one reply subject, so
only dispatchers use it: they answer once, and within a minute.

A role that may publish to a subject may also publish to its private one (Names.private), and a responder may subscribe
to both. Nobody else may subscribe to private subjects, so "no responders" there means that nobody answers.

The patterns match subjects and keys that schemas.names builds; `nats_config` writes them as a server's configuration.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..errors.base import InvalidRequest
from ..names import PRIVATE, DispatcherOperation, GangOperation, Names, Operation, QueueOperation, check_name

INBOXES: Final = "_INBOX"
"""First token of all inboxes."""
ANY_INBOX: Final = f"{INBOXES}.>"
USER_INFO: Final = "$SYS.REQ.USER.INFO"
"""The server tells each user who it is, without an import."""
_ANSWERS_S: Final = 60
"""Time limit for a dispatcher's answer, in seconds; cancelling waits until a task has stopped, and a request for
results for MAX_RESULT_WAIT_S at most."""
_ANSWERS: Final = (ANY_INBOX, "_R_.>")
"""Inboxes, and the reply subjects that the server creates for requests from other accounts."""
_FRAMES: Final = (Operation.FRAMES,)
_LEASING: Final = (Operation.RESERVE, Operation.DISPATCH, Operation.RENEW, Operation.RELEASE, Operation.SCHEMAS)
"""Operations that other languages use; they have no frames."""
_GANG: Final = (
    Operation.HOLD,
    Operation.UNHOLD,
    Operation.KEEP,
    Operation.FORM,
    Operation.TEARDOWN,
    Operation.PING,
)
_READ: Final = ("STREAM.INFO", "STREAM.MSG.GET")
"""Not DIRECT.GET: its answer is the stored message as it is, and goes wherever the request says."""


class Role(StrEnum):
    """Role of a user of the server."""

    PRODUCER = "producer"
    """Calls through gateways, submits tasks, reads results."""
    ROUTER = "router"
    """Chooses workers itself, as Python clients do: calls, leases and gangs."""
    OWNER = "owner"
    """Asks for gangs and runs tasks on their members, with plain requests. A tenant may have it."""
    GATEWAY = "gateway"
    WORKER = "worker"
    DISPATCHER = "dispatcher"
    COORDINATOR = "coordinator"
    """With or without shards."""
    OBSERVER = "observer"
    """Reads everything, arguments and results included, and changes nothing: for consoles, dashboards and people who
    watch."""
    OPERATOR = "operator"
    """May do everything in its namespace, except read other users' inboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects that a user may publish and subscribe to; all others are refused."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    """`<subject> <queue>`: only as a member of that queue group."""
    answers_s: int = 0
    """`allow_responses`: one answer to a message with a reply subject is allowed, within this many seconds. 0: none."""

    def __or__(self, other: Permissions) -> Permissions:
        return Permissions(
            publish=_once(self.publish + other.publish),
            subscribe=_once(self.subscribe + other.subscribe),
            answers_s=max(self.answers_s, other.answers_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of the server.

    Raises:
        InvalidName: the user, pool, worker or tenant is not a valid subject token.
        InvalidRequest: no role, or one that a tenant cannot have.
    """

    name: str
    roles: tuple[Role, ...]
    pool: str = "*"
    """Limits workers and routers to one pool, owners to running tasks there, and producers to one endpoint. (Such a
    producer still reads the results of all endpoints, and cannot delay tasks.) `*`: no limit."""
    worker: str = "*"
    """Limits a worker to one name within the pool."""
    tenant: str = ""
    """Its account, which imports what it needs from Gangline's account; empty: Gangline's own account."""

    def __post_init__(self) -> None:
        check_name(self.name, "user")
        for value, kind in ((self.pool, "pool"), (self.worker, "worker")):
            if value != "*":
                check_name(value, kind)
        if not self.roles:
            raise InvalidRequest(f"user {self.name!r} has no role: give one of {', '.join(Role)}")
        if self.tenant:
            check_name(self.tenant, "tenant")
            if not {Role.PRODUCER, Role.OWNER, Role.WORKER}.issuperset(self.roles):
                raise InvalidRequest(
                    f"user {self.name!r} of tenant {self.tenant!r} may only be a producer, an owner or a worker: the "
                    "other roles make consumers and streams, and belong in Gangline's own account"
                )

    @property
    def inbox(self) -> str:
        """`ConnectionSettings.inbox_prefix` of this user."""
        return f"{INBOXES}.{self.name}"

    def permissions(self, names: Names) -> Permissions:
        """The permissions of all its roles, and its inbox."""
        found = Permissions(subscribe=(f"{self.inbox}.>",))
        for role in self.roles:
            found |= permissions(role, names, pool=self.pool, worker=self.worker, user=self.name)
        return found


def permissions(role: Role, names: Names, *, user: str = "*", pool: str = "*", worker: str = "*") -> Permissions:
    """The permissions of a role, without its inbox.

    Args:
        user: name of the user, in which an operator writes to the audit trail; `*`: any.
        pool, worker: see User.
    """
    match role:
        case Role.PRODUCER:
            return _producer(names, pool)
        case Role.ROUTER:
            return _router(names, pool)
        case Role.OWNER:
            return _owner(names, pool)
        case Role.GATEWAY:
            return _gateway(names)
        case Role.WORKER:
            return _worker(names, pool, worker)
        case Role.DISPATCHER:
            return _dispatcher(names)
        case Role.COORDINATOR:
            return _coordinator(names)
        case Role.OBSERVER:
            return _observer(names)
        case Role.OPERATOR:
            return _operator(names, user)


@functools.lru_cache(maxsize=256)
def roles_that_may(*subjects: str, publish: bool) -> tuple[Role, ...]:
    """The roles that may publish to all these subjects, or else subscribe to them, in whatever pool.

    Returns:
        Empty: no role may, or they are no subjects of Gangline.
    """
    found = [role for namespace in _namespaces(subjects) for role in Role if _may(role, namespace, subjects, publish)]
    return tuple(dict.fromkeys(found))


def _namespaces(subjects: Iterable[str]) -> Iterable[str]:
    """What may be the namespace of one of them: its first token, or the beginning of a stream's name."""
    found = dict[str, None]()
    for token in (token for subject in subjects for token in subject.split(".")):
        stream = token.removeprefix("KV_").removeprefix("OBJ_").rpartition("_")[0].lower()
        for name in (token, token.rpartition("-")[0], stream):
            if name.isascii() and name.islower() and name.replace("_", "").replace("-", "").isalnum():
                found[name] = None
    return found


def _may(role: Role, namespace: str, subjects: Iterable[str], publish: bool) -> bool:
    found = permissions(role, Names(namespace))
    allowed = [pattern.partition(" ")[0] for pattern in (found.publish if publish else found.subscribe)]
    return all(any(covers(pattern, subject) for pattern in allowed) for subject in subjects)


def covers(wider: str, subject: str) -> bool:
    """Whether a pattern matches a subject, or all that another pattern matches."""
    tokens, wanted = subject.split("."), wider.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > place
        if place >= len(tokens) or tokens[place] == ">" or token not in ("*", tokens[place]):
            return False
    return len(tokens) == len(wanted)


# -- roles --------------------------------------------------------------------------------------------------------


def _producer(names: Names, endpoint: str) -> Permissions:
    ns, tasks, jobs = names.namespace, names.tasks_stream, names.jobs_stream
    results, objects = names.results_bucket, f"OBJ_{names.objects_store}"
    # Ids of jobs name their endpoint, or none.
    jobs_read = ("*", f"{endpoint}.*")
    return Permissions(
        publish=(
            *names.both(f"{ns}.call.{endpoint}.*"),
            # Items of streamed calls, by a name that only the caller has learnt.
            *names.both(names.stream("*", "*")),
            f"{ns}.task.{endpoint}.*",
            *_both(names, *(f"{ns}.queue.{endpoint}.{operation}" for operation in QueueOperation)),
            *_api("INFO"),
            # Its own account, to tell its jobs from those of others.
            USER_INFO,
            # Results and the states of jobs. No purging, no deleting, no consumers of tasks.
            *_stream_api(tasks, "STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.LIST"),
            *_stream_api(names.schedules_stream, *_READ),
            *_stream_api(f"KV_{results}", "STREAM.INFO", "STREAM.MSG.GET"),
            *_stream_api(objects, "STREAM.INFO", "STREAM.MSG.GET"),
            # Events and items of jobs. No consumers: their creator chooses where the server delivers.
            *_stream_api(jobs, "STREAM.INFO", "STREAM.MSG.GET"),
        ),
        # The same, as they are published.
        subscribe=(
            *(f"$KV.{results}.result.{job}" for job in jobs_read),
            *((f"{ns}.job.*.>",) if endpoint == "*" else (f"{ns}.job.{job}.*" for job in jobs_read)),
        ),
    )


def _router(names: Names, pool: str) -> Permissions:
    return _routing(names, pool) | Permissions(publish=(*_workers(names, _LEASING, pool), *_owning(names)))


def _owner(names: Names, pool: str) -> Permissions:
    # Workers run nothing there without the token of a seat.
    return Permissions(publish=(*_owning(names), *_workers(names, (Operation.DISPATCH,), pool)))


def _owning(names: Names) -> tuple[str, ...]:
    others = (GangOperation.REPORT, GangOperation.END)
    return _both(names, *(names.gang(operation) for operation in GangOperation if operation not in others))


def _routing(names: Names, pool: str) -> Permissions:
    ledger = names.ledger_bucket
    return Permissions(
        publish=(
            *_workers(names, _FRAMES, pool),
            # Every reader reports an invalid route.
            f"{names.namespace}.event.route.*",
            # And the number of requests that wait in it.
            f"{names.namespace}.event.router.*",
            *_api("INFO"),
            *_bucket_reading(ledger),
            *_bucket_reading(names.routes_bucket),
        ),
        subscribe=(
            f"$KV.{ledger}.reg.{pool}.*",
            f"$KV.{ledger}.alive.{pool}.*",
            f"$KV.{ledger}.gangset.*",
            f"$KV.{names.routes_bucket}.>",
            names.gang_events,
        ),
    )


def _gateway(names: Names) -> Permissions:
    return (
        _routing(names, "*")
        | _service("gangline-gateway")
        | Permissions(
            publish=(
                *_ANSWERS,
                *_api(*(f"STREAM.CREATE.KV_{bucket}" for bucket in (names.ledger_bucket, names.routes_bucket))),
            ),
            subscribe=(
                *(f"{subject} {names.gateway_queue}" for subject in names.both(names.calls)),
                *names.both(names.stream("*", "*")),
            ),
        )
    )


def _worker(names: Names, pool: str, worker: str) -> Permissions:
    ns, ledger = names.namespace, names.ledger_bucket
    return _service("gangline-worker") | Permissions(
        publish=(
            *_ANSWERS,
            f"{ns}.event.worker.{pool}.{worker}",
            f"{ns}.job.*.progress",
            f"{ns}.job.*.*.progress",
            names.gang_report(pool, worker),
            names.gang_talks,
            *(f"$KV.{ledger}.{kind}.{pool}.{worker}" for kind in ("reg", "alive")),
            f"$KV.{ledger}.lease.{pool}.{worker}.*",
            # All workers of a pool divide the limits of its tasks.
            f"$KV.{ledger}.limit.{pool}.*",
            names.history(f"worker.{pool}.{worker}"),
            *_api("INFO"),
            # No consumers: their creator chooses where the server delivers. And no creating: the ledger's creator
            # decides what it stores and where copies go.
            *_stream_api(f"KV_{ledger}", *_READ),
        ),
        subscribe=(
            f"{ns}.worker.{pool}.{worker}.*",
            f"{PRIVATE}.{ns}.worker.{pool}.{worker}.*.*",
            f"$KV.{ledger}.limit.{pool}.*",
            names.gang_talks,
        ),
    )


def _dispatcher(names: Names) -> Permissions:
    ns, tasks, results = names.namespace, names.tasks_stream, names.results_bucket
    objects = f"OBJ_{names.objects_store}"
    buckets = (names.ledger_bucket, results, names.routes_bucket)
    queues = ("CREATE", "INFO", "DELETE", "MSG.NEXT")
    serving = Permissions(
        publish=(
            *_workers(names, (Operation.FRAMES, Operation.JOBS), "*"),
            f"{ns}.dead.*.*",
            f"{ns}.sched.*",
            f"{ns}.sched.*.*",
            f"{ns}.job.*.*",
            f"{ns}.job.*.*.*",
            *names.both(f"{ns}.dispatcher.*.ping"),
            *(f"{ns}.event.{kind}.*" for kind in ("dispatcher", "task", "route", "router")),
            *(f"$KV.{results}.{key}" for key in ("result.*", "result.*.*", "try.*.*", "try.*.*.*", "turn.*")),
            f"$O.{names.objects_store}.>",
            names.history("dispatcher.*"),
            *_api("INFO"),
            *_stream_api(names.history_stream, "STREAM.INFO"),
            *(subject for bucket in buckets for subject in _bucket_reading(bucket)),
            *_stream_api(tasks, "STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "CONSUMER.LIST"),
            *(f"$JS.API.CONSUMER.{operation}.{tasks}.*" for operation in queues),
            f"$JS.ACK.{tasks}.>",
            # The same with a domain and an account, as some servers write it.
            f"$JS.ACK.*.*.{tasks}.>",
            *_stream_api(names.schedules_stream, *_READ, "STREAM.PURGE"),
            *_stream_api(names.jobs_stream, "STREAM.INFO"),
            *_stream_api(names.dead_stream, "STREAM.INFO"),
            *_stream_api(objects, "STREAM.INFO", "STREAM.MSG.GET", "STREAM.PURGE"),
        ),
        subscribe=(
            *(f"$KV.{names.ledger_bucket}.{kind}.*.*" for kind in ("reg", "alive")),
            # Tasks may be submitted to standing sets.
            f"$KV.{names.ledger_bucket}.gangset.*",
            names.gang_events,
            f"$KV.{names.routes_bucket}.>",
            *_both(names, f"{ns}.queue.*.*", f"{ns}.dispatcher.*.*"),
            names.dispatcher_events,
        ),
        answers_s=_ANSWERS_S,
    )
    streams = (
        tasks,
        names.schedules_stream,
        names.jobs_stream,
        names.dead_stream,
        names.history_stream,
        objects,
        *(f"KV_{bucket}" for bucket in buckets),
    )
    return serving | _service("gangline-dispatcher") | _making(*streams)


def _coordinator(names: Names) -> Permissions:
    ns, ledger = names.namespace, names.ledger_bucket
    keys = (
        "leader",
        "leader.*",
        "leader_alive",
        "leader_alive.*",
        "complete",
        "complete.*",
        "shards",
        "gang.*",
        "member.*.*.*",
        # Those that were lost with their server.
        "gangset.*",
        "gangset_status.*",
    )
    leading = Permissions(
        publish=(
            *_ANSWERS,
            *_workers(names, _GANG, "*"),
            *names.both(f"{ns}.gang-shard.*.*"),
            names.gang_events,
            *(f"$KV.{ledger}.{key}" for key in keys),
            names.history("coordinator.*"),
            "$SRV.PING.gangline-coordinator",
            *_api("INFO"),
            *_stream_api(names.history_stream, "STREAM.INFO"),
            *_bucket_reading(ledger),
        ),
        subscribe=(
            *names.gang_subjects,
            *names.both(f"{ns}.gang-shard.*.*"),
            f"$KV.{ledger}.alive.*.*",
            "$SYS.ACCOUNT.*.DISCONNECT",
        ),
    )
    return leading | _service("gangline-coordinator") | _making(f"KV_{ledger}", names.history_stream)


def _observer(names: Names) -> Permissions:
    ns = names.namespace
    gangs = (GangOperation.GET, GangOperation.LIST, GangOperation.WHY)
    queues = (QueueOperation.GET, QueueOperation.STATS, QueueOperation.WHY, QueueOperation.WAIT, QueueOperation.LIST)
    buckets = (names.ledger_bucket, names.results_bucket, names.routes_bucket)
    streams = (*_streams(names), names.audit_stream, names.history_stream)
    discovery = ("$SRV.PING", "$SRV.INFO", "$SRV.STATS")
    return Permissions(
        publish=(
            *_workers(names, (Operation.STATS,), "*"),
            *_both(names, *(names.gang(operation) for operation in gangs)),
            *_both(names, *(f"{ns}.queue.*.{operation}" for operation in queues)),
            *_both(names, *(f"{ns}.dispatcher.*.{operation}" for operation in DispatcherOperation)),
            *_api("INFO"),
            USER_INFO,
            # No consumers: their creator chooses where the server delivers.
            *(subject for stream in streams for subject in _stream_api(stream, *_READ, "CONSUMER.LIST")),
            *_api(*(f"CONSUMER.INFO.{stream}.*" for stream in streams)),
            *(subject for verb in discovery for subject in (verb, f"{verb}.>")),
        ),
        # Not what workers and coordinators are asked: requests have the tokens of leases.
        subscribe=(
            f"{ns}.event.>",
            names.jobs,
            names.all_dead,
            *(f"$KV.{bucket}.>" for bucket in buckets),
            names.audit("*"),
            names.history(">"),
        ),
    )


def _operator(names: Names, user: str) -> Permissions:
    ns = names.namespace
    stored = (
        *(f"$KV.{bucket}.>" for bucket in (names.ledger_bucket, names.results_bucket, names.routes_bucket)),
        f"$O.{names.objects_store}.>",
    )
    return Permissions(
        # Only responders may subscribe to private subjects: "no responders" must mean that nobody answers.
        publish=(
            *names.both(f"{ns}.>"),
            *stored,
            *_api("INFO", "STREAM.NAMES", "STREAM.LIST"),
            USER_INFO,
            *(subject for stream in _streams(names) for subject in _operating(stream)),
            "$SRV.>",
            # The audit trail is read by all operators; each adds to it in its own name, and none changes it.
            names.audit(user),
            *_stream_api(names.audit_stream, *_READ, "STREAM.CREATE"),
            *_reader_api(names.audit_stream),
            # The history is written by those who decide.
            *_stream_api(names.history_stream, *_READ, "STREAM.CREATE"),
            *_reader_api(names.history_stream),
        ),
        subscribe=(f"{ns}.>", names.audit("*"), names.history(">"), *stored, "$JS.EVENT.>", "$SRV.>"),
    )


# -- building blocks -----------------------------------------------------------------------------------------------


def _workers(names: Names, operations: Iterable[Operation], pool: str) -> tuple[str, ...]:
    public = f"{names.namespace}.worker.{pool}.*"
    return tuple(
        subject
        for operation in operations
        for subject in (f"{public}.{operation}", f"{PRIVATE}.{public}.*.{operation}")
    )


def _both(names: Names, *subjects: str) -> tuple[str, ...]:
    return tuple(each for subject in subjects for each in names.both(subject))


def _service(name: str) -> Permissions:
    """Answer `nats service`, and find other services (`gangline health`)."""
    return Permissions(
        publish=("$SRV.PING",),
        subscribe=("$SRV.PING", "$SRV.INFO", "$SRV.STATS", f"$SRV.*.{name}", f"$SRV.*.{name}.*"),
    )


def _api(*operations: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{operation}" for operation in operations)


def _stream_api(stream: str, *operations: str) -> tuple[str, ...]:
    return _api(*(f"{operation}.{stream}" for operation in operations))


def _streams(names: Names) -> tuple[str, ...]:
    """All streams of the namespace."""
    buckets = (names.ledger_bucket, names.results_bucket, names.routes_bucket)
    queues = (names.tasks_stream, names.schedules_stream, names.jobs_stream, names.dead_stream)
    return (*queues, f"OBJ_{names.objects_store}", *(f"KV_{bucket}" for bucket in buckets))


def _operating(stream: str) -> tuple[str, ...]:
    """The whole API of one stream and its consumers. Operations are spelled out where a wildcard could match the name
    of another stream."""
    return (
        *_stream_api(stream, "STREAM.*", "STREAM.MSG.*", "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE"),
        *_stream_api(stream, "CONSUMER.*", "DIRECT.GET"),
        *_api(*(f"{operation}.{stream}.>" for operation in ("CONSUMER.*", "DIRECT.GET"))),
        *_api(*(f"CONSUMER.{operation}.{stream}.*" for operation in ("DURABLE.CREATE", "MSG.NEXT", "LEADER.STEPDOWN"))),
        f"$JS.ACK.{stream}.>",
        f"$JS.ACK.*.*.{stream}.>",
        f"$JS.FC.{stream}.>",
        *(f"$JS.SNAPSHOT.{operation}.{stream}.*" for operation in ("RESTORE", "ACK")),
    )


def _reader_api(stream: str) -> tuple[str, ...]:
    """Short-lived consumers, each with its own name."""
    return _api(f"CONSUMER.CREATE.{stream}.*", f"CONSUMER.DELETE.{stream}.*")


def _bucket_reading(bucket: str) -> tuple[str, ...]:
    """Reading single keys and lists of keys, also by a consumer for more than a thousand of them."""
    return (*_stream_api(f"KV_{bucket}", *_READ), *_reader_api(f"KV_{bucket}"))


def _making(*streams: str) -> Permissions:
    """Create missing streams, and let a bucket that a cluster lost continue at its last revision."""
    buckets = [stream for stream in streams if stream.startswith("KV_")]
    return Permissions(
        publish=_api(
            *(f"STREAM.CREATE.{stream}" for stream in streams), *(f"STREAM.PURGE.{bucket}" for bucket in buckets)
        )
    )


def _once(subjects: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(subjects))
