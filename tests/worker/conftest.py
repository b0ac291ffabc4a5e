"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .rig import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A started worker of two slots on an in-memory server, and a hand to talk to it."""
    async with Rig() as made:
        yield made
