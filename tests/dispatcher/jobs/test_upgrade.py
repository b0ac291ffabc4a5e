"""docs/how-to/run-in-production.md, "Upgrade the streams", on a real server: nothing that was scheduled is lost."""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus, connect
from gangline.bus.port.bus import Storage
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.names import Names

from ...waiting import until

pytestmark = pytest.mark.server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "run-in-production.md"
STORAGE = TaskStorage(storage=Storage.MEMORY)
DUE = "2099-01-01T00:00:00.5Z"
SCHEDULED: dict[str, dict[str, str]] = {  # by job: headers as earlier clients wrote them
    "jlater": {"Nats-Schedule": f"@at {DUE}", "Gangline-Job": "jlater", "Gangline-Key": "k: v"},
    "ishort": {"Nats-Schedule": f"@at {DUE}", "Gangline-Job": "ishort", "Gangline-Deadline": "90"},
    "iuntil": {"Nats-Schedule": f"@at {DUE}", "Gangline-Deadline": "2099-01-01T00:00:30Z"},
    "inightly": {"Nats-Schedule": "0 0 3 * * *", "Gangline-Deadline": "5m"},
}
BODY = '{"text": "{{Count}} ümlaut"}'.encode()

Submission = Callable[[Mapping[str, Any]], tuple[str, dict[str, str], bytes]]


def submission() -> Submission:
    """The function of the page's program."""
    found = re.search(r"^ +```python\n(.*?)^ +```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    program: dict[str, Any] = {"__name__": "again"}
    exec(compile(textwrap.dedent(found[1]), str(PAGE), "exec"), program)
    made: Submission = program["submission"]
    return made


async def earlier_stream(bus: NatsBus, names: Names) -> None:
    """As the version before the stream of schedules made it."""
    switches = ("allow_msg_ttl", "allow_atomic", "allow_msg_schedules", "allow_rollup_hdrs")
    config = dict.fromkeys(switches, True) | {
        "name": names.tasks_stream,
        "subjects": [names.tasks, names.schedules],
        "retention": "workqueue",
        "storage": "memory",
    }
    await bus.api.call(f"STREAM.CREATE.{names.tasks_stream}", config, what="make the stream")
    for job, given in SCHEDULED.items():
        target = {"Nats-Schedule-Target": names.task("words", "count")}
        headers = {"Nats-Msg-Id": job, "Nats-Rollup": "sub", **target, **given}
        answer = await bus.request(names.schedule(job), BODY, headers=headers, timeout_s=30.0)
        assert b"error" not in answer.data


async def test_what_an_earlier_version_scheduled_is_scheduled_again_with_its_id_time_and_deadline(
    nats_url: str, namespace: str
) -> None:
    names, again = Names(namespace), submission()
    bus = await connect(ConnectionSettings.from_url(nats_url), name="upgrade")
    try:
        await earlier_stream(bus, names)
        noted = []
        for job in SCHEDULED:  # as `nats stream get --last-for` does
            query = {"last_by_subj": names.schedule(job)}
            answer = await bus.api.call(f"STREAM.MSG.GET.{names.tasks_stream}", query, what="read")
            noted.append(answer["message"])
        await bus.api.call(f"STREAM.PURGE.{names.tasks_stream}", {"filter": names.schedules}, what="purge")
        info = await bus.api.call(f"STREAM.INFO.{names.tasks_stream}", what="look")
        assert info["state"]["messages"] == 0
        await bus.api.call(f"STREAM.DELETE.{names.tasks_stream}", what="remove")

        streams = TaskStreams(bus, names, STORAGE)
        async with Dispatcher(bus, names=names, tasks=STORAGE):
            tasks, schedules = await streams.tasks(), await streams.schedules()
            for message in noted:
                subject, headers, body = again(message)
                await tasks.publish(subject, body, headers=headers)

            async def moved() -> bool:
                return (await tasks.state()).messages == 0

            await until(moved)
            found = {job: await schedules.last(names.schedule(job)) for job in SCHEDULED}
    finally:
        await bus.close()
    kept: dict[str, Mapping[str, str]] = {}
    for job, message in found.items():
        assert message is not None and message.data == BODY
        kept[job] = message.headers or {}
        assert kept[job]["Nats-Schedule-Target"] == names.due_of(names.task("words", "count"))
    assert {job: given["Nats-Schedule"] for job, given in kept.items()} == dict.fromkeys(
        ["jlater", "ishort", "iuntil"], "@at 2099-01-01T00:00:00.500Z"
    ) | {"inightly": "0 0 3 * * *"}
    assert kept["jlater"]["Gangline-Key"] == "k: v"
    assert {job: given.get("Gangline-Deadline") for job, given in kept.items()} == {
        "jlater": None,
        "ishort": "2099-01-01T00:01:30.500Z",
        "iuntil": "2099-01-01T00:00:30.000Z",
        "inightly": "5m",
    }


def test_a_body_that_is_empty_stays_so() -> None:
    block = b"NATS/1.0\r\nNats-Schedule: @hourly\r\nNats-Schedule-Target: gangline.task.a.b\r\n\r\n"
    stored = {"subject": "gangline.sched.j1", "hdrs": base64.b64encode(block).decode()}
    subject, headers, body = submission()(stored)
    assert (subject, headers, body) == ("gangline.task.a.b", {"Gangline-Job": "j1", "Gangline-Cron": "@hourly"}, b"")
