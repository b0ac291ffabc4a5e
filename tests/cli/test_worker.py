"""`gangline worker` with several pools and several processes, and `gangline dev` with both."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import click
import pytest

from gangline.cli.console.arguments import slots_by_pool
from gangline.cli.serving.supervisor import WorkerSupervisor

from .conftest import until, wait_gone

MEDIA = """
import os
import gangline

pool = gangline.Pool("media", slots=2)

@pool.task
def pid() -> int:
    return os.getpid()

@pool.task
def die() -> None:
    os._exit(7)
"""


@pytest.fixture
def two(commands):
    """The pools `words` and `media`."""
    (commands.folder / "media.py").write_text(MEDIA)
    return commands


def registered(commands, count):
    rows = commands.json("workers")
    if len(rows) != count or not all(row["load"] for row in rows):
        return []
    return sorted((f"{row['pool']}.{row['worker']}", row["load"]["total"], row["pid"]) for row in rows)


def test_the_slots_of_each_pool_are_given_by_its_name():
    assert slots_by_pool((), ["words", "media"]) == {"words": None, "media": None}
    assert slots_by_pool(("8",), ["words"]) == {"words": 8}
    assert slots_by_pool(("media=1", "words=0"), ["words", "media"]) == {"words": 0, "media": 1}


@pytest.mark.parametrize(
    ("texts", "pools", "said"),
    [
        (("8",), ["words", "media"], "say which of the pools"),
        (("video=8",), ["words"], "'video' is not served here; pools: words"),
        (("words=x",), ["words"], "give a whole number from 0, or POOL=N"),
        ((), ["words", "words"], "a pool is named twice"),
    ],
)
def test_slots_that_fit_no_pool_are_refused(texts, pools, said):
    with pytest.raises(click.UsageError, match=said):
        slots_by_pool(texts, pools)


@pytest.mark.server
@pytest.mark.processes
def test_one_process_serves_several_pools_until_all_have_left(two):
    running = two.start("worker", "words:pool", "media:pool", "--id", "a", "--slots", "media=3")
    running.await_output(r"worker\.started", times=2)
    (media, words) = registered(two, 2)
    assert media == ("media.a", 3, words[2])
    assert words[0] == "words.a"
    assert two.run("call", "words.shout", '["a"]').stdout == "A\n"
    assert two.run("call", "media.pid").stdout == f"{words[2]}\n"
    two.run("drain", "media.a")
    running.await_output(r"worker\.left .*pool=media")
    assert two.run("call", "words.shout", '["a"]').stdout == "A\n"
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.server
@pytest.mark.processes
def test_a_pool_that_fails_to_start_ends_the_others_with_its_error(two):
    two.started("worker", "media:pool", "--id", "a")
    running = two.start("worker", "words:pool", "media:pool", "--id", "a")
    assert running.wait() == 3
    assert "media.a" in running.output and "is alive" in running.output
    until(lambda: [row[0] for row in registered(two, 1)] == ["media.a"], "only the first process serves")


@pytest.mark.server
@pytest.mark.processes
def test_processes_are_restarted_when_they_die_and_drained_together(two):
    running = two.start("worker", "media:pool", "--id", "a", "--processes", "2")
    running.await_output(r"worker\.started", times=2)
    assert [row[0] for row in registered(two, 2)] == ["media.a-1", "media.a-2"]
    before = {row[2] for row in registered(two, 2)}
    two.run("call", "media.die")
    running.await_output(r"supervisor\.restart .* code=7")
    running.await_output(r"worker\.started", times=3)
    until(lambda: len(registered(two, 2)) == 2, "both processes serve")
    after = {row[2] for row in registered(two, 2)}
    assert len(before & after) == 1
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    for pid in after:
        wait_gone(pid)


@pytest.mark.server
@pytest.mark.processes
def test_processes_that_reject_their_options_end_with_the_error(two):
    running = two.start("worker", "media:pool", "--processes", "2", "--slots", "words=2")
    assert running.wait() == 2
    assert "pool 'words' is not served here" in running.output
    assert "supervisor.restart" not in running.output


async def test_a_process_that_has_just_exited_does_not_keep_the_others_from_being_drained():
    class Process:
        def __init__(self, gone: bool) -> None:
            self.gone, self.terminated = gone, False

        def terminate(self) -> None:
            if self.gone:
                raise ProcessLookupError
            self.terminated = True

    supervisor, processes = WorkerSupervisor([], {}), [Process(gone) for gone in (True, False, True)]
    supervisor._running.update(cast("Any", processes))
    supervisor.drain()
    assert [process.terminated for process in processes] == [False, True, False]


@pytest.mark.server
@pytest.mark.processes
def test_killed_supervisors_leave_no_process_behind(two):
    running = two.start("worker", "media:pool", "--processes", "2")
    running.await_output(r"worker\.started", times=2)
    pids = [row[2] for row in registered(two, 2)]
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    for pid in pids:
        wait_gone(pid)
