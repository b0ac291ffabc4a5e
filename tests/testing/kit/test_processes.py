"""How scenarios start processes and wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.faults.echo import SUBJECT
from bench.faults.site import Site
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.children import Launcher, launch
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import Names
from gangline.testing.kit.processes import Crew, ProcessFailed
from gangline.testing.kit.records import lines_of

from ...processes import ForkServer


@pytest.mark.server
@pytest.mark.processes
@pytest.mark.parametrize("forked", [True, False], ids=["forked", "new-interpreter"])
async def test_a_process_runs_until_it_is_killed(
    forked: bool, forks: ForkServer, nats_url: str, namespace: str, tmp_path: Path
) -> None:
    how: Launcher = forks.start if forked else launch
    crew = Crew(tmp_path, {"NATS_URL": nats_url, "GANGLINE_NAMESPACE": namespace}, how)
    bus = await connect(ConnectionSettings.from_url(nats_url))
    try:
        process = crew.start("echo", "bench.faults.echo")

        async def answers() -> bool:
            try:
                return (await bus.request(f"{namespace}.{SUBJECT}", b"x", timeout_s=60)).data == b"x"
            except GanglineError:
                return False

        await crew.until(answers, "the echo answers")
        await crew.kill(process)
        assert crew.running == {} and crew.killed == [process.pid] and process.exit_code == -9
        assert not await answers()
    finally:
        await crew.close()
        await bus.close()


@pytest.mark.processes
async def test_a_process_that_exits_ends_a_wait_for_it(tmp_path: Path) -> None:
    crew = Crew(tmp_path, {})
    crew.start("early", "gangline.cli", "no-such-command")
    with pytest.raises(ProcessFailed, match="early ended with exit code 2"):
        await crew.until(lambda: False, "for ever", alive=["early"])
    await crew.close()


def test_a_journal_whose_last_line_was_cut_short_is_read_without_it(tmp_path: Path) -> None:
    journal = tmp_path / "w.journal"
    journal.write_text('{"event": "start"}\n{"event": "en')
    assert list(lines_of(journal)) == [{"event": "start"}]


async def test_what_never_rests_is_named(tmp_path: Path) -> None:
    site = Site("", Names("ns"), tmp_path, BucketSettings())
    site.pool = "train"
    site.workers = {"w1": SimpleNamespace()}  # type: ignore[dict-item]

    async def stats(_: str) -> object:
        await asyncio.sleep(1.0)
        return SimpleNamespace(load=SimpleNamespace(ongoing=2))

    site.client = SimpleNamespace(stats=stats)  # type: ignore[assignment]
    with pytest.raises(TimeoutError, match="L4: 0 slots should be in use, not {'w1': 2}"):
        await site.at_rest()
