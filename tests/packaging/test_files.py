"""What is in the wheel and in the source distribution, compared with git."""

from __future__ import annotations

import configparser
import email
import itertools
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .conftest import ROOT, Built

FOLDERS = ("bus", "dispatcher", "schemas", "telemetry", "worker", "coordinator", "runtime")
OWN = ("src/gangline/board/", "src/gangline/cli/", "src/gangline/console/", "src/gangline/testing/")


def in_git() -> set[str]:
    """Files that are, or are about to be, under version control. Links are files to git: they are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file() and not (ROOT / name).is_symlink()}


def shipped() -> dict[str, str]:
    """Path in the wheel -> path in git, of all that must be shipped."""
    files = in_git()
    top = {name for name in files if name.startswith("src/gangline/") and name.count("/") == 2}
    own = {name for name in files if name.startswith(OWN)}
    folders = {name for name in files if name.split("/")[0] in FOLDERS and "/" in name}
    bench = {name.replace("bench/wire/", "gangline/bench/"): name for name in files if name.startswith("bench/wire/")}
    return bench | {
        name.removeprefix("src/") if name.startswith("src/") else f"gangline/{name}": name
        for name in top | own | folders
    }


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def dist_info(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [item for item in archive.namelist() if item.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.long
def test_the_wheel_has_each_file_of_git_once_to_the_byte_and_nothing_else(built: Built):
    expected = {name: (ROOT / path).read_bytes() for name, path in shipped().items()}
    assert len(expected) > 30 and expected["gangline/py.typed"] == b""
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    found = contents(built.wheel)
    assert set(found) == set(expected)
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.mark.long
def test_a_wheel_made_of_the_source_distribution_is_the_same_wheel(built: Built):
    assert contents(built.wheel_of_sdist) == contents(built.wheel)


@pytest.mark.long
def test_the_source_distribution_has_the_sources_the_tests_and_the_documentation(built: Built):
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(shipped().values()) <= names
    wanted = {name for name in in_git() if name.startswith(("tests/", "docs/", "examples/"))}
    assert wanted
    assert wanted - names == {name for name in wanted if name.endswith(".key")}, "private keys stay out"
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "compose.yaml"} <= names
    assert {"Makefile", "requirements-dev.txt"} <= names, "the Makefile installs from it"


def test_the_image_is_built_from_all_folders_of_the_wheel():
    copied = re.findall(r"^COPY (\S+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(FOLDERS) | {"src", "bench/wire"} == set(copied)
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert {name.partition("/")[0] for name in copied} <= sent


def test_each_dependency_is_locked_to_a_version_that_is_allowed_with_hashes():
    lock = (ROOT / "requirements-dev.txt").read_text()
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)(.*(?:\n +--hash=.*)+)", lock, re.MULTILINE)
    locked = {name: version for name, version, _ in entries}
    declared = project()
    for line in [*declared["dependencies"], *itertools.chain(*declared["optional-dependencies"].values())]:
        requirement = Requirement(line)
        if requirement.name != "gangline":
            assert locked[canonicalize_name(requirement.name)] in requirement.specifier, line
    assert len(entries) == len(re.findall(r"^\S+==", lock, re.MULTILINE)), "one without a hash"


@pytest.mark.long
def test_the_wheel_declares_what_the_project_declares(built: Built):
    declared = project()
    metadata = email.message_from_string(dist_info(built.wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("gangline", declared["version"])
    assert metadata["Requires-Python"] == declared["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == {"console", "dev", "server", "top"}
    plain = [item for item in metadata.get_all("Requires-Dist", []) if "extra ==" not in item]
    assert len(plain) == len(declared["dependencies"])
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()


@pytest.mark.long
def test_the_wheel_has_the_console_script(built: Built):
    entries = configparser.ConfigParser()
    entries.read_string(dist_info(built.wheel, "entry_points.txt"))
    assert dict(entries["console_scripts"]) == {"gangline": "gangline.cli:main"}


@pytest.mark.long
def test_the_wheel_brings_its_licence(built: Built):
    with zipfile.ZipFile(built.wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert archive.read(path) == (ROOT / "LICENSE").read_bytes()
