"""Which error is which exit code, and what its one line says."""

from __future__ import annotations

import click
import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NotPermitted
from gangline.cli.console.exits import Exit, exit_code_of, one_line, refusals, report
from gangline.schemas.errors import base as errors

from ..support.rows import case


def test_the_exit_code_tells_whether_it_failed_was_wrong_or_may_be_tried_again():
    cases = [
        (errors.TaskFailed("x"), Exit.FAILED),
        (errors.TaskCrashed("x"), Exit.FAILED),
        (errors.LeaseExpired("x"), Exit.FAILED),
        (RuntimeError("x"), Exit.FAILED),
        (errors.InvalidArguments("x"), Exit.USAGE),
        (errors.UnknownMethod("x"), Exit.USAGE),
        (click.UsageError("x"), Exit.USAGE),
        (errors.NoWorkers("x"), Exit.UNAVAILABLE),
        (errors.Saturated("x"), Exit.UNAVAILABLE),
        (errors.ServerUnreachable("x"), Exit.UNAVAILABLE),
        (errors.DeadlineExceeded("x"), Exit.UNAVAILABLE),
        (errors.DeadlineExceeded("x", may_have_started=True), Exit.UNKNOWN),
        (errors.WorkerLost("x"), Exit.UNKNOWN),
        (errors.StreamBroken("x"), Exit.UNKNOWN),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ]
    for error, code in cases:
        with case(error, code):
            assert exit_code_of(error) is code


def test_a_line_has_no_line_breaks_and_says_what_to_do_next():
    line = one_line(errors.NoWorkers("no worker\nserves 'images'."))
    assert line.startswith("no worker serves 'images' ('gangline worker MODULE:POOL' starts one")


def test_a_task_that_raised_is_told_with_the_type_it_raised():
    error = errors.TaskFailed("no such file", details={"type": "FileNotFoundError", "traceback": "Traceback..."})
    assert one_line(error) == "FileNotFoundError: no such file (--debug shows the task's traceback)"


def test_only_a_server_that_does_not_answer_is_one_to_start():
    assert "gangline dev" in one_line(errors.ServerUnreachable("cannot connect to x within 5 s (refused)"))
    for text in (
        "x rejected the credentials (authorization violation): check them",
        "no TLS with x: check tls_ca (--tlsca)",
    ):
        assert one_line(errors.ServerUnreachable(text)) == text


def test_an_interrupt_is_told_without_a_type():
    assert one_line(KeyboardInterrupt()) == "interrupted"


def test_an_error_of_ours_that_nobody_expected_is_told_with_its_type():
    assert one_line(KeyError("x")) == "KeyError: 'x'"
    assert one_line(ValueError()) == "ValueError: ValueError"


def test_debug_shows_the_remote_traceback_before_our_own(capsys):
    error = errors.TaskFailed("no", details={"type": "E", "traceback": "REMOTE"})
    assert report(error, debug=True) is Exit.FAILED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("REMOTE\n") and err.splitlines()[-1].startswith("gangline: E: no")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotPermitted("forbidden: a"), ["gangline: forbidden: a"]),
        (errors.DeadlineExceeded("no answer"), ["a", "no answer"]),
    ],
)
def test_what_the_server_forbade_is_said_once_and_where_the_error_does_not_say_it(capsys, error, told):
    refusals[:] = ["gangline: forbidden: a", "gangline: forbidden: a"]
    try:
        report(error, debug=False)
    finally:
        refusals.clear()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(told) and all(text in line for line, text in zip(lines, told, strict=True))


@pytest.mark.server
@pytest.mark.parametrize("command", [("workers",), ("gang", "ls"), ("why", "images.j1")])
def test_a_server_that_is_too_old_is_named_instead_of_an_empty_list(invoke, nats_url, monkeypatch, command):
    monkeypatch.setattr(NatsBus, "server_version", "2.11.4")
    done = invoke(*command, "--server", nats_url)
    assert done.exit_code != 0 and "this nats-server is 2.11.4: gangline needs 2.12 or later" in done.output
