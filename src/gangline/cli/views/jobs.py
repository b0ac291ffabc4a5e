"""Displays submitted tasks, queues and dead letters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from ...board.reasons import job_sentences
from ...dispatcher.jobs.dead_letters import DeadLetter
from ...schemas.messages.jobs import PURGED, JobInfo, JobWhyReply, QueueStats
from ...schemas.records.jobs import FailedTry, JobEvent, JobFailure, JobProgress, JobState
from ...schemas.text import count_of
from ..console.output import Listing, about, duration

_SHORT: Final = 8
"""This part of a dispatcher's id distinguishes it in a table; `queue show` and --json show all of it."""
_NOBODY: Final = "nobody: start 'gangline dispatcher'"


def _fields(fields: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    """Names and values, one per line; those without a value are left out."""
    for name, value in fields:
        if value:
            yield f"{name:<11}{value}"


def job_lines(info: JobInfo) -> Iterator[str]:
    """The state of a job."""
    attempts = f", attempt {info.attempts}" if info.attempts and info.state is JobState.RUNNING else ""
    tried = f", {_times(info.attempts)} so far" if info.attempts and info.state is JobState.WAITING else ""
    ended = f" after {_times(info.attempts)}" if info.state is JobState.DEAD else ""
    yield from _fields(
        (
            ("job", info.title),
            ("task", f"{info.endpoint}.{info.method}" if info.method else info.endpoint),
            ("state", f"{info.state.value}{attempts}{tried}{ended}"),
            ("reason", info.reason),
            ("worker", info.worker),
            ("schedule", info.schedule),
            ("error", None if info.error is None else _one_line(info.error)),
            ("submitted", _ago(info.submitted_at)),
            ("started", _ago(info.started_at)),
            ("ended", _ago(info.ended_at)),
            ("next", None if info.next_try_at is None else _until(info.next_try_at)),
            ("priority", str(info.priority) if info.priority else None),
            ("key", info.key),
            ("sequence", None if info.sequence is None else str(info.sequence)),
        )
    )
    yield from _tries(info.tries)


def _tries(tries: Sequence[FailedTry]) -> Iterator[str]:
    """Failed attempts, one per line."""
    for each in tries:
        took = "" if each.started_at is None else f" after {duration(max(0.0, each.ended_at - each.started_at))}"
        where = f" on {each.worker}" if each.worker else ""
        error = "" if each.error is None else f": {_one_line(each.error)}"
        yield f"{'attempt':<11}{each.attempt} failed {_ago(each.ended_at)}{where}{took}{error}"


def event_line(event: JobEvent | JobProgress) -> str:
    """One event of a job."""
    at = f"{datetime.fromtimestamp(event.at, UTC):%H:%M:%S.%f}"[:-3]
    if isinstance(event, JobProgress):
        return f"{at}  progress   {json.dumps(plain(event.value), ensure_ascii=False)}"
    parts = [f"attempt {event.attempt}" if event.attempt else "", event.worker, event.reason or ""]
    parts.append("" if event.error is None else _one_line(event.error))
    return f"{at}  {event.state.value:<9}  {'  '.join(part for part in parts if part)}".rstrip()


def why_lines(why: JobWhyReply) -> Iterator[str]:
    """What a job waits for."""
    for sentence in job_sentences(why):
        until = "" if sentence.until is None else _until(sentence.until)
        yield f"{'- ' if sentence.depth else ''}{sentence.text}{until}"


_STATES: Final = {
    JobState.RUNNING: "green",
    JobState.DONE: "dim",
    JobState.DEAD: "red",
    JobState.CANCELLED: "dim",
    JobState.WAITING: "yellow",
}


def jobs_table(jobs: Sequence[JobInfo]) -> Listing:
    """A list of jobs."""
    now = time.time()
    lines = [
        (
            info.title,
            Text(info.state.value, _STATES.get(info.state, "default")),
            f"{info.endpoint}.{info.method}" if info.method else info.endpoint,
            str(info.attempts) if info.attempts else "",
            _when(info, now),
            info.worker,
            info.key or "",
            _one_line(info.error) if info.error is not None else info.reason or "",
        )
        for info in jobs
    ]
    columns = ["JOB", "STATE", "TASK", "ATTEMPTS", "WHEN", "WORKER", "KEY", "WHY"]
    for name in ("WHY", "KEY", "WORKER"):  # mostly empty: leave room for the others
        place = columns.index(name)
        if not any(line[place] for line in lines):
            columns.pop(place)
            lines = [(*line[:place], *line[place + 1 :]) for line in lines]  # type: ignore[misc]
    return Listing(
        columns,
        lines,
        right=("ATTEMPTS",),
        whole=("STATE", "WHEN"),
        ids=("JOB",),
        titles=_titles(jobs),
        drop=("ATTEMPTS", "KEY", "WORKER", "WHY", "TASK"),
    )


def _titles(jobs: Sequence[JobInfo | DeadLetter]) -> frozenset[str]:
    """The titles that are not ids: those of runs of schedules."""
    return frozenset(each.title for each in jobs if each.title != each.job)


def _when(info: JobInfo, now: float) -> str:
    """When it changed last, or will next."""
    if info.next_try_at is not None:
        return f"in {duration(info.next_try_at - now)}"
    at = info.ended_at or (info.started_at if info.state is JobState.RUNNING else None) or info.submitted_at
    return "" if at is None else f"{duration(now - at)} ago"


def queues_table(queues: Sequence[QueueStats]) -> Listing:
    lines = [
        (
            queue.endpoint,
            str(queue.depth),
            str(queue.running),
            str(queue.waiting),
            str(queue.blocked),
            f"{queue.credit}/{queue.leased}",
            "" if queue.oldest_s is None else duration(queue.oldest_s),
            str(queue.done),
            str(queue.dead),
            _owner(queue),
        )
        for queue in queues
    ]
    columns = ("QUEUE", "DEPTH", "RUN", "WAIT", "BLOCKED", "CREDIT", "OLDEST", "DONE", "DEAD", "BY")
    return Listing(columns, lines, right=columns[1:-1], whole=("QUEUE", "BY"), drop=("CREDIT", "BLOCKED", "BY"))


def _owner(queue: QueueStats) -> Text | str:
    if queue.impaired:
        return Text("impaired", "red")
    if queue.paused:
        return Text("paused", "yellow")
    return queue.dispatcher[:_SHORT] or _nobody(queue)


def _nobody(queue: QueueStats) -> Text:
    return Text("no answer", "yellow") if queue.unanswered else Text("nobody", "red")


def queue_lines(queue: QueueStats) -> Iterator[str]:
    """One queue."""
    had = bool(queue.dispatcher)
    return _fields(
        (
            ("queue", queue.endpoint),
            ("dispatcher", queue.dispatcher or queue.unanswered or _NOBODY),
            ("impaired", queue.impaired or None),
            ("paused", "by its route: 'gangline route set QUEUE --resume' ends that" if queue.paused else None),
            ("purged", f"{count_of(queue.purged, 'task')}: {PURGED}" if queue.purged else None),
            ("since", _ago(queue.since) if had and queue.since else None),
            ("depth", str(queue.depth)),
            ("seen", str(queue.seen) if had else None),
            ("running", str(queue.running) if had else None),
            ("waiting", str(queue.waiting) if had else None),
            ("blocked", str(queue.blocked) if had else None),
            ("pending", ", ".join(f"{count} {what}" for what, count in queue.pending.items()) or None),
            ("credit", f"{count_of(queue.leased, 'leased slot')}, {queue.credit} idle" if had else None),
            ("oldest", None if queue.oldest_s is None else duration(queue.oldest_s)),
            ("done", str(queue.done) if had else None),
            ("dead", str(queue.dead) if had else None),
            ("retried", str(queue.retried) if had else None),
        )
    )


# -- dead letters -------------------------------------------------------------------------------------------------


def letters_table(letters: Sequence[DeadLetter]) -> Listing:
    now = time.time()
    lines = [
        (
            letter.title,
            letter.target,
            letter.reason,
            str(letter.attempts),
            duration(now - letter.dead_at),
            "" if letter.error is None else _one_line(letter.error).removeprefix(f"{letter.reason}: "),
        )
        for letter in letters
    ]
    columns = ("JOB", "TASK", "REASON", "ATTEMPTS", "AGE", "LAST ERROR")
    return Listing(
        columns,
        lines,
        right=("ATTEMPTS", "AGE"),
        whole=("REASON",),
        ids=("JOB",),
        titles=_titles(letters),
        drop=("ATTEMPTS", "TASK", "REASON"),
    )


def letter_lines(letter: DeadLetter) -> Iterator[str]:
    """One dead letter; the traceback comes last."""
    error = letter.error
    yield from _fields(
        (
            ("job", letter.title),
            ("task", letter.target),
            ("reason", letter.reason),
            ("attempts", str(letter.attempts)),
            ("died", _ago(letter.dead_at)),
            ("schedule", letter.schedule),
            ("arguments", _shown(letter.arguments)),
            ("error", None if error is None else _one_line(error)),
            ("trace", letter.trace),
            ("letter", str(letter.sequence)),
        )
    )
    yield from _tries(letter.tries)
    traceback = "" if error is None else str(error.details.get("traceback", ""))
    if traceback:
        yield ""
        yield traceback.rstrip()


def letter_json(letter: DeadLetter) -> dict[str, object]:
    return {
        "job": letter.job,
        "endpoint": letter.endpoint,
        "method": letter.method,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "error": None if letter.error is None else letter.error.model_dump(mode="json"),
        "dead_at": letter.dead_at,
        "sequence": letter.sequence,
        "subject": letter.subject,
        "arguments": plain(letter.arguments),
        "tries": [each.model_dump(mode="json") for each in letter.tries],
        "headers": dict(letter.headers),
        "trace": letter.trace,
        "schedule": letter.schedule,
        "title": letter.title,
    }


# -- words --------------------------------------------------------------------------------------------------------


def _one_line(error: JobFailure) -> str:
    kind = str(error.details.get("type", "")) or error.code
    text = " ".join(error.message.split())
    return text if kind in text else f"{kind}: {text}"


def _times(attempts: int) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def _ago(at: float | None) -> str | None:
    return None if at is None else f"{duration(time.time() - at)} ago"


def _until(at: float) -> str:
    left = at - time.time()
    moment = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
    return f"{moment}, in {about(left)}" if left > 0 else f"{moment}, now"


def plain(value: Any) -> Any:
    """What JSON makes of it."""
    from ...schemas.wire.codec import from_json, to_json

    return from_json(to_json(value))


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(plain(value), ensure_ascii=False)
