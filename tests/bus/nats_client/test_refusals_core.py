from __future__ import annotations

from gangline.bus.nats_client.refusals_core import (
    FIRST_LOST_PAUSE_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LOST_PAUSE_S,
    MAX_REFUSALS,
    MAX_REPORTED,
    UNUSED_S,
    RefusalTable,
    Right,
)


def test_pauses_grow_to_a_bound_that_is_shorter_for_what_worked_before():
    for lost, bound_s in ((True, LOST_PAUSE_S), (False, LONGEST_PAUSE_S)):
        table, now = RefusalTable(), 100.0
        refusal = table.refused(Right.SUBSCRIBE, "a", now, lost=lost)
        assert refusal is not None
        pauses = []
        for _ in range(8):
            pauses.append(refusal.again_at - now)
            now = refusal.again_at
            table.begin([refusal])
            assert table.refused(Right.SUBSCRIBE, "a", now, lost=True) is None  # reported once
            assert table.confirm([refusal]) == []
        assert pauses[0] == (FIRST_LOST_PAUSE_S if lost else FIRST_PAUSE_S)
        assert pauses == sorted(pauses)
        assert pauses[-1] == bound_s


def test_many_answers_to_messages_sent_before_the_first_refusal_came_are_one_refusal():
    table = RefusalTable()
    refusal = table.refused(Right.PUBLISH, "a", 0.0, lost=True)
    for _ in range(100):
        table.refused(Right.PUBLISH, "a", 0.5, lost=True)
    assert refusal.again_at == FIRST_LOST_PAUSE_S
    table.begin([refusal])
    assert table.confirm([refusal]) == [refusal]
    assert table.confirm([refusal]) == []
    assert table.get(Right.PUBLISH, "a") is None


def test_an_attempt_of_which_nothing_is_heard_is_repeated_after_the_same_pause():
    table = RefusalTable()
    refusal = table.refused(Right.SUBSCRIBE, "a", 0.0, lost=True)
    table.begin([refusal])
    table.postpone([refusal], 50.0)
    assert refusal.again_at == 50.0 + FIRST_LOST_PAUSE_S
    table.refused(Right.SUBSCRIBE, "a", 50.5, lost=True)  # late, so not about an attempt that is under way
    assert refusal.pause_s == FIRST_LOST_PAUSE_S
    assert table.confirm([refusal]) == []
    assert table.get(Right.SUBSCRIBE, "a") is refusal


def test_only_lost_rights_that_are_needed_make_a_process_not_ready():
    table = RefusalTable()
    table.refused(Right.SUBSCRIBE, "never", 0.0, lost=False)
    heard = table.refused(Right.SUBSCRIBE, "heard", 0.0, lost=True)
    sent = table.refused(Right.PUBLISH, "sent", 0.0, lost=True)
    assert table.lost(1.0) == [heard, sent]
    assert table.lost(FIRST_PAUSE_S + UNUSED_S) == [heard]
    table.sweep(FIRST_PAUSE_S + LONGEST_PAUSE_S)
    assert table.get(Right.PUBLISH, "sent") is None


def test_a_flood_of_subjects_is_bounded_in_memory_and_in_the_log():
    table = RefusalTable()
    made = [table.refused(Right.PUBLISH, f"answer.{number}", 0.0, lost=True) for number in range(MAX_REFUSALS + 10)]
    assert sum(refusal.loud for refusal in made) == MAX_REPORTED + 10  # as the first ones are forgotten
    assert len(table.of(Right.PUBLISH)) == MAX_REFUSALS
