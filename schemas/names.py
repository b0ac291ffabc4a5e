"""Builds and parses every subject and every key; no other module does.

`<ns>` is the namespace, `gangline` unless configured. Ids are part of subjects, so the `nats` CLI can filter by them.

==========================================================  ==================================================
subject                                                     sender -> receiver
==========================================================  ==================================================
`<ns>.call.<endpoint>.<method>`                             anyone -> gateways (queue group)
`<ns>.stream.<gateway>.<stream>`                            callers -> that gateway: the next items of a call
`<ns>.worker.<pool>.<worker>.<operation>`                   routers, operators and other languages -> that worker
`<ns>.event.worker.<pool>.<worker>`                         broadcast: joined, draining, left, epoch
`<ns>.gang.<operation>`                                     owners and operators -> the leading coordinator
`<ns>.gang.report.<pool>.<worker>`                          that worker -> the leading coordinator
`<ns>.gang-shard.<shard>.<operation>`                       between leaders of shards
`<ns>.event.gang.<gang>`                                    broadcast: formed, torn down, restarting, ended, ...
`<ns>.gang-talk.<gang>.<generation>.<run>.<rank or all>`    between members (see worker.gangs.collectives_core)
`<ns>.task.<endpoint>.<method>`                             anyone; the stream `<NS>_TASKS` keeps it (see submission)
`<ns>.sched.<id>`                                           dispatchers; the stream `<NS>_SCHED` delays and repeats it
`<ns>.due.<endpoint>.<method>`                              that stream; `<NS>_TASKS` takes it over as a task
`<ns>.dead.<endpoint>.<method>`                             dispatchers; the stream `<NS>_DEAD` keeps it
`<ns>.job.<job>.<kind>`                                     dispatchers and workers; the stream `<NS>_JOBS` keeps it
`<ns>.queue.<endpoint>.<operation>`                         clients and operators -> the dispatcher that owns it
`<ns>.dispatcher.<dispatcher>.<operation>`                  dispatchers and operators -> that dispatcher
`<ns>.event.dispatcher.<dispatcher>`                        broadcast: joined, here, queues handed over, left
`<ns>.event.router.<router>`                                broadcast: how many requests wait in that router
`<ns>.event.task.<endpoint>`                                broadcast: a task became a dead letter
`_GANGLINE.<ns>.worker.<pool>.<worker>.<channel>.<op.>`     routers, coordinators, dispatchers -> that one process
`_GANGLINE.<subject>`                                       as `<subject>`, for any subject above with answers
==========================================================  ==================================================

The last two are private subjects. A watcher of `<ns>.>` does not subscribe to them, so the server still reports "no
responders" there. Gangline's own processes send requests only to private subjects (docs/adr/0011).

Keys of the ledger bucket (`<NS>_LEDGER`; a single stream, so that one atomic batch can change several keys):

==========================================================  ==================================================
key                                                         value
==========================================================  ==================================================
`reg.<pool>.<worker>`                                       Registration; changes rarely (epoch, drain, resize)
`alive.<pool>.<worker>`                                     Heartbeat; every second, expires after three
`lease.<pool>.<worker>.<id>`                                LeaseRecord; expires with the lease
`limit.<pool>.<method>`                                     LimitRecord: shares of a limit over all workers
`leader`, `leader_alive`                                    LeaderRecord, LeaderAlive; the latter expires after 2 s
`leader.<shard>`, `leader_alive.<shard>`                    the same for each shard, if coordinators are sharded
`complete`, `complete.<shard>`                              LedgerComplete: a ledger without it was lost, or is new
`shards`                                                    ShardMap: which shard owns which pools
`gang.<gang>`                                               GangRecord
`member.<pool>.<worker>.<gang>`                             MemberRecord
`gangset.<name>`                                            GangSetRecord
`gangset_status.<name>`                                     GangSetStatus
==========================================================  ==================================================

Keys of the result bucket (`<NS>_RESULTS`); a task's keys are never reused by another one:

==========================================================  ==================================================
`result.<job>`                                              ResultRecord; expires
`try.<endpoint>.<job>`                                      TryRecord; while a failed job waits for its next try
`turn.<endpoint>`                                           TurnRecord; its revision is part of the tasks' fences
==========================================================  ==================================================

Keys of the route bucket (`<NS>_ROUTES`) are names of endpoints, values RouteRecords.
"""

