"""Wrong uses of typed handles. Each marked line is an error for every type checker, and there are no others."""

from __future__ import annotations

from tasks import count, numbers, place, resize, store, thumbnail

import gangline


async def calls(client: gangline.Client) -> None:
    await client.call(count, text=5)  # wrong
    await client.call(count, txt="a")  # wrong
    await client.call(count)  # wrong
    await client.call(count, "a", 2)  # wrong
    await client.options(timeout_s=1).call(thumbnail, path="a.png", width="wide")  # wrong
    await client.call(place, order=1)  # wrong
    await client.call(store, name="a")  # wrong: an annotation alone does not say that callers leave it out
    await client.call(resize, image="text", width=1)  # wrong
    await client.call(gangline.handle(count, "other"), text=5)  # wrong
    await client.call(5)  # wrong
    text: str = await client.call(count, text="a")  # wrong
    client.stream(count, text="a")  # wrong: it yields nothing
    client.stream(numbers, to="many")  # wrong
    print(text)


async def jobs(client: gangline.Client) -> None:
    await client.submit(count, text=5)  # wrong
    job = await client.submit(count, text="a")
    name: str = await job.result()  # wrong
    await client.submit(thumbnail, "a.png", height=1)  # wrong
    print(name)


async def slots(client: gangline.Client, lease: gangline.Lease, selection: gangline.Selection) -> None:
    await lease.call(count, text=5)  # wrong
    lease.stream(numbers, upto=1)  # wrong
    await client.dispatch(selection, count, txt="a")  # wrong
    client.stream(selection, numbers, to="a")  # wrong


async def gangs(gang: gangline.Gang) -> None:
    await gang.run(count, text=5)  # wrong
    await gang.call(0, count, txt="a")  # wrong
    sizes: list[str] = await gang.run(count, "a")  # wrong
    print(sizes)


def plain_code(client: gangline.SyncClient) -> None:
    client.call(count, text=5)  # wrong
    client.submit(count, txt="a")  # wrong
    name: str = client.submit(count, text="a").result()  # wrong
    client.stream(numbers, to="many")  # wrong
    print(name)
