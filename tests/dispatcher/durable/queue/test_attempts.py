"""What an attempt's error says of the limit that it reached."""

from __future__ import annotations

import pytest

from gangline.bus.port.bus import StreamMessage
from gangline.dispatcher.durable.core.effects import StopReason
from gangline.dispatcher.durable.messages.entry import QueuedMessage, read_message
from gangline.dispatcher.durable.queue.attempts import late_error
from gangline.schemas.errors.base import DeadlineExceeded, GanglineError, TaskCancelled, TaskFailed
from gangline.schemas.names import Names

CANCELLED = TaskCancelled("the caller cancelled the task")
LATE = DeadlineExceeded("work.square was stopped at its deadline", may_have_started=True)
TIMEOUT = "work.square did not end within its timeout_s of 1.5 s"
DEADLINE = "work.square did not end by its deadline"


def entry(timeout_s: float | None = 1.5, stopped: StopReason | None = None) -> QueuedMessage:
    message = StreamMessage(subject="ns.task.work.square", data=b"{}", headers=None, sequence=7, at=1.0)
    read = read_message(Names("ns"), message)
    assert not isinstance(read, GanglineError)
    found = QueuedMessage(message, read[0])
    found.timeout_s = timeout_s
    if stopped is not None:
        found.stopped, found.why_stopped = 2, stopped
    return found


@pytest.mark.parametrize(
    ("of", "error", "text"),
    [
        (entry(stopped=StopReason.TIMED_OUT), CANCELLED, TIMEOUT),
        (entry(stopped=StopReason.TIMED_OUT), LATE, TIMEOUT),
        (entry(stopped=StopReason.EXPIRED), CANCELLED, DEADLINE),
        (entry(), LATE, TIMEOUT),
        (entry(timeout_s=None), LATE, DEADLINE),
        (
            entry(timeout_s=None, stopped=StopReason.TIMED_OUT),
            CANCELLED,
            "work.square did not end within its timeout_s",
        ),
    ],
)
def test_it_is_named_whether_the_worker_or_the_dispatcher_was_first(of, error, text):
    found = late_error(of, 2, error)
    assert isinstance(found, DeadlineExceeded) and found.message == text and found.may_have_started
    assert found.details.get("timeout_s") == (1.5 if text == TIMEOUT else None)


@pytest.mark.parametrize(
    ("of", "error"),
    [
        (entry(stopped=StopReason.CANCELLED), CANCELLED),
        (entry(), CANCELLED),
        (entry(stopped=StopReason.TIMED_OUT), TaskFailed("it raised")),
        (entry(stopped=StopReason.TIMED_OUT), TaskCancelled("before it was sent", may_have_started=False)),
        (entry(), DeadlineExceeded("what it declares", may_have_started=True, details={"timeout_s": 1.0})),
    ],
)
def test_other_errors_stay_as_they_are(of, error):
    assert late_error(of, 2, error) is error


def test_a_stop_of_an_earlier_attempt_says_nothing_of_this_one():
    assert late_error(entry(stopped=StopReason.EXPIRED), 3, CANCELLED) is CANCELLED


@pytest.mark.parametrize(
    ("timeout_s", "attached", "is_late"), [(1.5, True, True), (None, True, False), (1.5, False, False)]
)
def test_a_stop_by_an_earlier_owner_of_the_queue_is_a_timeout(timeout_s, attached, is_late):
    of, stopped = entry(timeout_s), TaskCancelled("the caller cancelled the task", details={"by": "caller"})
    of.attached = attached
    found = late_error(of, 2, stopped)
    assert isinstance(found, DeadlineExceeded) == is_late
    assert not is_late or (found.message, found.details) == (TIMEOUT, {"timeout_s": 1.5})
    assert late_error(of, 2, CANCELLED) is CANCELLED, "its gang or its middleware has cancelled it"