from __future__ import annotations

import functools
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final, Literal

from .errors.base import InvalidName
from .limits import MAX_NAME_CHARS, MAX_TOKEN_CHARS

MARK: Final = "~"
"""Prefix of every public id; no token starts with it.

A lease's token is enough to use and release its slots, and an owner's token to release its gang. So only the holder and
the worker or coordinator that checks it have a token. Everything that others can read (keys and records of the ledger,
lists, events, journals, logs, errors) has the token's public id instead: a one-way hash that gives no access. See
docs/adr/0012.
"""


@functools.lru_cache(maxsize=8192)  # a renewed lease is written many times
def public_id(token: str) -> str:
    """The public id of a token: the mark, and the first 16 bytes of its SHA-256 in URL-safe base64. A public id is
    returned unchanged."""
    if token.startswith(MARK):
        return token
    return MARK + urlsafe_b64encode(sha256(token.encode()).digest()[:16])[:22].decode()


def is_token_of(token: str | None, id: str) -> bool:
    """Whether that is the token with this public id. The id itself is not."""
    return token is not None and not token.startswith(MARK) and public_id(token) == id


PRIVATE: Final = "_GANGLINE"
"""First token of private subjects."""
CHANNEL_CHARS: Final = 8
"""Length of the token that tells apart the private subjects of two processes with one id. Short, because each
message has it."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OF_TENANT = re.compile(r"t([1-9][0-9]{0,2})-")
"""The beginning of the names that job_of_tenant makes: the length of the tenant, which follows."""
_KEY_PARTS = {"reg": 3, "alive": 3, "lease": 4, "member": 4}


class Operation(StrEnum):
    """Last token of a worker's subject."""

    FRAMES = "frames"
    """Envelopes of frames between routers and the worker (msgpack; see schemas.wire.frames)."""
    RESERVE = "reserve"
    """Lease slots (see schemas.messages.operations; this and all below accept JSON or msgpack, from any language)."""
    DISPATCH = "dispatch"
    """Run one task on a lease; the answer is the bare result."""
    RENEW = "renew"
    RELEASE = "release"
    STATS = "stats"
    DRAIN = "drain"
    RESIZE = "resize"
    SCHEMAS = "schemas"
    """JSON Schemas of its tasks, by their hashes in the registration."""
    HOLD = "hold"
    """From here on only the leading coordinator sends requests (see schemas.messages.gangs)."""
    UNHOLD = "unhold"
    KEEP = "keep"
    FORM = "form"
    TEARDOWN = "teardown"
    PING = "ping"
    JOBS = "jobs"
    """Durable tasks that run here or have just ended; used by dispatchers that take a queue over."""


class QueueOperation(StrEnum):
    """Last token of the subjects of an endpoint's queue; see schemas.records.jobs."""

    GET = "get"
    """The status of one job."""
    CANCEL = "cancel"
    STATS = "stats"
    WHY = "why"
    """Why a job is not running."""
    WAIT = "wait"
    """Wait for the results of several jobs."""
    LIST = "list"
    """The jobs that the dispatcher has fetched."""


class DispatcherOperation(StrEnum):
    """Last token of a dispatcher's own subjects."""

    PING = "ping"
    STATS = "stats"


class JobFeed(StrEnum):
    """Last token of the subjects for states, progress and items of a job; see schemas.records.jobs."""

    STATE = "state"
    PROGRESS = "progress"
    ITEM = "item"


