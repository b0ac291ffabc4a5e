"""What the protocol says of submitted tasks is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from gangline.schemas.messages import jobs as job_messages
from gangline.schemas.names import DispatcherOperation, JobFeed, Names, QueueOperation
from gangline.schemas.records import jobs, routes

from ..support.rows import case

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md").read_text()
NAMES = Names("ns")


def row(start: str) -> str:
    (found,) = [line for line in PROTOCOL.splitlines() if line.startswith(f"| `{start}")]
    return found


def told(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_the_protocol_names_every_field_of_a_key() -> None:
    for key, record in [("result.<job>", jobs.ResultRecord), ("try.<endpoint>.<job>", jobs.TryRecord)]:
        with case(key, record):
            assert set(record.model_fields) - {"v"} <= told(row(f"{key}`"))


def test_the_protocol_names_every_field_of_what_is_told_of_a_job() -> None:
    cases = [(JobFeed.STATE, jobs.JobEvent), (JobFeed.PROGRESS, jobs.JobProgress), (JobFeed.ITEM, jobs.JobItem)]
    for feed, record in cases:
        with case(feed, record):
            subject = NAMES.job("x", feed).replace("ns.job.x", "<ns>.job.<job>")
            (line,) = [line for line in PROTOCOL.splitlines() if line.startswith(f"| `{subject}` | `job`")]
            assert set(record.model_fields) - {"v"} <= told(line)


def test_the_protocol_names_every_field_of_a_request_of_a_queue() -> None:
    cases = [
        (QueueOperation.GET, job_messages.JobRequest, job_messages.JobInfo),
        (QueueOperation.CANCEL, job_messages.CancelRequest, job_messages.CancelReply),
        (QueueOperation.WHY, job_messages.JobRequest, job_messages.JobWhyReply),
        (QueueOperation.STATS, None, job_messages.QueueStats),
    ]
    for operation, request_, reply in cases:
        with case(operation, request_, reply):
            lines = [line for line in PROTOCOL.splitlines() if line.startswith(f"| `{operation}` |")]
            fields = set(reply.model_fields) | (set() if request_ is None else set(request_.model_fields))
            assert any(fields <= told(line) for line in lines), lines
            assert f"`.{operation}`" in row("<ns>.queue.") or f".queue.<endpoint>.{operation}`" in row("<ns>.queue.")


def test_the_protocol_names_every_operation_and_feed() -> None:
    assert [each for each in DispatcherOperation if each not in row("<ns>.dispatcher.")] == []
    assert [each for each in JobFeed if each not in row("<ns>.job.<job>.state`, ")] == []
    assert set(job_messages.JobsRequest.model_fields) | set(job_messages.JobsReply.model_fields) <= told(row("jobs`"))
    assert set(job_messages.WorkerJob.model_fields) <= told(row("jobs`"))


def test_the_protocol_names_every_stream_and_bucket() -> None:
    cases = ["tasks_stream", "dead_stream", "jobs_stream", "results_bucket", "routes_bucket", "objects_store"]
    for name in cases:
        with case(name):
            assert f"`{getattr(NAMES, name).replace('NS_', '<NS>_')}`" in PROTOCOL


def test_the_protocol_names_every_state_and_every_reason() -> None:
    assert [word for word in (*jobs.JobState, *jobs.DeadReason) if f"`{word}`" not in PROTOCOL] == []


def test_the_protocol_names_every_field_of_a_route() -> None:
    lines = PROTOCOL.splitlines()
    fields = [line for line in lines if any(line.startswith(f"| `{name}`") for name in routes.RouteRecord.model_fields)]
    assert {name for name in routes.RouteRecord.model_fields if name != "v"} <= told(" ".join(fields))
    assert set(routes.QueueRules.model_fields) <= told(row("queue`"))
