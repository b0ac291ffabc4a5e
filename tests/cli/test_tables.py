"""Tables fit the terminal: ids are abbreviated and never wrapped, columns left out, texts cut with an ellipsis."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from gangline.cli.commands.tools.audit import _table as audit_table
from gangline.cli.commands.tools.history import _table as history_table
from gangline.cli.console.output import Listing, short_ids
from gangline.cli.views.gangs import gangs_table
from gangline.cli.views.jobs import jobs_table, letters_table, queues_table
from gangline.cli.views.workers import WorkerRow, workers_table
from gangline.dispatcher.client.audit import AuditEntry
from gangline.dispatcher.jobs.dead_letters import DeadLetter
from gangline.schemas.messages.gangs import GangReply
from gangline.schemas.messages.jobs import JobInfo, QueueStats
from gangline.schemas.records.audit import AuditRecord
from gangline.schemas.records.history import HistoryKind, HistoryRecord
from gangline.schemas.records.jobs import JobFailure, JobState
from gangline.schemas.records.workers import Heartbeat, Registration

from ..support.rows import case

NOW = time.time()
TOKEN = "V1StGXR8Z5jdHi6BmyTab"
RUNS = (1234, 98123, 98765)


def printed(listing: Listing, width: int, *, terminal: bool = True) -> list[str]:
    """The lines of a table on a terminal of this width."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False)
    console.print(listing)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def job(number: int, state: JobState = JobState.RUNNING) -> JobInfo:
    failure = JobFailure(code="task_failed", message="a long story " * 20, details={"type": "ValueError"})
    return JobInfo(
        job=f"thumbnails.j{number:02}{TOKEN}",
        endpoint="thumbnails",
        method="render_everything",
        state=state,
        attempts=3,
        worker="thumbnails.worker-on-machine-11",
        key="customer-0815",
        submitted_at=NOW - 100,
        error=failure if state is JobState.DEAD else None,
    )


def letter(number: int) -> DeadLetter:
    return DeadLetter(
        job=f"thumbnails.j{number:02}{TOKEN}",
        endpoint="thumbnails",
        method="render_everything",
        reason="invalid_arguments",
        attempts=5,
        error=JobFailure(code="x", message="a long story " * 20),
        dead_at=NOW - 100,
        sequence=1,
        subject="",
        data=b"",
        headers={},
    )


def queue(name: str) -> QueueStats:
    return QueueStats(
        endpoint=name, dispatcher="dispatcher-1", depth=10_000, seen=1, running=100, waiting=100, blocked=100,
        credit=4, leased=12, oldest_s=3000.0, done=100_000, dead=1000,
    )  # fmt: skip


def gang(number: int) -> GangReply:
    return GangReply.model_validate(
        {
            "id": f"g{number}lAnxzz1pEjhuNJcND5jXwe", "state": "formed", "step": "formed", "size": 8, "generation": 2,
            "restarts": 1, "priority": 3, "owner": "somebody@laptop", "reason": "worker_lost",
            "created_at": NOW - 5000, "ttl_s": 15.0,
            "seats": [
                {"rank": rank, "pool": "train", "worker": f"worker-{rank}", "slots": 1, "token": "~t", "epoch": 1}
                for rank in range(8)
            ],
        }
    )  # fmt: skip


def worker(number: int) -> WorkerRow:
    name = f"worker-{number}"
    registration = Registration.model_validate(
        {
            "pool": "thumbnails", "worker": name, "instance": "i", "epoch": 1_700_000_000_000, "slots": 8,
            "methods": {f"method_{each}": {} for each in range(20)}, "node": "machine-11", "zone": "eu-1",
            "started_at": NOW - 5000, "state": "serving",
        }
    )  # fmt: skip
    beat = Heartbeat.model_validate({"instance": "i", "epoch": 1, "total": 8, "running": 2, "reserved": 1, "at": NOW})
    return WorkerRow(registration=registration, heartbeat=beat)