class GangOperation(StrEnum):
    """Last token of the leading coordinator's subjects."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    END = "end"
    """From operators, whoever the owner is."""
    GET = "get"
    LIST = "list"
    WHY = "why"
    REPORT = "report"
    """From workers: a member started or failed. Published, or sent as a request for an acknowledgement. The worker is
    in the subject (Names.gang_report), so permissions limit a worker to reports of its own; workers of earlier
    versions use the subject without it."""


def rate_of(method: str) -> str:
    """The name under which the rate of a method is divided, beside the limit of how many run. No method has such a
    name, and permissions for limits cover it."""
    return f"{method}=rate"


_seen: Final[set[str]] = set()
"""Names known to be valid: pools, endpoints and methods come with every request. Bounded; only short names, which
leaves out most that occur once, such as ids of jobs."""
_MOST_SEEN: Final = 10_000
_SHORT: Final = 22


def check_name(value: str, kind: str) -> str:
    """Return `value` if it is valid as one token of a subject.

    Raises:
        InvalidName: empty, too long, or with a character outside `[A-Za-z0-9_-]`.
    """
    if type(value) is str and value in _seen:
        return value
    limit = MAX_TOKEN_CHARS if kind in ("token", "rid") else MAX_NAME_CHARS
    if not isinstance(value, str) or not value:
        raise InvalidName(f"{kind} is empty: give a name of letters, digits, '_' or '-'")
    if len(value) > limit:
        raise InvalidName(f"{kind} {value[:20]!r}... has {len(value)} characters, at most {limit} are allowed")
    if not _NAME.fullmatch(value):
        raise InvalidName(f"{kind} {value!r} may only have letters, digits, '_' and '-'")
    if limit == MAX_NAME_CHARS and len(value) <= _SHORT and len(_seen) < _MOST_SEEN:
        _seen.add(value)
    return value


def is_name(value: str) -> bool:
    """Whether `check_name` accepts it."""
    return 0 < len(value) <= MAX_NAME_CHARS and _NAME.fullmatch(value) is not None


def check_job(value: str) -> str:
    """Return `value` if it is valid as a job's id: a name, or `<endpoint>.<name>`, which only a task of that endpoint
    can have.

    Raises:
        InvalidName: it is not.
    """
    endpoint, dot, name = value.partition(".") if isinstance(value, str) else (value, "", value)
    if dot:
        check_name(endpoint, "endpoint of the job")
    check_name(name if dot else value, "job")
    return value


def is_job_of(value: str, endpoint: str) -> bool:
    """Whether a task of that endpoint can have this id."""
    owner, dot, name = value.rpartition(".")
    return is_name(name) and (not dot or owner == endpoint)


def job_of_tenant(job: str, endpoint: str, tenant: str) -> str:
    """The id that a tenant's job has in Gangline's account, where no other tenant can have it. `job`: the id that the
    tenant gave; one that has its name already stays as it is.

    All characters are those of a name, so that processes of earlier versions accept it. The length makes it clear where
    the tenant ends.
    """
    name = job.rpartition(".")[2]
    mark, long_mark = _marks_of(tenant)
    if not name.startswith((mark, long_mark)):
        short = mark + name
        name = short if len(short) <= MAX_NAME_CHARS else long_mark + _hashed(name, 26)
    return f"{endpoint}.{name}"


def belongs_to(job: str, tenant: str) -> bool:
    """Whether an id is one of that tenant's, as `job_of_tenant` makes them."""
    return job.rpartition(".")[2].startswith(_marks_of(tenant))


@functools.lru_cache(maxsize=1024)  # every task of a tenant has such an id
def _marks_of(tenant: str) -> tuple[str, str]:
    """How names of its jobs begin, and how those begin that would be too long so."""
    return f"t{len(tenant)}-{tenant}-", f"t-{_hashed(tenant, 16)}-"


def short_job(job: str) -> str:
    """The id that a tenant gave to its job, with the endpoint; others as they are."""
    endpoint, dot, name = job.rpartition(".")
    found = _OF_TENANT.match(name)
    if not dot or found is None or name[found.end() + int(found[1]) :][:1] != "-":
        return job
    return f"{endpoint}.{name[found.end() + int(found[1]) + 1 :]}"


def _hashed(text: str, chars: int) -> str:
    return sha256(text.encode()).hexdigest()[:chars]


def job_endpoint(job: str) -> str | None:
    """The endpoint that a job's id names; None: it names none, and any task can have it."""
    return job.partition(".")[0] if "." in job else None


