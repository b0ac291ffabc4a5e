"""Everything that a submitted task can wait for, on a real server with the processes that users start: what
`gangline why` prints of it, and what `gangline when` says of its start."""

from __future__ import annotations

import json
import re

import pytest

from gangline.schemas.names import Names, WorkerId

from ..support.rows import case
from .conftest import request, until

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long]

POOLS = """
import asyncio
import gangline

busy, leased, ranks = (gangline.Pool(name, slots=2) for name in ("busy", "leased", "ranks"))
large, left, small = gangline.Pool("large", slots=9), gangline.Pool("left"), gangline.Pool("small", slots=2)


async def hold() -> None:
    await asyncio.sleep(1000)


for pool in (busy, leased, ranks, large, left):
    pool.task(hold)
large.task(name="few", max_running=1)(hold)
large.task(name="slow", rate_per_s=0.01)(hold)
small.task(name="whole", slots=2)(hold)


@large.task(idempotent=True)
async def fail() -> None:
    raise ValueError("no ink")
"""
ROUTES = {
    "keyed": ("--per-key", "1"),
    "most": ("--max-running", "1"),
    "limited": ("--limit", "large=1"),
    "rated": ("--rate", "1/h"),
    "paused": ("--pause",),
}
"""Endpoints whose tasks run in the pool `large`."""
RUNNING = (
    "busy.hold",
    "busy.hold",
    "large.few",
    "large.hold --key k --ordered",
    "keyed.hold --key k",
    "most.hold",
    "limited.hold",
)
NO_SLOT = "No lease in pool '{}' has 1 slot free for it: "
BUSY = NO_SLOT + "its workers are busy with other work"
OF_LEASE = "lease ID (etl), if it is not renewed, until TIME"
OF_FEW = "large.few declares that at most 1 may run at once"
NO_LATER, ABOUT, NOT_BEFORE = (
    "no later than TIME from now",
    "about TIME from now (estimated)",
    "not before TIME from now",
)
FOR_SLOTS = "not before about TIME from now: queue keyed, queue large"
"""Others wait for the same slots, too."""

OBSTACLES = [
    ("leased.hold", (BUSY.format("leased"), f"2 slots of leased.w1: {OF_LEASE}"), NO_LATER),
    (
        "ranks.hold",
        (
            BUSY.format("ranks"),
            f"1 slot of ranks.w1: {OF_LEASE}",
            "1 slot of ranks.w1: kept for gang ID, which waits for more",
        ),
        "not before about TIME from now: gang ID waits for the same slots",
    ),
    (
        "busy.hold",
        (NO_SLOT.format("busy") + "2 tasks of this queue run there (busy.ID, busy.ID), until TIME",),
        NO_LATER,
    ),
    (
        "leased.hodl",
        (
            "No worker of pool 'leased' has a task 'hodl' (did you mean 'hold'?): it becomes a dead letter at its turn",
            "1 in line for pool 'leased' goes before it (leased.ID)",
            BUSY.format("leased"),
        ),
        "unknown: No worker of pool 'leased' has a task 'hodl'",
    ),
    (
        "larg.hold",
        (
            "Pool 'larg' does not exist (did you mean 'large'?): "
            "it waits for a worker before it becomes a dead letter, until TIME",
        ),
        "unknown: Pool 'larg' does not exist",
    ),
    ("left.hold", ("Pool 'left' has no worker",), "unknown: Pool 'left' has no worker"),
    (
        "small.whole",
        ("It takes 2 slots, and no worker of pool 'small' has more than 1, until TIME",),
        "unknown: It takes 2 slots",
    ),
    ("large.few", (f"{OF_FEW} (large.ID)", f"{OF_FEW}, over all workers and with calls: of 1 unit, w1 has 1"), ABOUT),
    ("large.slow", ("large.slow declares that at most 36 may start per hour, until TIME",), NOT_BEFORE),
    (
        "large.hold --key k --ordered",
        ("Tasks of key 'k' run in order, and an older one has not ended (large.ID)",),
        ABOUT,
    ),
    (
        "keyed.hold --key k",
        ("At most 1 of key 'k' run at once (keyed.ID)",),
        "not before about TIME from now: queue large may go first",
    ),
    ("most.hold", ("At most 1 of the endpoint's tasks run at once (most.ID)",), FOR_SLOTS),
    ("limited.hold", ("At most 1 of them run in pool 'large'",), FOR_SLOTS),
    ("rated.hold", ("At most 1 of the endpoint's tasks may start per hour, until TIME",), NOT_BEFORE),
    (
        "paused.hold",
        ("The route says that the queue is paused",),
        "unknown: The route says that the queue is paused",
    ),
    ("large.hold --delay 1h", ("its time has not come, until TIME",), NOT_BEFORE),
    (
        "large.fail --max-attempts 2 --backoff 300s",
        ("Attempt 1 failed (task_failed: large.fail raised ValueError: no ink); it waits for the next, until TIME",),
        NOT_BEFORE,
    ),
]
"""What is submitted, what it waits for, and how the answer to when it starts begins."""


