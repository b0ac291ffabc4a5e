"""Tables of trivial cases, in one test each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def in_rows(names: str | Sequence[str], table: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, but one case: the rows share their fixtures, and a failure names its row."""
    columns = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    rows = [dict(zip(columns, (row,) if len(columns) == 1 else row, strict=True)) for row in table]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**fixtures: Any) -> None:
                for row in rows:
                    with case(row):
                        await test(**fixtures, **row)

        else:

            @functools.wraps(test)
            def run(**fixtures: Any) -> None:
                for row in rows:
                    with case(row):
                        test(**fixtures, **row)

        signature = inspect.signature(test)
        of_fixtures = [each for name, each in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=of_fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def case(*row: object) -> Iterator[None]:
    """A failure inside names the row."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"for {', '.join(repr(each)[:200] for each in row)}")
        raise