@functools.lru_cache(maxsize=4096)  # every request has one, and they repeat
def split_target(target: str) -> tuple[str, str]:
    """`"images.thumbnail"` -> `("images", "thumbnail")`.

    Raises:
        InvalidName: not exactly two names joined by one dot.
    """
    endpoint, dot, method = target.partition(".")
    if not dot:
        raise InvalidName(f"{target!r} is not ENDPOINT.METHOD, for example 'images.thumbnail'")
    return check_name(endpoint, "endpoint"), check_name(method, "method")


_LEDGER: Final = "_LEDGER"


def takes_batches(bucket: str) -> bool:
    """Whether a bucket takes atomic batches: only the ledger of a namespace does."""
    return bucket.endswith(_LEDGER)


def split_tenant(subject: str) -> tuple[str, str]:
    """The subject of a stored task as its submitter wrote it, and the tenant that the server has added; empty: none."""
    written, _, tenant = subject.partition(".@")
    return written, tenant


def _or_blank(name: str) -> str:
    return name if _NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS else "_"


@dataclass(frozen=True, slots=True)
class WorkerId:
    """A worker's full name. `worker` is unique within its pool.

    Raises:
        InvalidName: either part is not a valid subject token.
    """

    pool: str
    worker: str

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        check_name(self.worker, "worker")

    def __hash__(self) -> int:
        # The hash of `worker`, which str caches; workers of two pools seldom have the same name.
        return hash(self.worker)

    @classmethod
    def parse(cls, text: str) -> WorkerId:
        """`"images.w1"` -> `WorkerId("images", "w1")`.

        Raises:
            InvalidName: not exactly two names joined by one dot.
        """
        pool, dot, worker = text.partition(".")
        if not dot:
            raise InvalidName(f"{text!r} is not POOL.WORKER, for example 'images.w1'")
        return cls(pool, worker)

    def __str__(self) -> str:
        return f"{self.pool}.{self.worker}"


