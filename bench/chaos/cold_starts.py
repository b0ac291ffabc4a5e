"""Cold starts: processes that start beside a cluster that has not elected anybody yet.

    python -m bench.chaos.cold_starts --times 50

Each time three new nats-servers start, the second and third up to some seconds after the first. As soon as the first
takes connections, two coordinators, two dispatchers, a worker and a gateway start. All of them must wait for storage,
start, and end with code 0 when they are told to. Exit code 1: one ended by itself or did not start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.cli.console.children import TIED, launch
from gangline.cli.console.options import plain_environment
from gangline.cli.console.session import run
from gangline.testing.kit.processes import holds_within

ROLES: Final = ("coordinator", "coordinator", "dispatcher", "dispatcher", "worker", "gateway")
LATE_S: Final = 6.0
"""The second and third server start at most so long after the first."""
_LIMIT_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Start:
    """How one process has started."""

    role: str
    process: subprocess.Popen[bytes]
    log: Path
    tie: int
    began: float
    seconds: float | None = None
    """Until it had started; None: it never did."""
    retries: int = 0
    """How often it found storage away."""
    code: int | None = None
    """Exit code, if it ended by itself."""
    trouble: str | None = None
    """What went wrong, once it is over."""

    def look(self) -> bool:
        """Whether it has started, or never will."""
        if self.seconds is None and self.code is None:
            said = self.log.read_bytes()
            self.retries = said.count(b'"start.retry"')
            if f'"{self.role}.started"'.encode() in said:
                self.seconds = time.monotonic() - self.began
            else:
                self.code = self.process.poll()
        return self.seconds is not None or self.code is not None

    def complaint(self) -> str | None:
        """What went wrong, if anything did."""
        if self.seconds is not None and self.code == 0:
            return None
        last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"{self.role}: started {self.seconds is not None}, code {self.code}, last said: {last[-400:]}"


def _start(role: str, number: int, url: str, folder: Path) -> Start:
    log = folder / f"{role}{number}.log"
    environment = {
        **plain_environment(), TIED: "1", "NATS_URL": url, "GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": "3",
    }  # fmt: skip
    what = (role, "bench.chaos.tasks:pool") if role == "worker" else (role,)
    command = ["-m", "gangline.cli", *what, "--node", f"n{number}", "--log-format", "json", "--log-level", "debug"]
    theirs, tie = os.pipe()
    try:
        with log.open("wb") as err:
            made = launch(command, environment=environment, stdin=theirs, stdout=err, stderr=err)
    finally:
        os.close(theirs)
    assert isinstance(made, subprocess.Popen)
    return Start(role=role, process=made, log=log, tie=tie, began=time.monotonic())


async def cold_start(draw: random.Random, roles: Sequence[str] = ROLES, late_s: float = LATE_S) -> list[Start]:
    """Start a cluster and the processes beside it, and end all of them."""
    cluster, starts = EmbeddedCluster(3), list[Start]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            first, *others = cluster.servers
            await first.astart()
            for number, role in enumerate(roles):
                starts.append(_start(role, number, first.url, Path(folder)))
            for server, pause_s in zip(others, sorted(draw.uniform(0.0, late_s) for _ in others), strict=True):
                await asyncio.sleep(max(0.0, starts[0].began + pause_s - time.monotonic()))
                await server.astart()
            await holds_within(_LIMIT_S, lambda: all(list(map(Start.look, starts))), pause_s=0.05)
            for each in starts:
                if each.code is None:
                    each.process.send_signal(signal.SIGTERM)
            for each in starts:
                if each.code is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        each.code = await asyncio.to_thread(each.process.wait, _LIMIT_S)
            for each in starts:
                each.trouble = each.complaint()
        finally:
            for each in starts:
                each.process.kill()
                each.process.wait()
                os.close(each.tie)
            await asyncio.to_thread(cluster.stop)
    return starts


def table(starts: Sequence[Start]) -> str:
    """One line for each role."""
    lines = ["| role | starts | not well | waited for storage | longest start |", "|---|---|---|---|---|"]
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
