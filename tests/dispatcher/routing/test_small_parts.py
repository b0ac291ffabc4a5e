"""Settings, lines, backoff, fates and hashing, each alone."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.gateway.gateway import GatewaySettings
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import InvalidSettings
from gangline.schemas.wire.frames import Reason

from ...support.rows import in_rows

# -- settings -----------------------------------------------------------------------------------------------------


@in_rows(
    "kind, name, bad",
    [
        (RouterSettings, "max_queued", -1),
        (RouterSettings, "max_queued", 1.5),
        (RouterSettings, "max_attempts", 0),
        (RouterSettings, "max_attempts", True),
        (RouterSettings, "backoff_first_s", 0),
        (RouterSettings, "lost_after_s", 0.5),
        (RouterSettings, "default_timeout_s", 0),
        (RouterSettings, "stream_window", 0),
        (RouterSettings, "claim_s", "2"),
        (RouterSettings, "probe_first_s", None),
        (GatewaySettings, "default_timeout_s", 0),
        (GatewaySettings, "max_pending", 0),
        (GatewaySettings, "max_pending", True),
        (GatewaySettings, "drain_grace_s", -1),
        (CallOptions, "timeout_s", -1),
        (CallOptions, "timeout_s", 1e12),
        (CallOptions, "max_attempts", 0),
    ],
)
def test_a_setting_out_of_bounds_is_named_with_its_bounds(kind: Any, name: str, bad: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        kind(**{name: bad})


def test_large_bounds_are_written_in_full() -> None:
    with pytest.raises(InvalidSettings, match="max_pending is 0, it must be between 1 and 10000000$"):
        GatewaySettings(max_pending=0)
    with pytest.raises(InvalidSettings, match="default_timeout_s is 0, it must be between 0.001 and 2592000$"):
        RouterSettings(default_timeout_s=0)
    with pytest.raises(InvalidSettings, match="timeout_s is -3.0, it must be a number above 0 and at most 2592000$"):
        CallOptions(timeout_s=-3.0)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="backoff_max_s"):
        RouterSettings(backoff_first_s=1.0, backoff_max_s=0.5)
    with pytest.raises(InvalidSettings, match="probe_max_s"):
        RouterSettings(probe_first_s=1.0, probe_max_s=0.5)


# -- lines --------------------------------------------------------------------------------------------------------


# -- retry --------------------------------------------------------------------------------------------------------


def test_only_what_may_have_started_is_kept_from_another_try() -> None:
    uncertain = {fate for fate in TryOutcome if fate.may_have_started}
    assert uncertain == {TryOutcome.LOST, TryOutcome.TIMED_OUT, TryOutcome.FORGOTTEN}
    for fate in TryOutcome:
        assert fate.allows_retry(idempotent=True)
        assert fate.allows_retry(idempotent=False) == (fate not in uncertain)


def test_each_reason_on_the_wire_has_a_fate() -> None:
    assert [TryOutcome.of_reason(reason) for reason in Reason] == [
        TryOutcome.FULL,
        TryOutcome.DRAINING,
        TryOutcome.STALE,
        TryOutcome.LATE,
        TryOutcome.LIMITED,
        TryOutcome.NOT_HERE,
    ]
    assert TryOutcome.of_reason("something newer") is TryOutcome.FULL


# -- hashing ------------------------------------------------------------------------------------------------------
