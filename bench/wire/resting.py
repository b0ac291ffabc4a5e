"""An idle worker, as `gangline worker` runs it: its memory, and the messages it sends and receives."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from .process import ChildFailed

_SETTLE_S = 2.0
_POLL_S = 0.1
_START_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


async def at_rest(url: str, monitoring: int, environment: Mapping[str, str], seconds: float) -> tuple[float, float]:
    """Memory in MB and messages per second, both ways, of one idle worker.

    Args:
        monitoring: port of the server's monitoring.
        seconds: how long it is measured.

    Raises:
        ChildFailed: it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gangline.cli", "worker", f"{__package__}.resting_pool:pool", "-s", url),
        env={**environment, "GANGLINE_TIED": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _until_connected(process, monitoring)
        await asyncio.sleep(_SETTLE_S)
        before = await _messages(monitoring)
        await asyncio.sleep(seconds)
        after = await _messages(monitoring)
        return resident_mb(process.pid), (after - before) / seconds
    finally:
        process.terminate()
        await process.wait()


async def _until_connected(process: asyncio.subprocess.Process, monitoring: int) -> None:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _START_S
    while await _messages(monitoring) == 0:
        if process.returncode is not None or loop.time() > give_up_at:
            raise ChildFailed("the idle worker did not start")
        await asyncio.sleep(_POLL_S)


async def _messages(monitoring: int) -> int:
    """Messages in both directions on the connections of idle workers; 0 if there are none."""

    def read() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/connz?limit=1024", timeout=5) as answer:
            connections = json.load(answer)["connections"]
        mine = [item for item in connections if item.get("name", "").endswith(" worker resting")]
        return sum(int(item["in_msgs"]) + int(item["out_msgs"]) for item in mine)

    return await asyncio.to_thread(read)


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # without /proc, use the system's own tool
        import subprocess

        return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout) / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
