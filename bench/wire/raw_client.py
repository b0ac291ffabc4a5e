"""The raw client side: requests, JetStream publishes and KV puts, with nats-py alone and default settings."""

from __future__ import annotations

import nats
from nats.js.api import RetentionPolicy, StorageType

from .child import PAYLOAD, main, serve
from .loads import Once, answering

STREAM = "RAWBENCH"


async def life(url: str) -> None:
    connection = await nats.connect(url)
    stream = connection.jetstream()
    # Like the task stream, except for its special features.
    await stream.add_stream(
        name=STREAM,
        subjects=["rawbench.>"],
        storage=StorageType.FILE,
        retention=RetentionPolicy.WORK_QUEUE,
        duplicate_window=120.0,
    )
    bucket = await stream.create_key_value(bucket=f"{STREAM}_KV", storage=StorageType.MEMORY)
    keys = 0

    async def put() -> None:
        nonlocal keys
        keys += 1
        await bucket.put(f"k{keys % 1000}", PAYLOAD)

    kinds: dict[str, Once] = {
        "echo": lambda: connection.request("raw.echo", PAYLOAD, timeout=10),
        "nap": lambda: connection.request("raw.nap", PAYLOAD, timeout=10),
        "js_publish": lambda: stream.publish("rawbench.task", PAYLOAD, timeout=10),
        "kv_put": put,
    }

    await serve(answering(kinds))
    await connection.close()


if __name__ == "__main__":
    main(life)
