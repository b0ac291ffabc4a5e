"""One client of a run, `python -m bench.chaos.client NAME SEED`: sends requests of all kinds without a pause.

It records each request before it sends it, and again with the answer. On SIGTERM it sends no new requests, and exits
when the pending ones have been answered.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import gangline
from gangline.cli.console.children import tied_to_parent
from gangline.cli.console.session import run
from gangline.dispatcher.jobs.job import Job
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import public_id
from gangline.testing.kit.records import FOLDER, Notebook

POOL: Final = "chaos"
JOBS: Final = "jobs"
"""An endpoint with its own route; see JOBS_ROUTE."""
PER_KEY: Final = 2
JOBS_ROUTE: Final[dict[str, Any]] = {
    "to": {POOL: 1},
    "queue": {"per_key": PER_KEY, "max_attempts": 1000, "backoff_s": 0.2, "backoff_max_s": 1},
}  # fmt: skip
SET: Final = "standing"
"""A standing gang."""
KINDS: Final = ("call", "once", "stream", "lease", "selection", "job", "gang", "standing")
"""All of these must succeed again after a fault, at each client."""

OVERLOADS: Final = {signal.SIGUSR1: 2, signal.SIGUSR2: 10, signal.SIGRTMIN: 50}
"""Signal to a client -> how many times as many calls as there are slots it makes at once."""
SLOTS: Final = 16

_TTL_S: Final = 5.0
"""Time to live of leases and gangs."""
_TIMEOUT_S: Final = 8.0
_FORM_S: Final = 12.0
_LEAVE_S: Final = 40.0
_SUBMIT_S: Final = 30.0
"""Promised by Client.submit."""
_JOB_S: Final = 120.0
_HANG_S: Final = 60.0
"""A request this late counts as unanswered."""


class Told:
    """Holds a request's answer."""

    value: Any = None
    job: str | None = None


