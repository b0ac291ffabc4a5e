"""Arguments of tasks on the command line: JSON, or KEY=VALUE."""

from __future__ import annotations

import io

import click
import pytest

from gangline.cli.console.arguments import parse_arguments

from ..support.rows import case


def test_named_arguments():
    cases = [
        (["text=a b"], {"text": "a b"}),
        (
            ["width=128", "ratio=1.5", "gray=true", "crop=null"],
            {"width": 128, "ratio": 1.5, "gray": True, "crop": None},
        ),
        (['tags=["a", "b"]', 'box={"x": 1}'], {"tags": ["a", "b"], "box": {"x": 1}}),
        (["zip=01234", "version=1.2.3", "at=2030-01-31"], {"zip": "01234", "version": "1.2.3", "at": "2030-01-31"}),
        (['id="42"'], {"id": "42"}),
        (["n:=42", "empty="], {"n": 42, "empty": ""}),
        (["url=https://a/?x=1&y:=2"], {"url": "https://a/?x=1&y:=2"}),
        (["text=two\nlines"], {"text": "two\nlines"}),
        (['{"text": "a=b"}'], {"text": "a=b"}),
        ([], {}),
        ([" "], {}),
    ]
    for given, named in cases:
        with case(given, named):
            assert parse_arguments(given) == ([], named)


def test_an_array_is_positional():
    assert parse_arguments(['["a", 2]']) == (["a", 2], {})


def test_a_hyphen_reads_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "from stdin"}'))
    assert parse_arguments(["-"]) == ([], {"text": "from stdin"})


def test_what_cannot_be_meant_is_refused():
    cases = [
        (["n:=a"], "n:= takes JSON, and 'a' is not"),
        (["a=1", "a=2"], "a is given twice"),
        (["a=1", "b"], "'b' is not KEY=VALUE"),
        (['{"a": 1}', "b=2"], "is not KEY=VALUE: give one JSON object or array, or KEY=VALUE for each argument"),
        (["text"], "the arguments are not JSON"),
        (["text"], "write path=a.png, or quote JSON"),
        (["7"], "must be a JSON object or array, not int"),
    ]
    for given, text in cases:
        with case(given, text), pytest.raises(click.UsageError, match=text.replace("[", r"\[")):
            parse_arguments(given)
