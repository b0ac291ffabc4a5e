"""Help: what its texts may say, how they are laid out, and names that are completed."""

from __future__ import annotations

import re

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gangline.cli.app import COMMANDS, SECTIONS, gangline
from gangline.cli.console.help import RenamedCommand, SectionedOption


def leaves() -> list[tuple[str, click.Command]]:
    """All commands that can be run, with their full names."""
    found = []
    for name in COMMANDS:
        command = gangline.get_command(click.Context(gangline), name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", each) for inner, each in command.commands.items() if not each.hidden]
    return found


LEAVES = dict(leaves())
FIRST_WORDS = re.compile(
    r"(of|its?|their|in|with|over|at|for|so|and|or|then|next|whatever|whether|which|what is|if|when|because|as)\b", re.I
)
"""A help text begins with a verb, or with a noun that names the thing."""
FORBIDDEN = re.compile(r"\.\.\.|…|\bso (long|many|much)\b|\banew\b|again and again|\btries\b|\bno matter\b", re.I)


def texts() -> list[tuple[str, str]]:
    """All texts of help, and where they stand."""
    found = [(f"--help: {name}", text) for name, text in COMMANDS.items()]
    for name, command in LEAVES.items():
        found.append((f"{name}: short help", command.short_help or ""))
        found.append((f"{name}: help", (command.help or "").split("\n\n")[0].replace("\n", " ")))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                found.append((f"{name} {parameter.opts[-1]}", parameter.help or ""))
    return found


def faults(place: str, text: str) -> list[str]:
    """What is wrong with a text of help."""
    if not text:
        return [f"{place} has no help"]
    found = []
    if not text[0].isupper():
        found.append(f"{place} does not begin with a capital letter: {text}")
    if FIRST_WORDS.match(text):
        found.append(f"{place} begins with {text.split()[0]!r}: begin with a verb or a noun: {text}")
    if forbidden := FORBIDDEN.search(text.replace("JOB...", "")):
        found.append(f"{place} has {forbidden.group()!r}: {text}")
    if text.rstrip()[-1] not in ".]:)":
        found.append(f"{place} does not end with a full stop: {text}")
    return found


def test_help_texts_begin_with_a_verb_or_name_the_thing():
    checked = texts()
    assert len(checked) > 1000
    assert [fault for place, text in checked for fault in faults(place, text)] == []


def test_each_command_is_in_one_section():
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)


def page(name: str, width: int = 80) -> str:
    """What `--help` of a command prints."""
    return CliRunner().invoke(gangline, [*name.split(), "--help"], prog_name="gangline", terminal_width=width).output


def test_a_commands_own_options_come_before_those_of_the_connection():
    wrong = []
    for name, command in LEAVES.items():
        if isinstance(command, click.Group):
            continue
        own, found, _ = page(name).partition("\nConnection")
        has_connection = any(isinstance(each, SectionedOption) for each in command.params)
        if bool(found) is not has_connection:
            wrong.append(f"{name} --help {'has' if found else 'lacks'} the section of the connection")
        if has_connection and "--server URL" in own:
            wrong.append(f"{name} --help has --server among its own options")
        for parameter in command.params:
            is_own = isinstance(parameter, click.Option) and not isinstance(parameter, SectionedOption)
            if is_own and not parameter.hidden and parameter.opts[-1] not in own:
                wrong.append(f"{name} --help lacks {parameter.opts[-1]} among its own options")
    assert wrong == []


@pytest.mark.parametrize("width", [80, 100])
def test_examples_in_help_are_whole_lines_that_can_be_pasted(width):
    broken = []
    for name, command in LEAVES.items():
        out = page(name, width)
        for paragraph in (command.help or "").split("\n\n"):
            lines = paragraph.split("\n")
            for line in lines[1:] if lines[0].strip() == "\b" else ():
                if line.strip() not in out:
                    broken.append(f"{name} --help breaks {line.strip()!r} at {width} columns")
        for line in out.splitlines():
            if re.match(r"\s*(nats (req|pub|kv|sub)|gangline \w+ \w+\.\w+) .*(?<!['\"\])}\w*|$])$", line):
                broken.append(f"{name} --help breaks at {width} columns after: {line}")
    assert broken == []


def test_what_was_renamed_is_hidden_and_still_works_with_a_word_about_it():
    group = gangline.get_command(click.Context(gangline), "dead")
    assert isinstance(group, click.Group) and isinstance(group.commands["drop"], RenamedCommand)
    assert "drop" not in CliRunner().invoke(gangline, ["dead", "--help"]).output
    said = CliRunner().invoke(gangline, ["dead", "drop"], prog_name="gangline")
    assert said.exit_code == 2
    assert said.stderr.splitlines() == [
        "'gangline dead drop' is now 'gangline dead rm'; the old name goes soon",
        "gangline: give job ids, or --all ('gangline dead drop --help' shows how)",
    ]


@pytest.mark.parametrize(("group", "old", "new"), [("gangset", "delete", "rm"), ("gang", "release", "rm")])
def test_there_is_one_word_for_removal(group, old, new):
    command = gangline.get_command(click.Context(gangline), group)
    assert isinstance(command, click.Group)
    assert command.commands[old].hidden and not command.commands[new].hidden


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["gang", "lst"], "there is no command 'lst': did you mean 'ls'?"),
        (["dead", "replya"], "did you mean 'replay'?"),
        (["dead", "xyz"], "there is no command 'xyz': 'gangline dead --help' lists them"),
        (["submit", "a.b", "--time-zon", "UTC"], "'--time-zone'"),
    ],
)
def test_a_misspelt_command_or_option_is_recognised(invoke, arguments, hint):
    result = invoke(*arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert hint in result.stderr, result.stderr


def test_no_color_switches_colours_off_everywhere(monkeypatch):
    seen = []

    @click.command()
    def command() -> None:
        click.secho("red", fg="red")
        seen.append(click.get_current_context().color)

    monkeypatch.setattr(type(gangline), "get_command", lambda *_: command)
    monkeypatch.setattr(type(gangline), "resolve_command", lambda _self, _ctx, args: ("x", command, args[1:]))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(gangline, ["x"], color=True).output
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" in CliRunner().invoke(gangline, ["x"], color=True).output
    assert seen == [False, None]


def completed(arguments: list[str], incomplete: str) -> list[str]:
    complete = ShellComplete(gangline, {}, "gangline", "_GANGLINE_COMPLETE")
    return [item.value for item in complete.get_completions(arguments, incomplete)]


def test_commands_and_options_are_completed():
    assert completed([], "sched") == ["schedules"]
    assert completed(["schedules"], "p") == ["pause"]
    assert "--time-zone" in completed(["submit", "a.b"], "--t")
    assert completed(["dead"], "dr") == [], "old names are not offered"


def test_contexts_are_completed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    for name in ("prod", "preview", "dev"):
        (folder / f"{name}.json").write_text("{}")
    assert completed(["workers", "--context"], "pr") == ["preview", "prod"]


def test_without_a_server_nothing_is_completed_and_nothing_is_printed(capfd):
    assert completed(["-s", "nats://127.0.0.1:9"], "zzz") == []
    assert completed(["drain", "-s", "nats://127.0.0.1:9"], "w") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(invoke, shell):
    done = invoke("completion", shell)
    assert done.exit_code == 0 and "_GANGLINE_COMPLETE" in done.output and "gangline" in done.output
