"""The raw client side: requests, JetStream publishes and KV puts, with nats-py alone and default settings."""

from __future__ import annotations

import nats
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType

from .child import ITEMS, JSON_BODY, LARGE, PAYLOAD, main, serve
from .loads import Once, answering

STREAM = "RAWBENCH"


async def life(url: str, storage: bool = True) -> None:
    """`storage`: False: its account has no JetStream."""
    connection = await nats.connect(url)
    kinds = _requests(connection)
    if storage:
        kinds |= await _stored(connection)
    await serve(answering(kinds))
    await connection.close()


async def _stored(connection: Client) -> dict[str, Once]:
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

    return {"js_publish": lambda: stream.publish("rawbench.task", PAYLOAD, timeout=10), "kv_put": put}


def _requests(connection: Client) -> dict[str, Once]:
    async def read_stream() -> None:
        inbox = connection.new_inbox()
        items = await connection.subscribe(inbox)
        await connection.publish("raw.stream", b"", reply=inbox)
        for _ in range(ITEMS):
            await items.next_msg(timeout=10)
        await items.unsubscribe()

    return {
        "echo": lambda: connection.request("raw.echo", PAYLOAD, timeout=10),
        "nap": lambda: connection.request("raw.nap", PAYLOAD, timeout=10),
        "function": lambda: connection.request("raw.function", PAYLOAD, timeout=10),
        "large": lambda: connection.request("raw.echo", LARGE, timeout=10),
        "json": lambda: connection.request("raw.echo", JSON_BODY, timeout=10),
        "gateway": lambda: connection.request("gangline.call.one.text", JSON_BODY, timeout=10),
        "stream": read_stream,
    }


if __name__ == "__main__":
    main(life)