TABLES = {
    "jobs": lambda: jobs_table([job(1), job(2, JobState.DEAD), job(3, JobState.CANCELLED)]),
    "letters": lambda: letters_table([letter(1), letter(2)]),
    "queues": lambda: queues_table([queue("thumbnails"), queue("b")]),
    "gangs": lambda: gangs_table([gang(1), gang(2)]),
    "workers": lambda: workers_table([worker(1), worker(2)]),
}
ROWS = {"jobs": 3, "letters": 2, "queues": 2, "gangs": 2, "workers": 2}


def test_each_row_is_one_line_that_fits():
    for width in [60, 80, 100, 140]:
        for name in TABLES:
            with case(width, name):
                lines = printed(TABLES[name](), width)
                assert len(lines) == ROWS[name] + 2, lines
                assert max(map(len, lines)) <= width, lines


@pytest.mark.parametrize("width", [60, 80, 100])
def test_ids_are_abbreviated_and_can_be_typed(width):
    for number, line in enumerate(printed(jobs_table([job(1), job(2), job(3)]), width)[2:], 1):
        shown = line.split()[0]
        assert f"thumbnails.j{number:02}{TOKEN}".startswith(shown) and len(shown) == len("thumbnails.") + 8
    for number, line in enumerate(printed(gangs_table([gang(1), gang(2)]), width)[2:], 1):
        assert f"g{number}lAnxzz1pEjhuNJcND5jXwe".startswith(line.split()[0])


def test_a_pipe_gets_whole_ids_and_whole_texts():
    lines = printed(letters_table([letter(1)]), 10_000, terminal=False)
    assert lines[2].split()[0] == f"thumbnails.j01{TOKEN}"
    assert lines[2].endswith(("a long story " * 20).strip())


def test_a_dead_letter_does_not_give_its_reason_twice():
    failed = JobFailure(code="invalid_arguments", message="no parameter 'txt'")
    line = printed(letters_table([replace(letter(1), error=failed)]), 10_000, terminal=False)[2]
    assert line.endswith("no parameter 'txt'") and line.count("invalid_arguments") == 1


def test_a_narrow_terminal_shows_all_of_how_it_happened():
    record = HistoryRecord(
        kind=HistoryKind.LEASE_GRANTED, at=NOW, since=NOW - 2, by="worker.p.w", pool="thumbnails", worker="worker-1",
        slots=2, gang="eval-9", lease="~tH2uWEIIZr476wKvdP_8Og", owner="somebody-on-the-machine-of-another",
    )  # fmt: skip
    head, _, *lines = printed(history_table([record]), 80)
    assert max(map(len, lines)) <= 80
    told = "".join(line[head.index("HOW") :].replace("worker", "") for line in lines)
    assert told.replace(" ", "") == "2slots,2.0searlier,forsomebody-on-the-machine-of-another"
    assert "eval-9 thumb" in lines[0]  # not eval-9#0: a lease does not know its generation


def test_history_says_in_words_how_jobs_ended():
    cases = [
        (
            "attempt_ended",
            {"attempt": 2, "reason": "task_failed"},
            "w.j w.w1",
            "attempt 2 failed after 5.0 s: task_failed",
        ),
        ("attempt_ended", {"attempt": 1}, "w.j w.w1", "attempt 1 succeeded after 5.0 s"),
        ("job_dead", {"attempt": 1, "reason": "failed", "since": None}, "w.j w.w1", "failed after 1 attempt"),
        ("job_dead", {"reason": "malformed", "worker": "", "pool": ""}, "w.j", "malformed"),
        ("job_cancelled", {"worker": "", "pool": ""}, "w.j", "before its first attempt"),
        ("job_cancelled", {"attempt": 2}, "w.j w.w1", "after 2 attempts"),
        (
            "attempts",
            {"job": "", "worker": "", "count": 3, "seconds": 0.25, "since": None},
            "w.count",
            "3 short ones in a minute, 0.2 s in all",
        ),
        (
            "leader_elected",
            {"generation": 7, "job": "", "endpoint": "", "method": "", "worker": "", "pool": ""},
            "",
            "term 7, after 5.0 s",
        ),
    ]
    for kind, facts, whom, how in cases:
        with case(kind, facts, whom, how):
            usual = {"pool": "w", "worker": "w1", "job": "w.j", "endpoint": "w", "method": "count", "since": NOW - 5}
            fields = usual | facts
            [(_, what, shown, told, _)] = history_table([HistoryRecord(kind=kind, at=NOW, **fields)]).rows
            assert (what, shown, told) == (kind.replace("_", " "), whom, how)