class _Client:
    def __init__(self, client: gangline.Client, book: Notebook, name: str, seed: int) -> None:
        self.client = client
        self.book = book
        self.name = f"{name}-{os.getpid()}"
        self.draw = random.Random(f"{name} {seed}")
        self.numbers = itertools.count(1)
        self.stopping = asyncio.Event()
        self.waiting: set[asyncio.Task[None]] = set()
        """Results of jobs, and calls of an overload."""

    @asynccontextmanager
    async def asking(self, kind: str, within_s: float, id: str = "", **facts: Any) -> AsyncIterator[Told]:
        """Record a request and its outcome. Errors are recorded and not raised, unless they are not an answer."""
        id = id or self.new_id()
        self.book.note("ask", id=id, kind=kind, due=time.monotonic() + within_s, **facts)
        told = Told()
        try:
            async with asyncio.timeout(within_s + _HANG_S):
                yield told
        except GanglineError as error:
            facts = {"ok": False, "code": error.code, "may_have_started": error.may_have_started, "value": told.value}
            self.book.note("told", id=id, text=f"{type(error).__name__}: {error}"[:300], **facts)
        except TimeoutError:
            self.book.note("hung", id=id)
        except Exception as error:  # a bug; the judge must see it
            text = f"{type(error).__name__}: {error}"[:300]
            self.book.note("told", id=id, ok=False, code="not_ours", may_have_started=True, text=text)
        else:
            self.book.note("told", id=id, ok=True, value=told.value, **({"job": told.job} if told.job else {}))

    @contextmanager
    def holding(self, name: str, asked: float, held: gangline.Lease | None = None, **facts: Any) -> Iterator[None]:
        """Record that it is held, and that it was released."""
        self.book.note("held", name=name, asked=asked, **facts)
        try:
            yield
        finally:
            self.book.note("left", name=name, lost=held is not None and held.lost is not None)

    def new_id(self) -> str:
        return f"{self.name}-{next(self.numbers)}"

    # -- one request of each kind ---------------------------------------------------------------------------------

    async def call(self) -> None:
        id = self.new_id()
        async with self.asking("call", _TIMEOUT_S, id, expected=id) as told:
            client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=True)
            told.value = await client.call(f"{POOL}.{self._method()}", id, self._seconds())

    async def once(self) -> None:
        id = self.new_id()
        async with self.asking("once", _TIMEOUT_S, id, expected=id, once=True) as told:
            client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=False)
            told.value = await client.call(f"{POOL}.{self._method()}", id, self._seconds())

    async def stream(self) -> None:
        id, count = self.new_id(), self.draw.choice((1, 3, 20))
        again = self.draw.random() < 0.5
        expected = [f"{id}/{number}" for number in range(count)]
        async with self.asking("stream", _TIMEOUT_S, id, expected=expected, once=not again) as told:
            client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=again)
            told.value = []
            async for item in client.stream(f"{POOL}.items", id, count, self._seconds() / 2):
                told.value.append(item)

    async def lease(self) -> None:
        await self._lease(slots=2, calls=4)

    async def idle_lease(self) -> None:
        """Held for a while before it is used, sometimes for longer than its time to live."""
        await self._lease(slots=1, calls=1, idle_s=self.draw.uniform(0.5, 1.5) * _TTL_S)

    async def _lease(self, *, slots: int, calls: int, idle_s: float = 0.0) -> None:
        client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=False)
        ledger = "sync" if self.draw.random() < 0.2 else "behind"
        leasing = client.lease(POOL, slots=slots, ttl_s=_TTL_S, ledger=ledger)
        entered: list[gangline.Lease] = []
        asked = time.monotonic()
        async with self.asking("enter lease", _TIMEOUT_S):
            entered.append(await leasing.__aenter__())
        for held in entered:
            with self.holding(public_id(held.token), asked, held, slots=slots, ttl_s=_TTL_S, sync=ledger == "sync"):
                await asyncio.sleep(idle_s)
                await asyncio.gather(*(self._on_lease(held) for _ in range(calls)))
                await leasing.__aexit__(None, None, None)

    async def _on_lease(self, held: gangline.Lease) -> None:
        id = self.new_id()
        async with self.asking("lease", _TIMEOUT_S, id, expected=id, once=True) as told:
            told.value = await held.call("work", id, self._seconds())

    async def selection(self) -> None:
        client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=False)
        id = self.new_id()
        async with self.asking("selection", 3 * _TIMEOUT_S, id, expected=id, once=True) as told:
            for unused in (True, False):
                if unused and self.draw.random() < 0.8:
                    continue
                asked = time.monotonic()
                with ExitStack() as noting:
                    async with client.choose_worker(POOL) as selection:
                        noting.enter_context(self.holding(public_id(selection.token), asked))
                        if not unused:
                            told.value = await client.dispatch(selection, f"{POOL}.work", id, self._seconds())

    async def job(self) -> None:
        id = self.new_id()
        options: dict[str, Any] = {}
        if self.draw.random() < 0.5:
            options["key"] = f"key{self.draw.randrange(3)}"
        await self._submit(id, options)

    async def ordered(self) -> None:
        """Submit some with one key, one after the other; they must run in that order."""
        line = f"line-{self.name}"
        await self._submit(self.new_id(), {"key": line, "ordered": True}, line)

    async def _submit(self, id: str, options: dict[str, Any], line: str | None = None) -> None:
        delay_s = 0.0 if line else self.draw.choice((0.0, 0.0, 0.0, 1.0))
        if delay_s:
            options["delay_s"] = delay_s
        failures = 1 if self.draw.random() < 0.1 else 0
        facts: dict[str, Any] = {"not_before": time.monotonic() + delay_s} if delay_s else {}
        if line is not None:
            facts["line"] = line
        # A few run longer than any fault lasts: they must not be started again meanwhile.
        short = line is not None or self.draw.random() > 0.02
        seconds = self._seconds() * self.draw.choice((1, 1, 1, 10)) if short else 8.0
        jobs: list[Job] = []
        async with self.asking("submit", _SUBMIT_S, id, expected=id, **facts) as told:
            job = await self.client.options(**options).submit(f"{JOBS}.job", id=id, seconds=seconds, failures=failures)
            told.job = job.id
            jobs.append(job)
        for job in jobs:
            self._wait_for(self._result(job, id))

    def _wait_for(self, request: Coroutine[Any, Any, None]) -> None:
        waiting = asyncio.ensure_future(request)
        self.waiting.add(waiting)
        waiting.add_done_callback(self.waiting.discard)

    def overload(self, times: int) -> None:
        for _ in range(times * SLOTS):
            self._wait_for(self.call())

    async def _result(self, job: Job, id: str) -> None:
        async with self.asking("job", _JOB_S, f"{id}/result", expected=id) as told:
            told.value = await job.result(_JOB_S)

    async def gang(self) -> None:
        size = self.draw.choice((2, 3))
        ganging = self.client.gang(
            pool=POOL, size=size, strategy="spread", deadline_s=_FORM_S, ttl_s=_TTL_S, grace_s=1.0, max_restarts=2
        )
        entered: list[gangline.Gang] = []
        asked = time.monotonic()
        async with self.asking("enter gang", _FORM_S):
            entered.append(await ganging.__aenter__())
        for gang in entered:
            with self.holding(gang.id, asked, ttl_s=_TTL_S):
                for _ in range(2):
                    id = self.new_id()
                    async with self.asking("gang", _TIMEOUT_S, id, expected=size, once=True) as told:
                        told.value = await gang.options(timeout_s=_TIMEOUT_S).run("member", id, self._seconds())
                async with self.asking("leave gang", _LEAVE_S):
                    await ganging.__aexit__(None, None, None)

    async def standing(self) -> None:
        id = self.new_id()
        async with self.asking("standing", _TIMEOUT_S, id, expected=id, once=True) as told:
            client = self.client.options(timeout_s=_TIMEOUT_S, idempotent=False)
            told.value = await client.call(f"{SET}.serve", id, self._seconds())

    def _method(self) -> str:
        return "wide" if self.draw.random() < 0.15 else "work"

    def _seconds(self) -> float:
        return self.draw.uniform(0.01, 0.06)

    # -- all of them ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        every: list[tuple[Callable[[], Awaitable[None]], int, float]] = [
            (self.call, 1, 0.15), (self.once, 3, 0.1), (self.lease, 1, 0.3), (self.selection, 1, 0.2),
            (self.job, 2, 0.4), (self.gang, 1, 0.4), (self.standing, 2, 0.2), (self.stream, 1, 0.3),
            (self.ordered, 1, 0.8), (self.idle_lease, 1, 5.0),
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for ask, times, pause_s in every:
                for _ in range(times):
                    group.create_task(self._again(ask, pause_s))
        if self.waiting:
            await asyncio.wait(self.waiting)

    async def _again(self, ask: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self.stopping.is_set():
            await ask()
            try:
                async with asyncio.timeout(self.draw.uniform(0.5, 1.5) * pause_s):
                    await self.stopping.wait()
            except TimeoutError:
                continue


async def main(name: str, seed: int) -> None:
    book = Notebook(Path(os.environ[FOLDER]), "client")
    bucket = gangline.BucketSettings.from_environment()
    settings = gangline.RouterSettings(node="", zone="")
    connecting = gangline.connect(
        namespace=os.environ["GANGLINE_NAMESPACE"], name=name, bucket=bucket, settings=settings
    )
    async with connecting as client:
        it = _Client(client, book, name, seed)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, it.stopping.set)
        for number, times in OVERLOADS.items():
            asyncio.get_running_loop().add_signal_handler(number, it.overload, times)
        with tied_to_parent(it.stopping.set):
            book.note("begun")
            stalls = asyncio.ensure_future(book.note_stalls())
            await it.serve()
            stalls.cancel()
            book.note("over", statistics=client.statistics())


if __name__ == "__main__":
    run(main(sys.argv[1], int(sys.argv[2])))
