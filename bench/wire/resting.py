"""An idle worker, as `gangline worker` runs it: its memory, and the messages it sends and receives."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..cli.console.children import end, spawn
from .process import ChildFailed

_SETTLE_S = 2.0
_POLL_S = 0.1
_START_S = 20.0
_END_S = 10.0
_LEDGER: Final = "KV_GANGLINE_LEDGER"


async def at_rest(url: str, monitoring: int, environment: Mapping[str, str], seconds: float) -> tuple[float, float]:
    """Memory in MB and messages per second, both ways, of one idle worker.

    Args:
        monitoring: port of the server's monitoring.
        seconds: how long it is measured.

    Raises:
        ChildFailed: it did not start.
    """
    with Path(os.devnull).open("wb") as nowhere:  # noqa: ASYNC230
        pool = f"{__package__}.resting_pool:pool"
        process = await spawn("worker", pool, "-s", url, environment=environment, output=nowhere)
    try:
        await _until_connected(process, monitoring)
        await asyncio.sleep(_SETTLE_S)
        before = await _messages(monitoring)
        await asyncio.sleep(seconds)
        after = await _messages(monitoring)
        return resident_mb(process.pid), (after - before) / seconds
    finally:
        await end(process, _END_S)


async def _until_connected(process: asyncio.subprocess.Process, monitoring: int) -> None:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _START_S
    while await _messages(monitoring) == 0:
        if process.returncode is not None or loop.time() > give_up_at:
            raise ChildFailed("the idle worker did not start")
        await asyncio.sleep(_POLL_S)


async def _messages(monitoring: int) -> int:
    """Messages in both directions on the connections of idle workers; 0 if there are none."""
    connections = (await page(monitoring, "connz?limit=1024"))["connections"]
    mine = [item for item in connections if item.get("name", "").endswith(" worker resting")]
    return sum(int(item["in_msgs"]) + int(item["out_msgs"]) for item in mine)


async def page(monitoring: int, path: str) -> Any:
    """A page of the server's monitoring."""

    def read() -> Any:
        url = f"http://127.0.0.1:{monitoring}/{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:  # nosec B310
            return json.load(answer)

    return await asyncio.to_thread(read)


async def ledger_stream(monitoring: int) -> Mapping[str, int]:
    """The state of the ledger's stream."""
    accounts = (await page(monitoring, "jsz?streams=true"))["account_details"]
    streams = [stream for account in accounts for stream in account.get("stream_detail", ())]
    empty = {"last_seq": 0, "messages": 0, "bytes": 0}
    return next((stream["state"] for stream in streams if stream["name"] == _LEDGER), empty)


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # without /proc, use the system's own tool
        import subprocess

        return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout) / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
