"""All messages on the wire in one list, for generated documents (AsyncAPI) and for tests that compare the wire with
its description. Addresses are built by schemas.names, like the real ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from ..messages import gangs as gang_messages
from ..messages import jobs as job_messages
from ..messages import operations as messages
from ..messages.submission import OF_TASKS
from ..names import MARK, DispatcherOperation, GangOperation, JobFeed, Names, Operation, QueueOperation, WorkerId
from ..records import gangs, jobs, routes
from ..records import workers as records
from ..wire import headers
from ..wire.codec import CONTENT_TYPE
from ..wire.own_headers import OF_CALLS

ARGUMENTS: Final = "arguments"
"""A body with the arguments of a task: an object with keyword arguments, an array of positional ones, or nothing."""
RESULT: Final = "result"
"""A body with the bare result of a task."""
FRAMES: Final = "frames"
"""Envelopes of frames in msgpack; see schemas.wire.frames."""
PUBLISHED: Final = "publish_ack"
"""JetStream's publish ack: `{"stream", "seq", "duplicate"}`."""

Body = type[BaseModel] | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One subject, or one key of a bucket."""

    name: str
    address: str
    """With placeholders, for example `{ns}.call.{endpoint}.{method}`."""
    about: str
    body: Body
    reply: Body = None
    """None: there is no answer."""
    headers: tuple[str, ...] = ()
    """Headers that a request may have."""
    reply_headers: tuple[str, ...] = ()
    """Headers of an answer, apart from those of errors."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the placeholders, in order."""
        return tuple(dict.fromkeys(re.findall(r"{(\w+)}", self.address)))


# Sample values: valid names that can be found again in what Names builds from them.
_NAMES: Final = Names("ns0")
_WORKER: Final = WorkerId("POOL0", "WORKER0")
CALL_HEADERS: Final = (CONTENT_TYPE, *OF_CALLS, headers.TRACEPARENT)
TASK_HEADERS: Final = (CONTENT_TYPE, headers.MESSAGE_ID, *OF_TASKS, headers.TRACEPARENT)


def _address(built: str) -> str:
    return re.sub(
        r"\b(ns|NS|[A-Z]+)0(?=\b|_)",
        lambda match: "{" + match[1] + "}" if match[1] in ("ns", "NS") else "{" + match[1].lower() + "}",
        built,
    )


def _key(bucket: str, key: str) -> str:
    return _address(f"$KV.{bucket}.{key}")


_WORKER_REQUESTS: Final[dict[Operation, tuple[Body, Body]]] = {
    Operation.FRAMES: (FRAMES, FRAMES),
    Operation.RESERVE: (messages.ReserveRequest, messages.ReserveReply),
    Operation.DISPATCH: (messages.DispatchRequest, RESULT),
    Operation.RENEW: (messages.RenewRequest, messages.RenewReply),
    Operation.RELEASE: (messages.ReleaseRequest, messages.ReleaseReply),
    Operation.STATS: (messages.StatsRequest, messages.StatsReply),
    Operation.DRAIN: (messages.DrainRequest, messages.DrainReply),
    Operation.RESIZE: (messages.ResizeRequest, messages.ResizeReply),
    Operation.SCHEMAS: (messages.SchemasRequest, messages.SchemasReply),
    Operation.JOBS: (job_messages.JobsRequest, job_messages.JobsReply),
    Operation.HOLD: (gang_messages.HoldRequest, gang_messages.HoldReply),
    Operation.UNHOLD: (gang_messages.UnholdRequest, None),
    Operation.KEEP: (gang_messages.KeepRequest, gang_messages.KeepReply),
    Operation.FORM: (gang_messages.FormRequest, gang_messages.FormReply),
    Operation.TEARDOWN: (gang_messages.TeardownRequest, gang_messages.TeardownReply),
    Operation.PING: (gang_messages.PingRequest, gang_messages.PingReply),
}
_GANG_REQUESTS: Final[dict[GangOperation, tuple[Body, Body]]] = {
    GangOperation.ACQUIRE: (gang_messages.AcquireRequest, gang_messages.GangReply),
    GangOperation.RENEW: (gang_messages.OwnedRequest, gang_messages.GangReply),
    GangOperation.RELEASE: (gang_messages.OwnedRequest, gang_messages.GangReply),
    GangOperation.END: (gang_messages.EndRequest, gang_messages.GangReply),
    GangOperation.GET: (gang_messages.GetRequest, gang_messages.GangReply),
    GangOperation.LIST: (gang_messages.GangListRequest, gang_messages.GangListReply),
    GangOperation.WHY: (gang_messages.GangQuery, gang_messages.GangWhyReply),
    GangOperation.REPORT: (gang_messages.MemberReport, gang_messages.ReportReply),
}
_QUEUE_REQUESTS: Final[dict[QueueOperation, tuple[Body, Body]]] = {
    QueueOperation.GET: (job_messages.JobRequest, job_messages.JobInfo),
    QueueOperation.CANCEL: (job_messages.CancelRequest, job_messages.CancelReply),
    QueueOperation.WHY: (job_messages.JobRequest, job_messages.JobWhyReply),
    QueueOperation.STATS: (None, job_messages.QueueStats),
    QueueOperation.WAIT: (job_messages.WaitRequest, job_messages.WaitReply),
    QueueOperation.LIST: (job_messages.ListRequest, job_messages.ListReply),
}
_FEEDS: Final[dict[JobFeed, type[BaseModel]]] = {
    JobFeed.STATE: jobs.JobEvent,
    JobFeed.PROGRESS: jobs.JobProgress,
    JobFeed.ITEM: jobs.JobItem,
}


