"""What is judged by the notes of durable tasks."""

from __future__ import annotations

from bench.faults.notes import Note, interrupted, most_at_once, unexplained_starts


def note(at: float, event: str, job: str = "a", pid: int = 1, attempt: int = 1, key: str | None = None) -> Note:
    return Note(at=at, event=event, job=job, attempt=attempt, key=key, pid=pid)


def test_a_second_start_needs_a_kill_that_cut_the_first_short() -> None:
    twice = [note(1, "start"), note(2, "start", pid=2, attempt=2), note(3, "end", pid=2, attempt=2)]
    assert unexplained_starts(twice, [1]) == []
    assert len(unexplained_starts(twice, [])) == 1
    assert len(unexplained_starts([note(1, "start"), note(1.5, "end"), *twice[1:]], [1])) == 1


def test_what_a_killed_process_did_not_end_is_found() -> None:
    notes = [note(1, "start"), note(2, "start", job="b"), note(3, "end")]
    assert interrupted(notes, 1) == {"b"}


def test_the_most_that_ran_of_a_key_at_once_is_counted() -> None:
    notes = [note(1, "start", key="k"), note(2, "start", job="b", key="k"), note(3, "end", key="k")]
    assert most_at_once(notes) == {"k": 2}
    assert most_at_once(notes, [1]) == {}
