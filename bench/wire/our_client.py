"""Gangline's client side: calls of all kinds, leases, selections and gangs, with defaults."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from dataclasses import asdict
from typing import Any

from ..dispatcher.client.client import Client, connect
from ..dispatcher.client.sync import connect_sync
from .child import LARGE, PAYLOAD, main, serve
from .loads import Once, Throughput, answering
from .our_worker import Order
from .tracing import set_up

_LEASED = 64
_ORDER = Order(customer="a customer of average length", quantities=[1, 2, 3], express=True)


def plain(client: Client, pool: str) -> dict[str, Once]:
    """Requests that need no lease."""
    echo, nap = f"{pool}.echo", f"{pool}.nap"

    async def reserve() -> None:
        async with client.choose_worker(pool) as selection:
            await client.dispatch(selection, "echo", PAYLOAD)

    keys = itertools.cycle([f"session-{number}" for number in range(1000)])

    async def read_stream() -> None:
        async for _ in client.stream(f"{pool}.stream"):
            pass

    async def lease_cycle() -> None:
        async with client.lease(pool) as lease:
            await lease.call("echo", PAYLOAD)

    return {
        "lease_cycle": lease_cycle,
        "submit": lambda: client.submit("queued.echo", PAYLOAD),
        "call": lambda: client.call(echo, PAYLOAD),
        "call_4w": lambda: client.call("four.echo", PAYLOAD),
        "nap": lambda: client.call(nap, PAYLOAD),
        "key": lambda: client.options(key=next(keys)).call(echo, PAYLOAD),
        "routed": lambda: client.call("routed.echo", PAYLOAD),
        "kwargs": lambda: client.call(echo, data=PAYLOAD),
        "model": lambda: client.call(f"{pool}.model", _ORDER),
        "function": lambda: client.call(f"{pool}.function", PAYLOAD),
        "large": lambda: client.call(echo, LARGE),
        "stream": read_stream,
        "reserve": reserve,
    }


async def life(url: str, pool: str, trace: str = "none") -> None:
    set_up(trace, "gangline-bench-client")
    async with connect(url, name="bench") as client:
        kinds = plain(client, pool)
        answers = answering(kinds)

        async def closed(what: str, **load: Any) -> Any:
            if what == "sync":
                return asdict(await asyncio.to_thread(_closed_in_thread, url, f"{pool}.echo", load["seconds"]))
            if what != "lease":
                return await answers["closed"](what, **load)
            async with client.lease(pool, slots=_LEASED) as lease:
                return await answering({what: lambda: lease.call("echo", PAYLOAD)})["closed"](what, **load)

        async def gang(pool: str, size: int, times: int) -> dict[str, Any]:
            return {"form_s": statistics.median([await _form(client, pool, size) for _ in range(times)])}

        async def route(endpoint: str, to: dict[str, float]) -> dict[str, Any]:
            return (await client.set_route(endpoint, {"to": to})).model_dump()

        await serve({**answers, "closed": closed, "gang": gang, "route": route})


def _closed_in_thread(url: str, target: str, seconds: float) -> Throughput:
    """The closed loop of one plain thread."""
    with connect_sync(url, name="bench sync") as client:
        client.call(target, PAYLOAD)
        count, began_at, cpu_at = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() < began_at + seconds:
            client.call(target, PAYLOAD)
            count += 1
        ended_at = time.perf_counter()
        return Throughput(count=count, seconds=ended_at - began_at, cpu_s=time.process_time() - cpu_at)


async def _form(client: Client, pool: str, size: int) -> float:
    """Seconds until a gang is formed; its release is not counted."""
    began_at = time.perf_counter()
    async with client.gang(pool=pool, size=size, strategy="spread"):
        return time.perf_counter() - began_at


if __name__ == "__main__":
    main(life)
