"""Ray Serve: one replica, called by its handle. A child process: `python -m bench.peers.apps.rayserve_app`."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray import serve

from bench.peers.apps.submitting import TUNED
from bench.wire.child import PAYLOAD
from bench.wire.child import serve as serve_parent
from bench.wire.loads import answering

options: dict[str, Any] = {"max_ongoing_requests": 512} if TUNED else {}


@serve.deployment(num_replicas=1, **options)
class Echo:
    async def __call__(self, data: bytes) -> bytes:
        return data


async def life() -> None:
    handle = serve.run(Echo.bind())

    async def call() -> None:
        await handle.remote(PAYLOAD)

    async def choose() -> None:
        async with handle.choose_replica() as selection:
            await handle.dispatch(selection, PAYLOAD)

    await serve_parent(answering({"call": call, "choose": choose}))


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        asyncio.run(life())
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
