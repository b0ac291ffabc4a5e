"""Shared by the tests of the dispatcher."""

import pytest

from ..otel import read as read
from ..otel import spans as spans
from ..support.dispatcher.fakes import known as known
from ..support.dispatcher.fakes import rig as rig
from ..support.dispatcher.server_rig import server as server
from ..support.opened import opened as opened
from ..support.opened import pytest_pyfunc_call as pytest_pyfunc_call


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "router(**settings): settings of the router of the fixture `rig`")