def _tasks() -> list[Channel]:
    names = _NAMES
    found = [
        Channel(
            name="call",
            address=_address(names.call("ENDPOINT0", "METHOD0")),
            about="Run a task and wait for its result. Gateways answer.",
            body=ARGUMENTS,
            reply=RESULT,
            headers=CALL_HEADERS,
            reply_headers=(headers.WORKER,),
        ),
        Channel(
            name="stream",
            address=_address(names.stream("GATEWAY0", "STREAM0")),
            about="The next items of a streamed call.",
            body=messages.ItemsRequest,
            reply=messages.ItemsReply,
            headers=(CONTENT_TYPE,),
        ),
        Channel(
            name="task",
            address=_address(names.task("ENDPOINT0", "METHOD0")),
            about="Submit a durable task. The task stream keeps it until it has ended.",
            body=ARGUMENTS,
            reply=PUBLISHED,
            headers=TASK_HEADERS,
        ),
        Channel(
            name="dead",
            address=_address(names.dead("ENDPOINT0", "METHOD0")),
            about="A dead letter: the task's body and headers, and why it failed.",
            body=ARGUMENTS,
            headers=(
                headers.SUBJECT,
                headers.JOB,
                headers.DEAD_REASON,
                headers.DEAD_ERROR,
                headers.DEAD_TRIES,
                headers.DEAD_AT,
                headers.DEAD_OBJECT,
                headers.ATTEMPTS,
                headers.SCHEDULE_JOB,
            ),
        ),
        Channel(
            name="schedule",
            address=_address(names.schedule("JOB0")),
            about="A delayed or recurring task, which the stream of schedules keeps until its time.",
            body=ARGUMENTS,
            reply=PUBLISHED,
            headers=(
                headers.SCHEDULE,
                headers.SCHEDULE_TIME_ZONE,
                headers.SCHEDULE_TARGET,
                headers.PAUSED,
                headers.SUBJECT,
                *TASK_HEADERS,
            ),
        ),
    ]
    for feed, model in _FEEDS.items():
        address = _address(names.job("JOB0", feed))
        found.append(Channel(name=f"job_{feed}", address=address, about=_first_line(model), body=model))
    return found


