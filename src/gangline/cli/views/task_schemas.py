"""The tasks of pools with their schemas, for `gangline stubs` and `gangline asyncapi`."""

from __future__ import annotations

from ...dispatcher.client.client import Client
from ...schemas.catalogue.task_schemas import TaskSchema


async def read_schemas(client: Client, pools: tuple[str, ...]) -> list[TaskSchema]:
    """All tasks of the pools.

    Raises:
        NoWorkers: a pool has no workers.
    """
    return [task for pool in dict.fromkeys(pools) for task in (await client.schemas(pool)).values()]
