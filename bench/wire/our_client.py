"""Gangline's client side: calls, leases, selections and gangs, with defaults."""

from __future__ import annotations

import statistics
import time
from typing import Any

from ..dispatcher.client.client import Client, connect
from .child import PAYLOAD, main, serve
from .loads import Once, answering
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
        answers = answering(kinds)

        async def closed(what: str, **load: Any) -> Any:
            if what != "lease":
                return await answers["closed"](what, **load)
            async with client.lease(pool, slots=_LEASED) as lease:
                return await answering({what: lambda: lease.call("echo", PAYLOAD)})["closed"](what, **load)

        async def gang(pool: str, size: int, times: int) -> dict[str, Any]:
            return {"form_s": statistics.median([await _form(client, pool, size) for _ in range(times)])}

        await serve({**answers, "closed": closed, "gang": gang})


async def _form(client: Client, pool: str, size: int) -> float:
    """Seconds until a gang is formed; its release is not counted."""
    began_at = time.perf_counter()
    async with client.gang(pool=pool, size=size, strategy="spread"):
        return time.perf_counter() - began_at


if __name__ == "__main__":
    main(life)
