"""The four ways in which the demo asks for the same work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ....bus.rpc.requester import raise_if_error
from ....schemas.wire import codec
from ..checks.calls import Done
from ..fixtures.screen import Tick

if TYPE_CHECKING:
    from ....bus.port.bus import Bus
    from ....dispatcher.client.client import Client
    from ....dispatcher.leases.lease import Lease
    from ....schemas.names import Names

POOL: Final = "squeeze"
METHOD: Final = "file"
TARGET: Final = f"{POOL}.{METHOD}"
TIMEOUT_S: Final = 60.0

One = Callable[[str], Awaitable[Any]]
Milestone = tuple[float, Callable[[], Awaitable[None]]]
"""A share of the files, and what to do when so many are done."""


class Drive:
    """Sends files and collects what comes back."""

    def __init__(self, client: Client, bus: Bus, names: Names, name_of: Callable[[int], str]) -> None:
        self._client = client.options(timeout_s=TIMEOUT_S)
        self._bus = bus
        self._names = names
        self._name_of = name_of
        self.done: list[Done] = []
        self.failures: list[str] = []
        self.given: dict[str, int] = {}
        """How many files each way was given."""

    async def call(self, path: str) -> Any:
        """One round trip, no token: the worker is picked and sent the task at once."""
        return await self._client.call(TARGET, path=path)

    async def dispatch(self, path: str) -> Any:
        """Two round trips: a slot is reserved first, and the dispatch to it cannot be refused."""
        async with self._client.choose_worker(POOL) as selection:
            return await self._client.dispatch(selection, METHOD, path=path)

    async def gateway(self, path: str) -> Any:
        """What `nats req gangline.call.squeeze.file '{"path": ...}'` does, from any language."""
        body = codec.to_json({"path": path})
        answer = await self._bus.request(self._names.call(POOL, METHOD), body, timeout_s=TIMEOUT_S)
        raise_if_error(answer)
        return codec.decode(answer.data, codec.Format.of(answer.headers))

    def lease(self, lease: Lease) -> One:
        """One round trip on slots that are ours already."""

        async def one(path: str) -> Any:
            return await lease.call(METHOD, path=path)

        return one

    async def feed(
        self,
        way: str,
        ones: Sequence[One],
        paths: Sequence[str],
        *,
        tick: Tick,
        milestones: Sequence[Milestone] = (),
    ) -> None:
        """Send all paths, as many at once as there are `ones`, and run what is due at each milestone meanwhile."""
        self.given[way] = self.given.get(way, 0) + len(paths)
        due = sorted(((round(share * len(paths)), act) for share, act in milestones), key=lambda pair: pair[0])
        left = iter(paths)
        finished = 0

        async def runner(one: One) -> None:
            nonlocal finished
            for path in left:
                await self._one(way, one, path)
                finished += 1
                tick(1)
                while due and finished >= due[0][0]:
                    acts.append(group.create_task(_awaited(due.pop(0)[1])))

        acts: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            for one in ones:
                group.create_task(runner(one))

    async def _one(self, way: str, one: One, path: str) -> None:
        clock = asyncio.get_running_loop().time
        before = clock()
        try:
            value = await one(path)
        except Exception as error:  # counted: a demo that loses something has failed, but tells all of it
            self.failures.append(f"{path} by {way}: {type(error).__name__}: {error}")
            return
        self.done.append(
            Done(
                path=path,
                way=way,
                worker=self._name_of(value["pid"]),
                seconds=clock() - before,
                size=value["size"],
                packed=value["packed"],
                sha256=value["sha256"],
                together=value["together"],
            )
        )

    def latencies(self) -> Iterator[tuple[str, list[float]]]:
        """Sorted seconds by way."""
        for way in self.given:
            yield way, sorted(one.seconds for one in self.done if one.way == way)


async def _awaited(act: Callable[[], Awaitable[None]]) -> None:
    await act()
