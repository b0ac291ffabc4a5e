"""MODULE:POOL is found in the current folder, and what is wrong with it is said exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gangline.cli.console.load import PoolNotFound, load_pool, split, users_traceback
from gangline.schemas.errors.base import InvalidSettings

from ..support.rows import case


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


GOOD = """
from gangline.worker.pool.pool import Pool
images = Pool('images')
class box:
    inner = Pool('inner')
number = 3
"""


def test_a_pool_of_the_current_folder_is_found(folder):
    (folder / "mypools_a.py").write_text(GOOD)
    assert load_pool("mypools_a:images").name == "images"
    assert load_pool("mypools_a:box.inner").name == "inner"
    assert load_pool("mypools_a.py:images").name == "images"


def test_the_current_folder_goes_before_installed_modules_of_that_name(folder):
    (folder / "this.py").write_text(GOOD)
    assert load_pool("this:images").name == "images"


def test_a_package_is_found_by_its_dotted_name_or_its_path(folder):
    (folder / "app").mkdir()
    (folder / "app" / "__init__.py").write_text("")
    (folder / "app" / "pools.py").write_text(GOOD)
    assert load_pool("app.pools:images").name == "images"
    assert split("app/pools.py:images") == ("app.pools", "images")


def test_what_is_not_module_colon_pool_is_refused():
    for target in ["", "mod", "mod:", ":pool", ":"]:
        with case(target), pytest.raises(PoolNotFound, match="is not MODULE:POOL"):
            split(target)


@pytest.mark.parametrize(
    ("code", "attribute", "complaint"),
    [
        (None, "pool", r"there is no module 'mypools_b' in .+ or among the installed packages"),
        ("import not_there_at_all", "pool", "mypools_b imports 'not_there_at_all', which is not installed here"),
        (
            "x = 1\ny = x / 0",
            "pool",
            r"cannot be imported: ZeroDivisionError: division by zero \(.+mypools_b.py, line 2\)",
        ),
        ("def f(:", "pool", r"mypools_b cannot be imported: SyntaxError: .+line 1"),
        (GOOD, "pool", "mypools_b has no 'pool'; it has mypools_b:images"),
        ("x = 1", "pool", "mypools_b has no 'pool'; it has no Pool at all"),
        (GOOD, "number.images", "mypools_b has no 'number.images'"),
        (GOOD, "number", "mypools_b:number is of type int, not a gangline.Pool"),
        (GOOD + "images.task(lambda self: 1)", "images", "cannot be imported: Invalid"),
    ],
)
def test_each_way_to_be_wrong_has_its_own_text(folder, code, attribute, complaint):
    if code is not None:
        (folder / "mypools_b.py").write_text(code)
    with pytest.raises(PoolNotFound, match=complaint):
        load_pool(f"mypools_b:{attribute}")


def failure_of(target: str) -> PoolNotFound:
    with pytest.raises(PoolNotFound) as caught:
        load_pool(target)
    return caught.value


def test_what_a_module_raises_is_shown_with_the_users_part_of_its_traceback(folder):
    (folder / "mypools_c.py").write_text("def helper():\n    return 1 / 0\n\n\nx = helper()\n")
    told = users_traceback(failure_of("mypools_c:pool")).splitlines()
    assert told[0] == "Traceback (most recent call last):" and told[-1] == "ZeroDivisionError: division by zero"
    files = [line for line in told if line.startswith("  File")]
    assert len(files) == 2 and all("mypools_c.py" in line for line in files)


def test_what_gangline_refuses_is_shown_where_the_user_wrote_it(folder):
    (folder / "mypools_d.py").write_text(GOOD + "@images.task(slots=0)\ndef bad(): ...\n")
    error = failure_of("mypools_d:images")
    told = users_traceback(error)
    assert "@images.task(slots=0)" in told and "pool.py" not in told
    assert "mypools_d.py, line 7" in str(error)


def test_what_python_cannot_read_is_shown_with_its_place(folder):
    (folder / "mypools_e.py").write_text("def f(:\n")
    told = users_traceback(failure_of("mypools_e:pool"))
    assert "mypools_e.py" in told and "SyntaxError" in told and "^" in told


def test_there_is_no_traceback_where_no_code_of_the_user_ran(folder):
    assert users_traceback(failure_of("no_such_module_at_all:pool")) == ""
    assert users_traceback(InvalidSettings("x")) == users_traceback(RuntimeError("raised nowhere")) == ""
