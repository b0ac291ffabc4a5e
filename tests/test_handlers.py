"""The tables by which cores and executors find what to do: one entry for each event or effect, and none besides."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from gangline.coordinator.core import gang_core
from gangline.coordinator.model import effects as gang_effects
from gangline.coordinator.model import events as gang_events
from gangline.coordinator.server import effect_executor as gang_executor
from gangline.dispatcher.durable.core import effects as queue_effects
from gangline.dispatcher.durable.core import events as queue_events
from gangline.dispatcher.durable.core import queue_core
from gangline.dispatcher.durable.queue import effect_executor as queue_executor


@pytest.mark.parametrize(
    ("handlers", "union"),
    [
        pytest.param(gang_core.HANDLERS, gang_events.AnyEvent, id="gang core"),
        pytest.param(gang_executor.HANDLERS, gang_effects.Effect, id="gang effects"),
        pytest.param(queue_core.HANDLERS, queue_events.AnyEvent, id="queue core"),
        pytest.param(queue_executor.HANDLERS, queue_effects.Effect, id="queue effects"),
    ],
)
def test_each_event_and_each_effect_has_a_handler(handlers: Mapping[type, Any], union: Any) -> None:
    assert set(handlers) == set(get_args(union))
