"""The scenarios of `bench.faults` as tests run them: with forked processes, on the session's nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from bench.faults.trial import Trial

from ..processes import ForkedProcess, ForkServer
from ..processes.fork_server import PATIENT


@pytest.fixture
def trial(forks: ForkServer, nats_url: str) -> Trial:
    return Trial(launch=forks.start, url=nats_url)


@pytest.fixture
def patient_trial(forks: ForkServer, nats_url: str) -> Trial:
    """For scenarios in which no process is frozen and no leader dies: none counts as frozen for want of CPU."""

    def launch(what: Any, *, environment: dict[str, str], **streams: Any) -> ForkedProcess:
        return forks.start(what, environment={**environment, PATIENT: "1"}, **streams)

    return Trial(launch=launch, url=nats_url)
