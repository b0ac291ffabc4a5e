"""Tables of examples that need no case each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def over(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, but all rows are one case: it ends at the first that fails, and names that row.

    Fixtures are made once for all rows.
    """
    keys = [name.strip() for name in names.split(",")]
    table = [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in rows]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            async def run(**fixtures: Any) -> None:
                for row in table:
                    try:
                        await test(**row, **fixtures)
                    except BaseException as error:
                        error.add_note(f"with {row}")
                        raise
        else:

            def run(**fixtures: Any) -> None:  # type: ignore[misc]
                for row in table:
                    try:
                        test(**row, **fixtures)
                    except BaseException as error:
                        error.add_note(f"with {row}")
                        raise

        fixtures = [each for each in inspect.signature(test).parameters.values() if each.name not in keys]
        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take the names for fixtures
        run.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return run

    return decorate
