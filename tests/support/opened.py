"""Closes what a test has opened inside the test: what it leaves behind is then the test's fault."""

from __future__ import annotations

import functools
import inspect
from contextlib import AsyncExitStack
from typing import Any

import pytest

_OPENED = pytest.StashKey[AsyncExitStack]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Close a test's connections inside the test: what they leave behind is then the test's fault."""
    test = pyfuncitem.obj
    if _OPENED not in pyfuncitem.stash or not inspect.iscoroutinefunction(test):
        return
    stack = pyfuncitem.stash[_OPENED]

    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> None:
        async with stack:
            await test(*args, **kwargs)

    pyfuncitem.obj = closing


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> AsyncExitStack:
    """What is pushed here is closed when the test's body ends."""
    return request.node.stash.setdefault(_OPENED, AsyncExitStack())
