"""Loads the Pool for `MODULE:POOL` from the command line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...schemas.errors.base import GanglineError

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
    own = users_frames(error)
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


_OURS: Final = str(Path(__file__).parents[2]) + os.sep
_STANDARD: Final = sysconfig.get_path("stdlib")


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the traceback from the user's first one on, without ours. Empty: there is none of the user's."""
    found: list[traceback.FrameSummary] = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename
        if path.startswith((_OURS, "<frozen")):
            continue
        library = not Path(path).is_absolute() or path.startswith(_STANDARD) or "site-packages" in path
        if found or not library:
            found.append(frame)
    return found


def users_traceback(error: BaseException) -> str:
    """What the user's code raised while it was imported or started, as Python would print it; empty: nothing."""
    cause = error.__cause__ if isinstance(error, PoolNotFound) else error
    if cause is None or (
        cause is error and isinstance(cause, click.ClickException | GanglineError | KeyboardInterrupt)
    ):
        return ""
    frames = users_frames(cause)
    if not frames and not (cause is not error and isinstance(cause, SyntaxError)):
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*lines, *traceback.format_exception_only(cause)]).rstrip()


def _attribute_complaint(module_name: str, attribute: str, found: object) -> str:
    from ...worker.pool.pool import Pool

    inside = getattr(found, "__dict__", {})
    pools = sorted(name for name, value in inside.items() if isinstance(value, Pool))
    hint = f"; it has {', '.join(f'{module_name}:{name}' for name in pools)}" if pools else "; it has no Pool at all"
    return f"{module_name} has no {attribute!r}{hint}"
