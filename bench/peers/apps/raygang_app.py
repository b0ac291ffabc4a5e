"""Ray's placement groups: 8 bundles of one CPU each, on one node. A child process: `python -m
bench.peers.apps.raygang_app CPUS`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from bench.wire.child import serve


def form(size: int) -> float:
    """Seconds until all bundles are reserved; the removal is not counted."""
    began_at = time.perf_counter()
    group = placement_group([{"CPU": 1}] * size)
    if not group.wait(30):
        raise TimeoutError("the placement group was not formed")
    took_s = time.perf_counter() - began_at
    remove_placement_group(group)
    while placement_group_table(group)["state"] != "REMOVED":
        time.sleep(0.005)
    return took_s


async def life() -> None:
    async def gang(size: int, times: int) -> dict[str, Any]:
        took = await asyncio.to_thread(lambda: [form(size) for _ in range(times)])
        return {"form_s": statistics.median(took)}

    await serve({"gang": gang})


def main() -> None:
    ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        asyncio.run(life())
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
