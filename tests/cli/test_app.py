"""The group: help that imports nothing heavy, commands that are found, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.app import COMMANDS, gangline

from ..support.rows import case
from ..waiting import PATIENCE_S

HEAVY = ("pydantic", "pydantic_core", "nats", "msgpack", "opentelemetry", "rich", "uvloop", "asyncio", "watchfiles")

PROBE = """
import json, sys
from gangline.cli import main
for arguments in json.loads(sys.argv.pop()):
    sys.argv = ["gangline", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(HEAVY))
    print("RAN", *arguments, "CODE", code, "LOADED", *loaded)
"""


def loaded_by(*commands: list[str]) -> list[str]:
    """What was heavy among what each of these commands, one after the other, had loaded."""
    code = PROBE.replace("HEAVY", repr(HEAVY))
    what = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(what, capture_output=True, text=True, timeout=PATIENCE_S)
    return [line.removeprefix("RAN ") for line in done.stdout.splitlines() if line.startswith("RAN ")]


def test_help_is_quick_because_it_imports_nothing_heavy():
    commands = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), ["gang", "acquire", "--help"]]
    assert loaded_by(*commands) == [f"{' '.join(each)} CODE 0 LOADED" for each in commands]


def test_a_usage_error_imports_nothing_heavy_either():
    assert loaded_by(["resize", "images.w1"]) == ["resize images.w1 CODE 2 LOADED"]


def test_every_command_of_the_table_is_there_with_a_help_text_and_debug():
    for name in COMMANDS:
        command = gangline.get_command(click.Context(gangline), name)
        assert command is not None and command.help, name
        for leaf in command.commands.values() if isinstance(command, click.Group) else [command]:
            assert leaf.help and any(option.name == "debug" for option in leaf.params), (name, leaf.name)


def test_help_lists_the_commands_in_the_order_of_a_newcomers_day(invoke):
    out = invoke("--help").output
    assert [
        line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS
    ] == list(COMMANDS)
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage" in out


def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(invoke):
    cases = [
        (["wroker"], "gangline: there is no command 'wroker': did you mean 'worker'? ('gangline --help' shows how)"),
        (["xyz"], "gangline: there is no command 'xyz': 'gangline --help' lists them"),
        (["resize", "a.b"], "gangline: Missing argument 'SLOTS' ('gangline resize --help' shows how)"),
        (
            ["resize", "a.b", "many"],
            "gangline: Invalid value for 'SLOTS': 'many' is not a number of slots: give a whole number from 0",
        ),
        (["leases", "--wach"], "gangline: No such option '--wach'"),
        (["drain", "w1"], "gangline: 'w1' is not POOL.WORKER; 'gangline workers' shows them"),
        (["drain", "a.b c"], "gangline: worker 'b c' may only have letters, digits, '_' and '-'"),
        (["resize", "a.b", "--", "-1"], "gangline: Invalid value for 'SLOTS': '-1' is not a number of slots"),
        (["resize", "a.b", "-1"], "gangline: Invalid value for 'SLOTS': '-1' is not a number of slots"),
        (["resize", "a.b", "--jsn"], "gangline: No such option '--jsn'"),
        (["resize", "a.b", "3", "--jsn"], "gangline: Got unexpected extra argument (--jsn)"),
        (["drain", "a.b", "--grace", "-1"], "gangline: Invalid value for '--grace': '-1' is not a duration: write"),
        (["call", "a.b", "-t", "soon"], "gangline: Invalid value for '-t' / '--timeout': 'soon' is not a duration"),
        (["call", "words"], "gangline: 'words' is not ENDPOINT.METHOD, for example 'images.thumbnail'"),
        (["call", "words.count", "{"], "gangline: the arguments are not JSON ("),
        (["call", "words.count", "7"], "gangline: the arguments must be a JSON object or array, not int: try '[7]'"),
        (["worker", "words"], "gangline: 'words' is not MODULE:POOL"),
        (["worker", "words:pool", "--label", "x"], "gangline: --label 'x' is not KEY=VALUE"),
        (["dev", "words"], "gangline: 'words' is not MODULE:POOL"),
        (["route", "set", "words"], "gangline: give at least one setting, such as --to POOL=WEIGHT ('gangline route"),
        (["worker", "nowhere:pool"], "gangline: there is no module 'nowhere' in"),
        (["workers", "--namespace", "a.b"], "gangline: namespace 'a.b' may only have"),
        (["workers", "--creds", "/nowhere.creds"], "gangline: credentials_file '/nowhere.creds' is not a file"),
        (["workers", "-s", "http://x"], "gangline: address 'http://x' has the scheme 'http'"),
    ]
    for arguments, line in cases:
        with case(arguments, line):
            result = invoke(*arguments)
            assert result.exit_code == 2
            assert result.stderr.startswith(line), result.stderr
            assert result.stderr.count("\n") == 1
            assert result.stdout == ""


def test_a_bare_gangline_shows_its_help(invoke):
    result = invoke()
    assert result.exit_code == 2
    assert "Usage: gangline" in result.stderr


def test_debug_adds_the_traceback(invoke):
    result = invoke("workers", "--namespace", "a.b", "--debug")
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("gangline: namespace 'a.b'")
    assert result.exit_code == 2


def test_an_unreachable_server_is_exit_code_3_with_what_to_do_next(invoke, monkeypatch):
    monkeypatch.setitem(ConnectionSettings.__init__.__kwdefaults__, "connect_timeout_s", 0.5)
    result = invoke("workers", "-s", "nats://127.0.0.1:9")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "nats://127.0.0.1:9" in result.stderr and "'gangline dev MODULE:POOL' starts one" in result.stderr


@pytest.mark.parametrize("place", ["gangline.cli.app", "gangline.cli.commands.tasks.call"], ids=["group", "command"])
def test_ctrl_c_before_a_command_has_begun_is_an_interruption_like_any_other(place):
    code = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {place!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
sys.argv = ["gangline", "call", "words.count"]
from gangline.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gangline: interrupted\n")
