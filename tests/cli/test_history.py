"""`gangline history` on a real server, with the processes that users start."""

from __future__ import annotations

import signal
import time

import pytest

from gangline.schemas.names import Names

from .conftest import until

pytestmark = [pytest.mark.server, pytest.mark.processes]


def kinds(commands, *options: str) -> list[str]:
    return [record["kind"] for record in commands.json("history", *options)]


@pytest.mark.long
def test_what_processes_and_operators_did_is_shown(commands):
    coordinator = commands.start("coordinator")
    coordinator.await_output(r"coordinator\.leads")
    commands.started("worker", "words:pool", "--id", "w1")
    assert commands.run("resize", "words.w1", "7", "--reason", "more load").returncode == 0
    expected = {"leader_elected", "worker_joined", "worker_resized", "action"}
    until(lambda: expected <= set(kinds(commands)), "all of it is recorded, a second later")
    (action,) = commands.json("history", "--kind", "action")
    assert action["reason"] == "more load" and action["details"]["target"] == "words.w1"
    shown = commands.run("history", "--worker", "words.w1").stdout
    assert "worker resized" in shown and "7 slots, from 4" in shown and "resize done, more load" in shown
    assert kinds(commands, "--pool", "other") == []
    assert kinds(commands, "--since", "1h") == kinds(commands, "--until", "2100-01-01T00:00:00Z")
    assert kinds(commands, "--until", "1h") == []
    assert commands.json("history", "--held-at", "0s") == []


def test_who_held_slots_at_a_time_is_a_table_of_holders_and_a_killed_worker_holds_nothing(commands):
    commands.start("coordinator").await_output(r"coordinator\.leads")
    worker = commands.started("worker", "words:pool", "--id", "w1")
    acquired = commands.json("gang", "acquire", "words", "1", "--ttl", "600")
    until(lambda: "gang_formed" in kinds(commands), "it is recorded")
    shown = commands.run("history", "--held-at", "0s").stdout
    assert "HELD FOR" in shown and f"gang {acquired['id']} (generation 1)" in shown and "words.w1" in shown
    nobody = commands.run("history", "--held-at", "1d")
    assert nobody.stdout == "" and "nobody held slots at" in nobody.stderr
    worker.signal(signal.SIGKILL)
    until(lambda: "worker_lost" in kinds(commands), "the coordinator notices")
    assert "worker lost" in commands.run("history", "--worker", "words.w1").stdout


def test_a_history_can_be_followed(commands):
    commands.start("coordinator").await_output(r"coordinator\.leads")
    following = commands.start("history", "-w")
    following.await_output(r"added .* leader elected")
    worker = commands.start("worker", "words:pool", "--id", "w1")
    following.await_output(r"added .* worker joined")
    worker.await_output(r"worker\.started")


def test_an_empty_history_is_an_empty_list_and_a_hint(commands):
    done = commands.run("history")
    assert (done.returncode, done.stdout) == (0, "") and "nothing was recorded" in done.stderr


@pytest.mark.long
def test_no_history_is_written_if_it_is_switched_off(commands):
    commands.start("coordinator").await_output(r"coordinator\.leads")
    until(lambda: "leader_elected" in kinds(commands), "there is a history")
    worker = commands.started("worker", "words:pool", "--id", "w1", GANGLINE_HISTORY="off")
    assert commands.run("drain", "words.w1").returncode == 0
    assert worker.wait() == 0
    assert set(kinds(commands)) == {"leader_elected", "action"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time: write 14:03"),
        (["--kind", "party"], "give one of lease_granted"),
        (["--held-at", "14:03", "--watch"], "--held-at cannot be combined with --watch"),
    ],
)
def test_what_cannot_be_understood_says_how_to_write_it(invoke, options, why):
    done = invoke("history", *options)
    assert done.exit_code == 2 and why in done.stderr


def test_a_time_of_day_is_of_today_in_utc(invoke):
    from gangline.cli.console.arguments import _past

    before = time.time()
    midnight = _past(None, None, "00:00")  # type: ignore[arg-type]
    assert midnight in {now - now % 86_400 for now in (before, time.time())}
    assert Names().history_stream == "GANGLINE_HISTORY"