@dataclass(frozen=True, slots=True)
class Names:
    """Subjects and keys of one namespace.

    Raises:
        InvalidName: the namespace is not a valid subject token, or has capitals (its bucket's name is in capitals, so
            two namespaces that differ only in case would share one).
    """

    namespace: str = "gangline"

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        if self.namespace != self.namespace.lower():
            raise InvalidName(f"namespace {self.namespace!r} must be lower case: use {self.namespace.lower()!r}")

    # -- subjects -------------------------------------------------------------------------------------------------

    @staticmethod
    def private(subject: str) -> str:
        """The private subject of `subject`. Our own processes send there; responders subscribe to both."""
        return f"{PRIVATE}.{subject}"

    @staticmethod
    def both(subject: str) -> tuple[str, str]:
        """The subjects that a responder for `subject` subscribes to."""
        return subject, f"{PRIVATE}.{subject}"

    def call(self, endpoint: str, method: str) -> str:
        return f"{self.namespace}.call.{check_name(endpoint, 'endpoint')}.{check_name(method, 'method')}"

    @property
    def calls(self) -> str:
        """The subscription of a gateway. Wide, so that a malformed target gets an answer and is not lost."""
        return f"{self.namespace}.call.>"

    @property
    def gateway_queue(self) -> str:
        return f"{self.namespace}-gateway"

    def parse_call(self, subject: str) -> tuple[str, str]:
        """Inverse of :meth:`call`; also accepts its private subject."""
        subject = subject.removeprefix(f"{PRIVATE}.")
        prefix = f"{self.namespace}.call."
        if not subject.startswith(prefix):
            raise InvalidName(f"{subject!r} does not start with {prefix!r}")
        return split_target(subject[len(prefix) :])

    def stream(self, gateway: str, stream: str) -> str:
        """Where a caller asks a gateway for the next items; both names are tokens that cannot be guessed."""
        return f"{self.namespace}.stream.{gateway}.{stream}"

    def parse_stream(self, subject: str) -> str:
        """The stream in a subject built by :meth:`stream`; also accepts its private subject.

        Raises:
            InvalidName: it is not such a subject.
        """
        head, _, rest = subject.removeprefix(f"{PRIVATE}.").partition(".stream.")
        gateway, _, stream = rest.partition(".")
        if head != self.namespace:
            raise InvalidName(f"{subject!r} is not the subject of a stream")
        check_name(gateway, "gateway")
        return check_name(stream, "stream")

    def worker(self, worker: WorkerId, operation: Operation | str, channel: str = "") -> str:
        """The subject of any process with that id; with the `channel` from its registration, of that one process."""
        public = f"{self.namespace}.worker.{worker.pool}.{worker.worker}"
        return f"{PRIVATE}.{public}.{channel}.{operation}" if channel else f"{public}.{operation}"

    def worker_operations(self, worker: WorkerId, channel: str = "") -> str:
        """The subscriptions of a worker, with and without its channel."""
        return self.worker(worker, "*", channel)

    def worker_event(self, worker: WorkerId) -> str:
        return f"{self.namespace}.event.worker.{worker.pool}.{worker.worker}"

    @property
    def events(self) -> str:
        return f"{self.namespace}.event.>"

    def gang(self, operation: GangOperation) -> str:
        return f"{self.namespace}.gang.{operation}"

    def gang_report(self, pool: str, worker: str) -> str:
        """Where a worker reports about its members; `*` for any."""
        return f"{self.gang(GangOperation.REPORT)}.{pool}.{worker}"

    @property
    def gang_operations(self) -> str:
        return f"{self.namespace}.gang.*"

    @property
    def gang_subjects(self) -> tuple[str, ...]:
        """The subscriptions of the leading coordinator; nobody else has them."""
        return (*self.both(self.gang_operations), self.gang_report("*", "*"))

    def parse_gang(self, subject: str) -> tuple[str, WorkerId | None]:
        """The operation of a request for gangs, and of a report its worker; None: the subject names none."""
        operation, _, sender = (
            subject.removeprefix(f"{PRIVATE}.").removeprefix(f"{self.namespace}.gang.").partition(".")
        )
        return operation, WorkerId.parse(sender) if sender else None

    @property
    def gang_queue(self) -> str:
        """The queue group of all shard leaders; one of them gets each request."""
        return f"{self.namespace}-gang"

    def shard(self, shard: str, operation: str) -> str:
        """From shard leaders to the leader of another shard."""
        return f"{self.namespace}.gang-shard.{check_name(shard, 'shard')}.{operation}"

    def gang_event(self, gang: str) -> str:
        return f"{self.namespace}.event.gang.{check_name(gang, 'gang')}"

    @property
    def gang_events(self) -> str:
        """Events of all gangs."""
        return f"{self.namespace}.event.gang.*"

    @property
    def gang_talks(self) -> str:
        """What members of all gangs tell each other."""
        return f"{self.namespace}.gang-talk.>"

    def gang_talk(self, gang: str, generation: int, run: int | Literal["*"], rank: int | Literal["left"] | None) -> str:
        """To one member of a gang, or (None) to all of them, or (`left`) from those whose task has ended. `run`: `*` to
        subscribe to all."""
        to = "all" if rank is None else rank
        return f"{self.namespace}.gang-talk.{check_name(gang, 'gang')}.{generation}.{run}.{to}"

    # -- durable tasks --------------------------------------------------------------------------------------------

    def task(self, endpoint: str, method: str) -> str:
        return f"{self.namespace}.task.{check_name(endpoint, 'endpoint')}.{check_name(method, 'method')}"

    @property
    def tasks(self) -> str:
        """The subjects of the task stream. Wide, so that a malformed target is stored and becomes a dead letter."""
        return f"{self.namespace}.task.>"

    def tasks_of(self, endpoint: str) -> str:
        """The filter of one endpoint's queue."""
        return f"{self.namespace}.task.{check_name(endpoint, 'endpoint')}.>"

    def of_tenant(self, subject: str, tenant: str) -> str:
        """The subject in Gangline's account of what a tenant publishes to `subject` in its own. The server adds the
        tenant to subjects of tasks, so that a stored task says whose it is, and no tenant can write another one."""
        return f"{subject}.@{tenant}" if tenant and subject.startswith(f"{self.namespace}.task.") else subject

    def parse_task(self, subject: str) -> tuple[str, str, str]:
        """Inverse of :meth:`task` and :meth:`of_tenant`: endpoint, method and tenant (empty: Gangline's own
        account)."""
        prefix = f"{self.namespace}.task."
        if not subject.startswith(prefix):
            raise InvalidName(f"{subject!r} does not start with {prefix!r}")
        target, at, tenant = subject[len(prefix) :].partition(".@")
        return *split_target(target), check_name(tenant, "tenant") if at else ""

    def schedule(self, id: str) -> str:
        return f"{self.namespace}.sched.{check_job(id)}"

    def parse_schedule(self, subject: str) -> str:
        """Inverse of :meth:`schedule`; empty: it is another subject."""
        prefix = self.schedules[:-1]
        return subject[len(prefix) :] if subject.startswith(prefix) else ""

    @property
    def schedules(self) -> str:
        return f"{self.namespace}.sched.>"

    @property
    def due(self) -> str:
        """Where schedules publish: these become tasks."""
        return f"{self.namespace}.due.>"

    def due_of(self, task: str) -> str:
        """The target of a schedule for a task of this subject."""
        return f"{self.due[:-1]}{task.removeprefix(self.tasks[:-1])}"

    def task_of_due(self, due: str) -> str:
        """Inverse of :meth:`due_of`."""
        return f"{self.tasks[:-1]}{due.removeprefix(self.due[:-1])}"

    @property
    def schedules_stream(self) -> str:
        return f"{self.namespace.upper()}_SCHED"

    @property
    def tasks_stream(self) -> str:
        return f"{self.namespace.upper()}_TASKS"

    def dead(self, endpoint: str, method: str) -> str:
        """Parts that are not valid names are replaced by `_`."""
        return f"{self.namespace}.dead.{_or_blank(endpoint)}.{_or_blank(method)}"

    @property
    def all_dead(self) -> str:
        return f"{self.namespace}.dead.>"

    @property
    def dead_stream(self) -> str:
        return f"{self.namespace.upper()}_DEAD"

    def audit(self, user: str) -> str:
        """Where an operator records what it does; `*` for any. Not below the namespace, where operators may publish
        anything."""
        return f"{self.namespace}-audit.{user}"

    @property
    def audit_stream(self) -> str:
        return f"{self.namespace.upper()}_AUDIT"

    def history(self, writer: str) -> str:
        """Where a process records what it decided: `worker.<pool>.<worker>`, `coordinator.<id>`, `dispatcher.<id>`; `>`
        for any. Not below the namespace, where operators may publish anything."""
        return f"{self.namespace}-history.{writer}"

    @property
    def history_stream(self) -> str:
        return f"{self.namespace.upper()}_HISTORY"

    def job(self, job: str, feed: JobFeed | str = "*") -> str:
        return f"{self.namespace}.job.{check_job(job)}.{feed}"

    @property
    def jobs(self) -> str:
        return f"{self.namespace}.job.>"

    @property
    def job_states(self) -> tuple[str, ...]:
        """The states of all jobs: their ids have one part or two."""
        return tuple(f"{self.namespace}.job.{job}.{JobFeed.STATE}" for job in ("*", "*.*"))

    @property
    def jobs_stream(self) -> str:
        return f"{self.namespace.upper()}_JOBS"

    def queue(self, endpoint: str, operation: QueueOperation | str = "*") -> str:
        return f"{self.namespace}.queue.{check_name(endpoint, 'endpoint')}.{operation}"

    def dispatcher(self, dispatcher: str, operation: DispatcherOperation | str = "*") -> str:
        return f"{self.namespace}.dispatcher.{check_name(dispatcher, 'dispatcher')}.{operation}"

    def dispatcher_event(self, dispatcher: str) -> str:
        return f"{self.namespace}.event.dispatcher.{check_name(dispatcher, 'dispatcher')}"

    @property
    def dispatcher_events(self) -> str:
        """Events of all dispatchers."""
        return f"{self.namespace}.event.dispatcher.*"

    def task_event(self, endpoint: str) -> str:
        """An invalid name is replaced by `_`."""
        return f"{self.namespace}.event.task.{_or_blank(endpoint)}"

    @property
    def results_bucket(self) -> str:
        return f"{self.namespace.upper()}_RESULTS"

    @property
    def routes_bucket(self) -> str:
        return f"{self.namespace.upper()}_ROUTES"

    def router_event(self, router: str) -> str:
        return f"{self.namespace}.event.router.{check_name(router, 'token')}"

    def route_event(self, endpoint: str) -> str:
        """An invalid name is replaced by `_`."""
        return f"{self.namespace}.event.route.{_or_blank(endpoint)}"

    @property
    def objects_store(self) -> str:
        return f"{self.namespace.upper()}_OBJECTS"

    @staticmethod
    def result_key(job: str) -> str:
        return f"result.{check_job(job)}"

    @staticmethod
    def try_key(endpoint: str, job: str) -> str:
        return f"try.{check_name(endpoint, 'endpoint')}.{check_job(job)}"

    @staticmethod
    def turn_key(endpoint: str) -> str:
        return f"turn.{check_name(endpoint, 'endpoint')}"

    @staticmethod
    def tries_of(endpoint: str = "*") -> str:
        return f"try.{endpoint}.>"

    # -- the ledger -----------------------------------------------------------------------------------------------

    @property
    def ledger_bucket(self) -> str:
        return f"{self.namespace.upper()}{_LEDGER}"

    def registration_key(self, worker: WorkerId) -> str:
        return f"reg.{worker.pool}.{worker.worker}"

    def alive_key(self, worker: WorkerId) -> str:
        return f"alive.{worker.pool}.{worker.worker}"

    def lease_key(self, worker: WorkerId, token: str) -> str:
        """`token`: or its public id, which is in the key without the mark, since keys must not contain it."""
        return f"lease.{worker.pool}.{worker.worker}.{public_id(token).removeprefix(MARK)}"

    def registrations_of(self, pool: str = "*") -> str:
        return f"reg.{pool}.*"

    def alive_of(self, pool: str = "*") -> str:
        return f"alive.{pool}.*"

    def leases_of(self, pool: str = "*", worker: str = "*") -> str:
        return f"lease.{pool}.{worker}.*"

    def limit_key(self, pool: str, method: str) -> str:
        return f"limit.{check_name(pool, 'pool')}.{check_name(method, 'method')}"

    def rate_key(self, pool: str, method: str) -> str:
        return rate_of(self.limit_key(pool, method))

    def limits_of(self, pool: str = "*") -> str:
        return f"limit.{pool}.*"

    leader_key = "leader"
    leader_alive_key = "leader_alive"
    complete_key = "complete"
    shards_key = "shards"

    @staticmethod
    def leader_key_of(shard: str) -> str:
        """Key of a shard's leader; "" is the coordinator of all pools."""
        return f"{Names.leader_key}.{check_name(shard, 'shard')}" if shard else Names.leader_key

    @staticmethod
    def leader_alive_key_of(shard: str) -> str:
        return f"{Names.leader_alive_key}.{check_name(shard, 'shard')}" if shard else Names.leader_alive_key

    @staticmethod
    def complete_key_of(shard: str) -> str:
        """`*`: of all shards."""
        if shard == "*":
            return f"{Names.complete_key}.*"
        return f"{Names.complete_key}.{check_name(shard, 'shard')}" if shard else Names.complete_key

    @staticmethod
    def gang_key(gang: str = "*") -> str:
        return f"gang.{gang}"

    @staticmethod
    def gangset_key(name: str = "*") -> str:
        return f"gangset.{name}"

    @staticmethod
    def gangset_status_key(name: str = "*") -> str:
        return f"gangset_status.{name}"

    @staticmethod
    def member_key(worker: WorkerId, gang: str) -> str:
        return f"member.{worker.pool}.{worker.worker}.{gang}"

    @staticmethod
    def members_of(pool: str = "*", worker: str = "*", gang: str = "*") -> str:
        return f"member.{pool}.{worker}.{gang}"

    @staticmethod
    def parse_worker_key(key: str) -> WorkerId:
        """`reg.<pool>.<worker>`, `alive.<pool>.<worker>`, `lease.<pool>.<worker>.<id>`, `member...` -> WorkerId."""
        parts = key.split(".")
        if len(parts) != _KEY_PARTS.get(parts[0]):
            raise InvalidName(f"{key!r} is not a key of the ledger")
        return WorkerId(parts[1], parts[2])