def _requests() -> list[Channel]:
    found: list[Channel] = []
    for operation, (body, reply) in _WORKER_REQUESTS.items():
        address = _address(_NAMES.worker(_WORKER, operation))
        found.append(_request(f"worker_{operation}", address, body, reply))
    for gang_operation, (body, reply) in _GANG_REQUESTS.items():
        reports = gang_operation is GangOperation.REPORT
        subject = _NAMES.gang_report(_WORKER.pool, _WORKER.worker) if reports else _NAMES.gang(gang_operation)
        found.append(_request(f"gang_{gang_operation}", _address(subject), body, reply))
    for queue_operation, (body, reply) in _QUEUE_REQUESTS.items():
        address = _address(_NAMES.queue("ENDPOINT0", queue_operation))
        found.append(_request(f"queue_{queue_operation}", address, body, reply))
    for own_operation in DispatcherOperation:
        address = _address(_NAMES.dispatcher("DISPATCHER0", own_operation))
        found.append(_request(f"dispatcher_{own_operation}", address, None, job_messages.DispatcherStats))
    return found


def _request(name: str, address: str, body: Body, reply: Body) -> Channel:
    about = _first_line(body) if isinstance(body, type) else f"`{address}`"
    return Channel(name=name, address=address, about=about, body=body, reply=reply, headers=(CONTENT_TYPE,))


def _records() -> list[Channel]:
    names = _NAMES
    ledger, results = names.ledger_bucket, names.results_bucket
    keyed: list[tuple[str, str, type[BaseModel]]] = [
        ("registration", _key(ledger, names.registration_key(_WORKER)), records.Registration),
        ("alive", _key(ledger, names.alive_key(_WORKER)), records.Heartbeat),
        ("lease", _key(ledger, names.lease_key(_WORKER, f"{MARK}ID0")), records.LeaseRecord),
        ("limit", _key(ledger, names.limit_key(_WORKER.pool, "METHOD0")), records.LimitRecord),
        ("leader", _key(ledger, names.leader_key), gangs.LeaderRecord),
        ("leader_alive", _key(ledger, names.leader_alive_key), gangs.LeaderAlive),
        ("complete", _key(ledger, names.complete_key), gangs.LedgerComplete),
        ("gang", _key(ledger, names.gang_key("GANG0")), gangs.GangRecord),
        ("member", _key(ledger, names.member_key(_WORKER, "GANG0")), gangs.MemberRecord),
        ("gangset", _key(ledger, names.gangset_key("GANGSET0")), gangs.GangSetRecord),
        ("gangset_status", _key(ledger, names.gangset_status_key("GANGSET0")), gangs.GangSetStatus),
        ("result", _key(results, names.result_key("JOB0")), jobs.ResultRecord),
        ("try", _key(results, names.try_key("ENDPOINT0", "JOB0")), jobs.TryRecord),
        ("turn", _key(results, names.turn_key("ENDPOINT0")), jobs.TurnRecord),
        ("route", _key(names.routes_bucket, "ENDPOINT0"), routes.RouteRecord),
    ]
    return [
        Channel(name=f"key_{name}", address=address, about=_first_line(model), body=model)
        for name, address, model in keyed
    ]


def _events() -> list[Channel]:
    return [
        Channel(
            name="event_gang",
            address=_address(_NAMES.gang_event("GANG0")),
            about="Broadcast: the state of a gang changed.",
            body=gang_messages.GangEvent,
        ),
        Channel(
            name="event_task",
            address=_address(_NAMES.task_event("ENDPOINT0")),
            about="Broadcast: a task became a dead letter.",
            body=jobs.TaskDeadEvent,
        ),
        Channel(
            name="event_dispatcher",
            address=_address(_NAMES.dispatcher_event("DISPATCHER0")),
            about="Broadcast: a dispatcher joined, is alive, handed queues over, or left.",
            body=jobs.DispatcherEvent,
        ),
        Channel(
            name="event_router",
            address=_address(_NAMES.router_event("ROUTER0")),
            about="Broadcast: how many requests wait in a router, once a second while any waits.",
            body=messages.RouterQueues,
        ),
    ]


def _first_line(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def catalogue() -> tuple[Channel, ...]:
    """All channels: tasks, requests, broadcasts, then keys."""
    return (*_tasks(), *_requests(), *_events(), *_records())
