"""Submitted tasks, queues and dead letters as lines and tables."""

from __future__ import annotations

import time

from gangline.bus.port.bus import StreamMessage
from gangline.cli.views.jobs import event_line, job_lines, letter_json, letter_lines, queue_lines, why_lines
from gangline.dispatcher.jobs.dead_letters import DeadLetter
from gangline.schemas.messages.jobs import JobInfo, JobObstacle, JobWhyReply, QueueStats
from gangline.schemas.records.jobs import JobEvent, JobFailure, JobProgress, JobState
from gangline.schemas.wire import headers

FAILURE = JobFailure(code="task_failed", message="no\nluck", details={"type": "ValueError", "traceback": "Traceback\n"})


def info(state: JobState, **fields: object) -> JobInfo:
    return JobInfo.model_validate({"job": "j1", "endpoint": "words", "method": "count", "state": state, **fields})


def test_a_job_is_shown_with_what_is_known_of_it() -> None:
    now = time.time()
    lines = list(
        job_lines(info(JobState.RUNNING, attempts=2, worker="words.w1", submitted_at=now - 90, priority=3, key="u"))
    )
    assert lines == [
        "job        j1",
        "task       words.count",
        "state      running, attempt 2",
        "worker     words.w1",
        "submitted  1 min 30 s ago",
        "priority   3",
        "key        u",
    ]
    waiting = "\n".join(job_lines(info(JobState.WAITING, attempts=1, next_try_at=now + 90, error=FAILURE)))
    assert "waiting, 1 attempt so far" in waiting and "ValueError: no luck" in waiting and "Z, in 1 min" in waiting
    assert "dead after 3 attempts" in "\n".join(job_lines(info(JobState.DEAD, attempts=3)))


def test_an_ended_job_says_when_it_ended_and_which_schedule_it_is_a_run_of() -> None:
    now = time.time()
    lines = list(job_lines(info(JobState.CANCELLED, attempts=1, ended_at=now - 5, schedule="words.nightly")))
    assert "ended      5.0 s ago" in lines and "schedule   words.nightly" in lines


def test_events_are_one_line_each() -> None:
    assert event_line(JobProgress(job="j", attempt=1, number=1, at=3661.5, value={"done": 3})) == (
        '01:01:01.500  progress   {"done": 3}'
    )
    event = JobEvent(job="j", state=JobState.DEAD, attempt=5, worker="w.1", at=0.0, reason="failed", error=FAILURE)
    assert event_line(event) == "00:00:00.000  dead       attempt 5  w.1  failed  ValueError: no luck"
    assert event_line(JobEvent(job="j", state=JobState.QUEUED, at=0.0)) == "00:00:00.000  queued"


def test_why_says_what_stands_in_the_way() -> None:
    obstacle = JobObstacle(kind="key", text="3 of key 'u' run, and 3 may", jobs=("j2", "j3"))
    lines = list(why_lines(JobWhyReply(job=info(JobState.QUEUED), position=0, obstacles=(obstacle,))))
    assert lines == ["j1 (words.count) is queued", "it is next", "- 3 of key 'u' run, and 3 may (j2, j3)"]
    assert (
        list(why_lines(JobWhyReply(job=info(JobState.QUEUED), position=7)))[1] == "7 jobs in its queue are ahead of it"
    )
    assert list(why_lines(JobWhyReply(job=info(JobState.QUEUED), position=1)))[1] == "1 job in its queue is ahead of it"
    sentence = JobObstacle(kind="no_workers", text="Pool 'words' has no worker.", until=time.time() + 3600)
    assert (
        "- Pool 'words' has no worker, until "
        in list(why_lines(JobWhyReply(job=info(JobState.QUEUED), obstacles=(sentence,))))[1]
    )
    running = info(JobState.RUNNING, worker="words.w1")
    assert list(why_lines(JobWhyReply(job=running))) == ["j1 (words.count) is running on words.w1"]


def test_a_queue_without_a_dispatcher_shows_only_what_the_stream_knows() -> None:
    numbers = {"seen": 0, "running": 0, "waiting": 0, "blocked": 0, "credit": 0, "leased": 0}
    alone = QueueStats.model_validate({"endpoint": "words", "dispatcher": "", "depth": 4, "oldest_s": 3.0, **numbers})
    assert [line.split()[0] for line in queue_lines(alone)] == ["queue", "dispatcher", "depth", "oldest"]
    had = alone.model_copy(update={"dispatcher": "d1", "credit": 1, "leased": 3})
    assert "credit     3 leased slots, 1 idle" in list(queue_lines(had))


def test_a_letter_ends_with_its_traceback_and_is_json_with_all_of_it() -> None:
    fields = {
        headers.JOB: "j1",
        headers.SUBJECT: "gangline.task.words.count",
        headers.DEAD_REASON: "failed",
        headers.DEAD_ERROR: FAILURE.model_dump_json(),
        headers.ATTEMPTS: "5",
        headers.DEAD_TRIES: '[{"attempt": 5, "worker": "words.w1", "started_at": 0.0, "ended_at": 2.0}]',
    }
    message = StreamMessage(subject="s", data=b'{"text": "\xc3\xa4"}', headers=fields, sequence=3, at=time.time())
    letter = DeadLetter.parse(message, "gangline.task.")
    lines = list(letter_lines(letter))
    assert 'arguments  {"text": "ä"}' in lines and lines[-1] == "Traceback"
    [attempt] = [line for line in lines if line.startswith("attempt ")]
    assert attempt.startswith("attempt    5 failed ") and attempt.endswith(" on words.w1 after 2.0 s")
    broken = {**fields, headers.DEAD_TRIES: '{"attempt": 5}'}
    assert DeadLetter.parse(StreamMessage(subject="s", data=b"", headers=broken, sequence=3, at=0.0), "x").tries == ()
    assert letter_json(letter)["arguments"] == {"text": "ä"}
    binary = DeadLetter.parse(StreamMessage(subject="s", data=b"\xff", headers=fields, sequence=3, at=0.0), "x")
    assert letter_json(binary)["arguments"] == "_w=="
