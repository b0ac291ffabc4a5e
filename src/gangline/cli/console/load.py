"""Loads the Pool for `MODULE:POOL` from the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...worker.pool.pool import Pool


class PoolNotFound(click.ClickException):
    """MODULE:POOL does not name a pool."""

    exit_code = 2


def split(target: str) -> tuple[str, str]:
    """`"images:pool"` -> `("images", "pool")`. The path of a file stands for its module.

    Raises:
        PoolNotFound: it does not have that form.
    """
    module, colon, attribute = target.rpartition(":")
    if not colon or not module or not attribute:
        raise PoolNotFound(f"{target!r} is not MODULE:POOL; for `pool = Pool(...)` in images.py it is images:pool")
    if module.endswith(".py"):
        module = ".".join(Path(module).with_suffix("").parts)
    return module, attribute


def check_module(target: str) -> None:
    """Check that the module exists, without running its code.

    Raises:
        PoolNotFound: there is no such module.
    """
    module_name, _ = split(target)
    here = _look_here()
    first = module_name.partition(".")[0]
    if first not in sys.modules and importlib.util.find_spec(first) is None:
        raise PoolNotFound(_no_module(module_name, here))


def _look_here() -> str:
    """Put the current folder first on the module search path."""
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    return here


def load_pool(target: str) -> Pool:
    """Import the module, with the current folder first on the path, and return the pool.

    Raises:
        PoolNotFound: says which part is wrong: no such module, an error inside it, no such attribute, not a Pool.
    """
    from ...worker.pool.pool import Pool

    module_name, attribute = split(target)
    here = _look_here()
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        raise PoolNotFound(_import_complaint(module_name, here, error)) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise PoolNotFound(_attribute_complaint(module_name, attribute, found)) from None
    if not isinstance(found, Pool):
        raise PoolNotFound(f"{target} is of type {type(found).__name__}, not a gangline.Pool")
    return found


def _import_complaint(module_name: str, here: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if module_name == error.name or module_name.startswith(f"{error.name}."):
            return _no_module(module_name, here)
        return f"{module_name} imports {error.name!r}, which is not installed here"
    return f"{module_name} cannot be imported: {type(error).__name__}: {error}{_place(error)}"


def _no_module(module_name: str, here: str) -> str:
    return f"there is no module {module_name!r} in {here} or among the installed packages"


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text names the file and line
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _attribute_complaint(module_name: str, attribute: str, found: object) -> str:
    from ...worker.pool.pool import Pool

    inside = getattr(found, "__dict__", {})
    pools = sorted(name for name, value in inside.items() if isinstance(value, Pool))
    hint = f"; it has {', '.join(f'{module_name}:{name}' for name in pools)}" if pools else "; it has no Pool at all"
    return f"{module_name} has no {attribute!r}{hint}"
