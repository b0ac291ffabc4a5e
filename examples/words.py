"""A pool with one task, and a program that calls it.

In one terminal, from this folder:   gangline dev words:pool
In another:                          python words.py
"""

import asyncio

import gangline

pool = gangline.Pool("words", slots=4)


@pool.task
async def count(text: str) -> int:
    """Count the words of the text."""
    return len(text.split())


async def main() -> None:
    async with gangline.connect("nats://127.0.0.1:4222") as client:
        print(await client.call("words.count", text="lease a slot before you send"))
        async with client.lease("words", slots=2) as lease:
            print(await lease.call("count", "two slots are reserved"))


if __name__ == "__main__":
    asyncio.run(main())
