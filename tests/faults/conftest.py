"""The scenarios of `bench.faults` as tests run them: with forked processes, on the session's nats-server."""

from __future__ import annotations

import pytest

from bench.faults.trial import Trial

from ..processes import ForkServer


@pytest.fixture
def trial(forks: ForkServer, nats_url: str) -> Trial:
    return Trial(launch=forks.start, url=nats_url)
