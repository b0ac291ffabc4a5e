"""`import gangline` is quick, and every name that it promises is there."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import gangline


def test_every_public_name_is_there():
    assert [name for name in gangline.__all__ if getattr(gangline, name) is None] == []


def test_the_list_of_public_names_is_the_table_that_they_are_loaded_by():
    assert sorted(gangline.__all__) == sorted([*gangline._PUBLIC, "errors"])
    assert set(gangline.__all__) <= set(dir(gangline))


def test_a_name_that_is_not_there_is_an_attribute_error_as_in_any_module():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = gangline.Nothing


@pytest.mark.parametrize("old", sorted(gangline._RENAMED))
def test_an_old_name_works_for_one_more_release_and_warns(old: str):
    with pytest.warns(DeprecationWarning, match=f"gangline.{old} is now {gangline._RENAMED[old]}"):
        old_name = getattr(gangline, old)
    assert old_name is getattr(gangline, gangline._RENAMED[old])


def test_an_error_of_an_old_name_is_the_one_of_the_new_name():
    with pytest.warns(DeprecationWarning, match="PublishRefused"):
        assert gangline.errors.Refused is gangline.errors.PublishRefused


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, gangline; print([n for n in ('pydantic', 'nats', 'msgpack', 'asyncio') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_can_be_imported_from_one_place():
    code = "from gangline.errors import *; import gangline; print(TaskFailed is gangline.errors.TaskFailed)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    public = ("schemas.errors.base", "bus.port.bus")
    modules = [importlib.import_module(f"gangline.{name}") for name in public]
    defined = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gangline.GanglineError)
    }
    assert set(gangline.errors.__all__) == defined


def test_the_version_is_that_of_the_distribution():
    assert gangline.__version__ == importlib.metadata.version("gangline")
    assert "__version__" in dir(gangline)


def test_the_package_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "gangline", "--version"], capture_output=True, text=True, check=True)
    assert gangline.__version__ in done.stdout
