"""`gangline call`: arguments in, result out, exit codes that tell what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from gangline.bus.port.bus import NotPermitted

from ..waiting import PATIENCE_S
from .conftest import until

pytestmark = [pytest.mark.server, pytest.mark.processes]


@pytest.fixture
def worker(commands):
    return commands.started("worker", "words:pool", "--id", "w1")


def test_arguments_go_in_and_results_come_out_as_text_or_json(commands, worker):
    assert commands.run("call", "words.count", '{"text": "a b c"}').stdout == "3\n"
    assert commands.run("call", "words.count", '["a b"]').stdout == "2\n"
    assert commands.run("call", "words.count", "-", stdin='{"text": "a"}').stdout == "1\n"
    assert commands.run("call", "words.shout", '["straße"]').stdout == "STRASSE\n"
    assert commands.run("call", "words.shout", '["a\\"b"]', "--json").stdout == '"A\\"B"\n'
    stream = commands.run("call", "words.each", '["a b c"]', "--stream").stdout
    assert [json.loads(line) for line in stream.splitlines()] == ["a", "b", "c"]


def test_a_task_that_raises_is_exit_code_1_and_a_wrong_call_exit_code_2(commands, worker):
    done = commands.run("call", "words.fail", '["broken pipe dream"]')
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gangline: words.fail raised ValueError: ") and "broken pipe dream" in done.stderr
    debug = commands.run("call", "words.fail", '["x"]', "--debug").stderr
    assert "words.py" in debug, "--debug shows the remote traceback"
    without = commands.run("call", "words.count")
    assert (without.returncode, without.stdout) == (2, "")
    assert "text" in without.stderr and without.stderr.count("\n") == 1
    unknown = commands.run("call", "words.nothing")
    assert unknown.returncode == 2
    assert "count" in unknown.stderr, "it names the methods that there are"


@pytest.mark.long  # the test of the README's example starts new interpreters, too
def test_a_new_interpreter_calls_as_a_forked_one_does(commands, worker):
    command = [sys.executable, "-m", "gangline.cli", "call", "words.shout", '["a"]']
    done = subprocess.run(command, env=commands.environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "A\n", "")


def test_a_pool_without_workers_is_exit_code_3(commands):
    done = commands.run("call", "nobody.home", "--timeout", "1")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "gangline workers" in done.stderr


def test_a_deadline_that_passes_while_the_task_runs_is_exit_code_4(commands, worker):
    done = commands.run("call", "words.hold", "--timeout", "8")
    assert done.returncode == 4
    assert done.stderr.startswith("gangline: ")


def test_a_worker_that_dies_under_a_call_is_exit_code_4(commands, worker):
    call = commands.start("call", "words.hold")
    commands.await_file("began")
    os.kill(worker.process.pid, signal.SIGKILL)
    assert call.wait() == 4
    assert call.output.startswith("gangline: words.w1 vanished with the task, which may have started")
    assert call.output.count("\n") == 1


def test_ctrl_c_ends_a_call_with_130_and_stops_its_task(commands, worker):
    call = commands.start("call", "words.hold")
    commands.await_file("began")
    call.signal(signal.SIGINT)
    assert call.wait() == 130
    assert call.output == "gangline: interrupted\n"
    commands.await_file("cancelled")
    until(lambda: commands.json("stats", "words.w1")["tasks"]["cancelled"] == 1, "its end is counted")


def test_a_producer_who_may_not_talk_to_workers_is_told_of_the_gateway(invoke, monkeypatch):
    async def refused(*_: object, **__: object) -> None:
        raise NotPermitted("this user may not")

    monkeypatch.setattr("gangline.cli.commands.tasks.call._call", refused)
    told = invoke("call", "words.count", "text=a").stderr
    assert told == "gangline: this user may not; a producer gives --gateway\n"
    assert "gives --gateway" not in invoke("call", "words.count", "text=a", "--gateway").stderr
