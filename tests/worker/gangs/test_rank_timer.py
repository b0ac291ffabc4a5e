"""The times of one rank."""

from __future__ import annotations

from gangline.worker.gangs.rank_timer import RankTimer


def test_waiting_is_told_apart_from_running_and_counts_until_now():
    timer = RankTimer(3, [].append)
    timer.began(1, 10.0)
    timer.waits(1, 1, 14.0)
    now = timer.times(15.0)
    assert (now.rank, now.busy_s, now.waiting_s, now.ended, now.run) == (3, 5.0, 1.0, 0, 1)
    timer.waits(1, -1, 16.0)
    timer.ended(1, 20.0)
    over = timer.times(99.0)
    assert (over.busy_s, over.waiting_s, over.ended) == (10.0, 2.0, 1)
    assert (over.run_busy_s, over.run_waiting_s) == (10.0, 2.0)


def test_the_times_of_the_last_run_are_its_own():
    timer = RankTimer(0, [].append)
    timer.began(1, 0.0)
    timer.began(2, 1.0)
    timer.ended(1, 4.0)
    timer.ended(2, 5.0)
    timer.began(0, 5.0)  # outside of a run
    timer.ended(0, 7.0)
    told = timer.times(7.0)
    assert (told.run, told.run_busy_s, told.busy_s, told.ended) == (2, 4.0, 10.0, 3)


def test_in_a_new_generation_a_rank_that_continues_counts_from_zero():
    timer = RankTimer(0, [].append)
    timer.began(1, 0.0)
    timer.waits(1, 1, 2.0)
    timer.restart(10.0)
    told = timer.times(11.0)
    assert (told.busy_s, told.waiting_s, told.ended) == (1.0, 1.0, 0)
    timer.waits(1, -1, 12.0)
    timer.ended(1, 13.0)
    told = timer.times(20.0)
    assert (told.busy_s, told.waiting_s, told.ended) == (3.0, 2.0, 1)
