"""Temporary folders: gone with their process, swept when it was killed, and never taken from a living one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.bus.embedded.temporary_folder import TemporaryFolder, sweep

from ...processes import ForkServer

pytestmark = pytest.mark.processes

PREFIX = "gangline-test-"

HOLDER = """
import signal
from gangline.bus.embedded.temporary_folder import TemporaryFolder
folder = TemporaryFolder("gangline-test-")
(folder.path / "data").mkdir()
(folder.path / "data" / "block").write_text("x")
print(folder.path, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, here and in children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


class Other:
    """Another process with a folder."""

    def __init__(self, forks: ForkServer, program: str) -> None:
        self.process = forks.start(["-c", program], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        with self.process.stdout:
            self.folder = Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other(forks: ForkServer) -> Iterator[Other]:
    other = Other(forks, HOLDER)
    yield other
    other.kill()


def test_a_folder_is_removed_with_all_that_is_in_it(place: Path) -> None:
    with TemporaryFolder(PREFIX) as folder:
        (folder.path / "a").mkdir()
        (folder.path / "a" / "b").write_text("x")
        assert (folder.path / "owner.pid").read_text() == f"{os.getpid()}\n"
    folder.remove()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_folder(place: Path, other: Other) -> None:
    other.kill()
    assert (other.folder / "data" / "block").exists()
    with TemporaryFolder(PREFIX) as folder:
        assert list(place.iterdir()) == [folder.path]


def test_a_living_process_keeps_its_folder_also_when_it_stands_still(place: Path, other: Other) -> None:
    mine = TemporaryFolder(PREFIX)
    other.process.send_signal(signal.SIGSTOP)
    assert sweep(PREFIX) == []
    assert (other.folder / "data" / "block").exists() and mine.path.exists()
    mine.remove()


def test_the_number_alone_says_nothing(place: Path, other: Other) -> None:
    """A number may have been given again, or be of another container."""
    (other.folder / "owner.pid").write_text("999999999\n")
    assert sweep(PREFIX) == []
    other.kill()
    (other.folder / "owner.pid").write_text(f"{os.getpid()}\n")
    assert sweep(PREFIX) == [other.folder]


def test_what_is_not_ours_to_judge_stays(place: Path, other: Other) -> None:
    """Folders without a mark, of other names, links, files, and one that is just being made."""
    other.kill()
    left = other.folder.rename(place / "elsewhere")
    (place / f"{PREFIX}link").symlink_to(left)
    (place / f"{PREFIX}file").write_text("x")
    (place / f"{PREFIX}unmarked").mkdir()
    making = place / f"{PREFIX}making"
    making.mkdir()
    (making / "owner.pid.new").write_text("")
    linked = place / f"{PREFIX}linked-mark"
    linked.mkdir()
    (linked / "owner.pid").symlink_to(left / "owner.pid")
    before = sorted(place.rglob("*"))
    assert sweep(PREFIX) == []
    assert sorted(place.rglob("*")) == before


def test_links_inside_are_not_followed(place: Path, other: Other) -> None:
    kept = place / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (other.folder / "link").symlink_to(kept)
    other.kill()
    assert sweep(PREFIX) == [other.folder]
    assert (kept / "file").read_text() == "x"