def test_a_text_that_is_cut_ends_with_an_ellipsis():
    assert printed(letters_table([letter(1)]), 80)[2].endswith("…")


def test_workers_keep_their_names_and_lose_the_epoch_first():
    head = printed(TABLES["workers"](), 80)[0]
    assert head.split()[:3] == ["WORKER", "STATE", "SLOTS"] and "EPOCH" not in head
    assert "thumbnails.worker-1" in printed(TABLES["workers"](), 60)[2]


def test_a_paused_queue_says_so():
    assert printed(queues_table([queue("a").model_copy(update={"paused": True})]), 80)[2].endswith("paused")


def test_a_queue_whose_dispatcher_does_not_answer_is_not_said_to_have_none():
    silent = {"dispatcher": "", "unanswered": "the dispatcher of 'a' did not answer"}
    assert printed(queues_table([queue("a").model_copy(update=silent)]), 80)[2].endswith("no answer")


def test_an_empty_table_has_only_its_head():
    assert len(printed(Listing(("A", "B"), []), 80)) == 2


@pytest.mark.parametrize(
    ("ids", "short"),
    [
        ([f"words.j{TOKEN}"], ["words.jV1StGXR"]),
        (["words.jabcdefghijkl1", "words.jabcdefghijkl2222"], ["words.jabcdefghijkl1", "words.jabcdefghijkl2"]),
        (["42", "421"], ["42", "421"]),
        (["words.order-7", "nightly"], ["words.order-7", "nightly"]),
        (["same.jabcdefghijklmnop"] * 2, ["same.jabcdefg"] * 2),
        (["images.9f0c2a7e-5d1b-4c3a-8e6f-000000001234"], ["images.9f0c2a7e"]),
    ],
)
def test_an_abbreviation_is_unique_and_says_something(ids, short):
    found = short_ids(ids)
    assert [found[id] for id in ids] == short


def test_runs_of_a_schedule_keep_their_titles_and_ids_that_look_like_one_are_abbreviated():
    ids = [f"images.nightly-cleanup-{n}" for n in RUNS]
    assert short_ids(ids, ids) == {id: id for id in ids}
    order = "images.9f0c2a7e-5d1b-4c3a-8e6f-000000001234"
    runs = [
        JobInfo(job=str(n), endpoint="images", state=JobState.DONE, schedule="images.nightly-cleanup") for n in RUNS
    ]
    listed = jobs_table([*runs, JobInfo(job=order, endpoint="images", state=JobState.DONE)])
    shown = [line.split()[0] for line in printed(listed, 120)[2:]]
    assert shown == [*ids, "images.9f0c2a7e"]


def audit(id: str, stage: str, **fields: str) -> AuditEntry:
    target = " ".join(f"thumbnails.j{each:02}{TOKEN}" for each in range(50))
    record = AuditRecord.model_validate({"id": id, "stage": stage, "action": "dead replay", "target": target, **fields})
    return AuditEntry(user="alice@example.org", at=NOW, record=record)


def test_the_audit_trail_has_one_row_an_action_and_shows_its_target_on_any_terminal():
    entries = [
        audit("a", "begun", reason="a new release of it"), audit("b", "begun"),
        audit("a", "done", reason="a new release of it"), audit("c", "failed", error="not_permitted"),
    ]  # fmt: skip
    for width in (60, 100, 10_000):
        lines = printed(audit_table(entries), width, terminal=width < 1000)[2:]
        assert [stage for line in lines for stage in ("begun", "done", "failed") if stage in line] == [
            "done",
            "begun",
            "failed",
        ]
        assert all("thumbnails.j00" in line and len(line) <= min(width, 260) for line in lines)
