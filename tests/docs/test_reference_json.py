"""The page about `--json` has an example for each command that takes it, with the fields of today."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gangline.board.board_core import Table
from gangline.cli.app import gangline
from gangline.schemas.messages.gangs import GangReply, GangWhyReply
from gangline.schemas.messages.jobs import JobInfo, JobWhyReply, QueueStats
from gangline.schemas.messages.operations import StatsReply
from gangline.schemas.records.gangs import GangSetRecord
from gangline.schemas.records.jobs import JobEvent
from gangline.schemas.records.workers import Registration

from ..support.rows import case

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md").read_text()
SECTIONS = {
    heading: [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    for heading, text in re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
NOT_ON_THE_PAGE = {"gangset delete"}
"""Earlier names of commands, which go on working."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
    elif any("--json" in option.opts for option in command.params):
        yield " ".join(path)


def test_every_command_that_prints_json_is_on_the_page():
    on_the_page = {name for heading in SECTIONS for name in heading.split(", ")}
    missing = set(commands(gangline)) - NOT_ON_THE_PAGE - on_the_page
    assert missing == set(), "give each a section in docs/reference/json.md, with an example"
    assert on_the_page - set(commands(gangline)) == set(), "these do not exist, or have no --json"


def test_the_tables_of_top_are_on_the_page():
    assert [table.value for table in Table if f"`{table.value}`" not in PAGE] == []


def test_every_example_is_json():
    assert [heading for heading, examples in SECTIONS.items() if not examples] == []


SHAPES: list[tuple[str, Any, set[str]]] = [
    ("status", SECTIONS["status"][0], {*JobInfo.model_fields, *JobInfo.model_computed_fields}),
    ("status --watch", SECTIONS["status"][1], set(JobEvent.model_fields) - {"v"}),
    ("why JOB", SECTIONS["why"][0], set(JobWhyReply.model_fields)),
    ("why GANG", SECTIONS["why"][1], set(GangWhyReply.model_fields)),
    ("queue ls", SECTIONS["queue ls, queue show"][0], set(QueueStats.model_fields)),
    ("workers", SECTIONS["workers"][0][0], set(Registration.model_fields) - {"v"} | {"load"}),
    ("stats", SECTIONS["stats"][0], set(StatsReply.model_fields)),
    (
        "gang show",
        SECTIONS["gang acquire, gang show, gang release, gang rm, gang ls"][0],
        {*GangReply.model_fields, "times"},
    ),
    (
        "gangset ls",
        SECTIONS["gangset ls, gangset show"][0],
        set(GangSetRecord.model_fields) - {"v"} | {"name", "living"},
    ),
]


def test_an_example_has_all_fields():
    for command, example, fields in SHAPES:
        with case(command, example, fields):
            assert set(example) == fields, command
