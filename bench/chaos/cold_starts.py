"""Cold starts: processes that start while the cluster has not elected its leaders yet.

    python -m bench.chaos.cold_starts --times 50

Each time, three new nats-servers start, the second and third up to some seconds after the first. As soon as the first
accepts connections, two coordinators, two dispatchers, a worker and a gateway start. All of them must wait for storage,
start, and exit with code 0 on SIGTERM. Exit code 1: one exited by itself or did not start.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.cli.console.session import run
from gangline.testing.kit.processes import ChildProcess, Crew, holds_within

ROLES: Final = ("coordinator", "coordinator", "dispatcher", "dispatcher", "worker", "gateway")
LATE_S: Final = 6.0
"""The second and third server start at most this long after the first."""
_LIMIT_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Start:
    """The start of one process."""

    role: str
    process: ChildProcess
    seconds: float | None = None
    """How long it took; None: it did not start."""
    retries: int = 0
    """How often it retried because storage was unavailable."""
    code: int | None = None
    """Exit code, once it has exited."""
    trouble: str | None = None
    """What went wrong; set at the end."""

    def look(self) -> bool:
        """Whether it has started, or has exited without starting."""
        if self.seconds is None and self.code is None:
            actions = self.process.actions()
            self.retries = actions.count("start.retry")
            if f"{self.role}.started" in actions:
                self.seconds = time.monotonic() - self.process.life.began
            else:
                self.code = self.process.exit_code
        return self.seconds is not None or self.code is not None

    def complaint(self) -> str | None:
        """What went wrong; None: nothing."""
        if self.seconds is not None and self.code == 0:
            return None
        last = self.process.log_tail(1)[-400:]
        return f"{self.role}: started {self.seconds is not None}, code {self.code}, last logged: {last}"


def _start(crew: Crew, role: str, number: int, url: str) -> Start:
    what = (role, "bench.chaos.tasks:pool") if role == "worker" else (role,)
    options = ("--node", f"n{number}", "--log-format", "json", "--log-level", "debug")
    process = crew.start(f"{role}{number}", "gangline.cli", *what, *options, environment={"NATS_URL": url})
    return Start(role=role, process=process)


async def cold_start(draw: random.Random, roles: Sequence[str] = ROLES, late_s: float = LATE_S) -> list[Start]:
    """Start a cluster and the processes, and stop all of them."""
    cluster, starts = EmbeddedCluster(3), list[Start]()
    with tempfile.TemporaryDirectory() as folder:
        crew = Crew(Path(folder), {"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": "3"})
        try:
            first, *others = cluster.servers
            await first.astart()
            for number, role in enumerate(roles):
                starts.append(_start(crew, role, number, first.url))
            began = starts[0].process.life.began
            for server, pause_s in zip(others, sorted(draw.uniform(0.0, late_s) for _ in others), strict=True):
                await asyncio.sleep(max(0.0, began + pause_s - time.monotonic()))
                await server.astart()
            await holds_within(_LIMIT_S, lambda: all(list(map(Start.look, starts))), pause_s=0.05)
            told = [each for each in starts if each.code is None]
            for each in told:
                each.process.signal(signal.SIGTERM)
            for each in told:
                each.code = await each.process.ended(_LIMIT_S)
            for each in starts:
                each.trouble = each.complaint()
        finally:
            await crew.close()
            await asyncio.to_thread(cluster.stop)
    return starts


def table(starts: Sequence[Start]) -> str:
    """One line for each role."""
    lines = ["| role | starts | failed | waited for storage | longest start |", "|---|---|---|---|---|"]
    for role in dict.fromkeys(each.role for each in starts):
        ours = [each for each in starts if each.role == role]
        bad = sum(each.trouble is not None for each in ours)
        longest = max((each.seconds for each in ours if each.seconds is not None), default=0.0)
        waited = sum(each.retries > 0 for each in ours)
        lines.append(f"| {role} | {len(ours)} | {bad} | {waited} | {longest:.1f} s |")
    return "\n".join(lines)


async def _all(times: int, seed: int) -> list[Start]:
    starts: list[Start] = []
    for number in range(times):
        starts += (now := await cold_start(random.Random(f"{seed}-{number}")))
        said = ", ".join(f"{each.role} {each.seconds or 0.0:.1f} s ({each.retries} retries)" for each in now)
        print("\n".join((f"{number + 1}: {said}", *(each.trouble for each in now if each.trouble))), flush=True)
    return starts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    starts = run(_all(given.times, given.seed))
    print(table(starts))
    return 1 if any(each.trouble for each in starts) else 0


if __name__ == "__main__":
    sys.exit(main())