@pytest.fixture
async def system(commands, nats_url, namespace):
    """Pools with holders of their slots."""
    (commands.folder / "pools.py").write_text(POOLS)
    commands.start("coordinator").await_output(r"coordinator\.leads")
    commands.started("dispatcher")
    for pool in ("left", "busy", "leased", "ranks", "large"):
        commands.started("worker", f"pools:{pool}", "--id", "w1")
    commands.started("worker", "pools:small", "--id", "w1", "--slots", "1")
    for endpoint, rules in ROUTES.items():
        assert commands.run("route", "set", endpoint, "--to", "large=1", *rules).returncode == 0
    names = Names(namespace)

    async def ask(subject, **body):
        return json.loads((await request(nats_url, subject, json.dumps(body).encode())).data)

    for pool, slots in (("leased", 2), ("ranks", 1)):
        await ask(names.worker(WorkerId(pool, "w1"), "reserve"), slots=slots, ttl_s=300, owner="etl")
    gang = await ask(names.gang("acquire"), pool="ranks", size=2, wait=False, ttl_s=3600)
    until(lambda: commands.json("why", gang["id"])["kept"], "a slot is kept for it")
    commands.run("drain", "left.w1", "--yes")
    return commands


def submitted(commands, task):
    target, *options = task.split()
    attempts = () if "--max-attempts" in options else ("--max-attempts", "1")
    return commands.json("submit", target, "{}", "--timeout", "900", *attempts, *options)["job"]


def printed(commands, command, job):
    """Its lines after the first, without ids and times."""
    text = "\n".join(commands.run(command, job).stdout.splitlines()[1:])
    text = re.sub(r"(?<=\.)j[\w-]{20,}|(?<=gang )g[\w-]{20,}|~[\w-]{20,}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, in ", "", text)
    return re.sub(r"\b[\d.]+ (min|s|h)\b( \d+ (min|s)\b)?", "TIME", text).splitlines()


def test_each_obstacle_is_named_and_only_what_has_an_end_gives_a_start(system):
    for task in RUNNING:
        job = submitted(system, task)
        until(lambda job=job: system.json("status", job)["state"] == "running", f"{task} runs")
    for _ in range(2):
        submitted(system, "large.slow")
    for task, why, when in OBSTACLES:
        with case(task):
            job = submitted(system, task)
            until(lambda job=job: "no dispatcher" not in system.run("why", job).stdout, "its queue has a dispatcher")
            if "fail" in task:
                until(lambda job=job: system.json("status", job)["state"] == "waiting", "it has failed")
            assert [line[2:] for line in printed(system, "why", job) if line.startswith("- ")] == list(why)
            assert printed(system, "when", job)[0].startswith(when)
