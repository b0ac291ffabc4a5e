"""Gangline's client side: calls, leases, selections and gangs, with defaults."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from ..dispatcher.client.client import Client, connect
from .child import PAYLOAD, main, serve
from .loads import Once, closed_loop, open_loop, percentile
from .tracing import set_up

_LEASED = 64


def plain(client: Client, pool: str) -> dict[str, Once]:
    """Requests that need no lease."""
    echo, nap = f"{pool}.echo", f"{pool}.nap"

    async def reserve() -> None:
        async with client.choose_worker(pool) as selection:
            await client.dispatch(selection, "echo", PAYLOAD)

    async def lease_cycle() -> None:
        async with client.lease(pool) as lease:
            await lease.call("echo", PAYLOAD)

    return {
        "lease_cycle": lease_cycle,
        "submit": lambda: client.submit("queued.echo", PAYLOAD),
        "call": lambda: client.call(echo, PAYLOAD),
        "call_4w": lambda: client.call("four.echo", PAYLOAD),
        "nap": lambda: client.call(nap, PAYLOAD),
        "reserve": reserve,
    }


async def life(url: str, pool: str, trace: str = "none") -> None:
    set_up(trace, "gangline-bench-client")
    async with connect(url, name="bench") as client:
        kinds = plain(client, pool)

        async def closed(what: str, concurrency: int, seconds: float) -> dict[str, Any]:
            async with AsyncExitStack() as stack:
                if what == "lease":
                    lease = await stack.enter_async_context(client.lease(pool, slots=_LEASED))
                    once: Once = lambda: lease.call("echo", PAYLOAD)  # noqa: E731
                else:
                    once = kinds[what]
                return asdict(await closed_loop(once, concurrency=concurrency, seconds=seconds))

        async def paced(what: str, rate: float, seconds: float) -> dict[str, Any]:
            latencies = await open_loop(kinds[what], rate=rate, seconds=seconds)
            return {"p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99)}

        async def gang(pool: str, size: int, times: int) -> dict[str, Any]:
            return {"form_s": statistics.median([await _form(client, pool, size) for _ in range(times)])}

        await serve({"closed": closed, "paced": paced, "gang": gang})


async def _form(client: Client, pool: str, size: int) -> float:
    """Seconds until a gang is formed; its release is not counted."""
    began_at = time.perf_counter()
    async with client.gang(pool=pool, size=size, strategy="spread"):
        return time.perf_counter() - began_at


if __name__ == "__main__":
    main(life)
