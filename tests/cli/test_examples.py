"""Lines to paste: arguments made up from annotations, which the task then accepts."""

from __future__ import annotations

import shlex
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from gangline.cli.console.examples import example_arguments, example_lines
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool


class Colour(StrEnum):
    RED = "red"


class Size(BaseModel):
    width: int = Field(ge=16)
    height: int | None = None
    name: str = Field(examples=["small"])


pool = Pool("shop")


@pool.task
def everything(
    a: str,
    b: int,
    c: float,
    d: bool,
    e: bytes,
    f: list[int],
    g: dict[str, str],
    h: Size,
    i: Colour,
    j: Literal["x", "y"],
    k: date,
    m: UUID,
    n: Path,
    o: int | None,
    p: list[Size],
    q: tuple[int, str],
) -> None: ...


@pool.task
def untyped(a, b: Any) -> None: ...


@pool.task
def only_defaults(a: int = 1, *args: int, **kwargs: int) -> None: ...


@pool.task
def by_place(a: int, b: str, /) -> None: ...


@pool.task
def streams(n: int):
    yield n


@pytest.mark.parametrize("name", list(pool.tasks))
def test_the_task_accepts_its_example(name):
    task = pool.tasks[name]
    arguments = example_arguments(task)
    by_name = isinstance(arguments, dict)
    task.bind(None if by_name else arguments, arguments if by_name else None, json=True)


def test_examples_are_what_a_reader_expects():
    arguments = example_arguments(pool.tasks["everything"])
    assert arguments["h"] == {"width": 16, "name": "small"}
    assert (arguments["a"], arguments["b"], arguments["i"], arguments["j"]) == ("text", 1, "red", "x")
    assert example_arguments(pool.tasks["only_defaults"]) == {}
    assert example_arguments(pool.tasks["by_place"]) == [1, "text"]


def test_lines_can_be_pasted_into_a_shell():
    lines = dict(zip(pool.tasks, example_lines(pool, Names("ns"), "nats://h:1"), strict=True))
    call, request = lines["by_place"]
    assert shlex.split(call) == [
        "gangline",
        "call",
        "-s",
        "nats://h:1",
        "--namespace",
        "ns",
        "shop.by_place",
        '[1, "text"]',
    ]
    assert shlex.split(request) == ["nats", "-s", "nats://h:1", "req", "ns.call.shop.by_place", '[1, "text"]']
    assert "--stream" in lines["streams"][0]
    assert shlex.split(lines["only_defaults"][1])[-1] == "", "nats req needs a body, if an empty one"


def test_the_default_server_and_namespace_are_left_out():
    call, request = example_lines(pool, Names(), None)[3]
    assert call == "gangline call shop.by_place '[1, \"text\"]'"
    assert request == "nats req gangline.call.shop.by_place '[1, \"text\"]'"


def test_a_pool_of_many_tasks_gets_lines_for_a_few(capsys):
    from gangline.cli.commands.serve.worker import HINTS, _print_hints
    from gangline.cli.console.options import ConnectionOptions

    many = Pool("many", slots=1)
    for number in range(HINTS + 3):

        @many.task(name=f"t{number}")
        async def task() -> None: ...

    _print_hints([many], ConnectionOptions(server="nats://127.0.0.1:4222"))
    out = capsys.readouterr().out
    assert out.count("try ") == HINTS
    assert out.splitlines()[-1].strip() == "... and 3 more tasks: 'gangline workers --tasks' lists them"
