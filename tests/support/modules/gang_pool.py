"""Tasks of gangs, for real worker processes: `gangline worker tests/support/modules/gang_pool.py:pool`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gangline import Pool, current_task

pool = Pool("train", slots=2)


@pool.task
async def where() -> list[int]:
    gang = current_task().gang
    return [gang.rank, gang.generation, os.getpid()]


@pool.task
async def share(each_bytes: int, one_bytes: int, root: int) -> list[int]:
    """Every rank gathers a value of each, and gets one of `root`."""
    gang = current_task().gang
    gathered = await gang.all_gather(bytes([gang.rank % 251]) * each_bytes)
    assert [(len(value), value[:1]) for value in gathered] == [
        (each_bytes, bytes([rank % 251])) for rank in range(gang.world_size)
    ]
    told = await gang.broadcast(bytes(one_bytes) if gang.rank == root else None, root)
    return [len(gathered), len(told), gang.generation]


@pool.task
def wait_for(path: str) -> list[int]:
    """Runs until the file exists. It creates another file when it has started: `<path>.<generation>.<rank>`."""
    task = current_task()
    Path(f"{path}.{task.gang.generation}.{task.gang.rank}").touch()
    while not Path(path).exists():
        task.check_cancelled()
        time.sleep(0.01)
    return [task.gang.rank, task.gang.generation, os.getpid()]
