"""`--journal FILE`: whole lines, appended."""

from __future__ import annotations

import json

import pytest

from gangline.cli.serving.journal import journal_file
from gangline.schemas.errors.base import InvalidSettings


def test_each_record_is_a_whole_line_at_once_and_a_second_start_appends(tmp_path):
    path = tmp_path / "j.jsonl"
    with journal_file(path) as sink:
        assert sink is not None
        sink({"event": "start", "odd": {1, 2}})
        assert json.loads(path.read_text()) == {"event": "start", "odd": "{1, 2}"}
    with journal_file(path) as sink:
        assert sink is not None
        sink({"event": "end"})
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["start", "end"]


def test_no_file_is_no_sink():
    with journal_file(None) as sink:
        assert sink is None


def test_a_folder_that_is_not_there_is_an_invalid_setting(tmp_path):
    with (
        pytest.raises(InvalidSettings, match=r"nowhere.* cannot be written: No such file"),
        journal_file(tmp_path / "nowhere" / "j"),
    ):
        pass
