"""The simulator runs unobserved here, whatever other tests have set up in this process."""

from __future__ import annotations

import pytest

from gangline.telemetry.tracing import ProviderProbe


@pytest.fixture(autouse=True)
def unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter provider, which a process cannot lose again, makes the worker take another way: seeds would be others."""
    for name in ("__call__", "real"):
        monkeypatch.setattr(ProviderProbe, name, lambda _: False)
