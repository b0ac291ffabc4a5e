"""One test for a whole table, where its rows cost little and share nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]


def each_row(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test with each row of a table, as one case. A failure names the row.

    Args:
        names: parameters of the test, such as "value, text".
        rows: a value for each of them; a bare value if there is one.
    """
    parameters = [name.strip() for name in names.split(",")]

    def table() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, row in enumerate(rows):
            yield number, dict(zip(parameters, row if len(parameters) > 1 else (row,), strict=True))

    @contextmanager
    def named(number: int, row: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            error.add_note(f"row {number}: {str(row)[:1000]}")
            raise

    def wrap(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def with_rows(**rest: Any) -> None:
                for number, row in table():
                    with named(number, row):
                        await test(**row, **rest)

        else:

            @functools.wraps(test)
            def with_rows(**rest: Any) -> None:
                for number, row in table():
                    with named(number, row):
                        test(**row, **rest)

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        with_rows.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return with_rows

    return wrap
