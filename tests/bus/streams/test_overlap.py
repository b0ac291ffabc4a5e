"""The stream of tasks of an earlier version has the subjects of schedules, too."""

from __future__ import annotations

import pytest

from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import InvalidSettings
from gangline.schemas.names import Names

pytestmark = pytest.mark.server


async def test_a_stream_of_tasks_that_has_schedules_is_refused_with_what_to_do(connect_to, secured):
    bus, names = await connect_to(secured("").url), Names()
    earlier = {"name": names.tasks_stream, "subjects": [names.tasks, names.schedules], "retention": "workqueue"}
    await bus.api.call(f"STREAM.CREATE.{names.tasks_stream}", earlier, what="make")
    with pytest.raises(InvalidSettings, match="Upgrade the streams"):
        await TaskStreams(bus, names, TaskStorage()).tasks()
