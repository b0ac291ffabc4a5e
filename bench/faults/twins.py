"""A worker is frozen until a second process with its id serves, and then continues: who is called, and what runs
twice?"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from typing import Final

from bench.faults.figures import Row
from bench.faults.site import SERVED, Site, calling, opened
from bench.faults.trial import Trial
from gangline.schemas.errors.base import GanglineError

CALLERS: Final = 6
"""More than the slots of one worker."""
CALLS: Final = 20
"""Wait for this many answers of the second process after the first has left."""


async def woken_twin(trial: Trial) -> list[Row]:
    """Calls that are not idempotent, all the time."""
    used = Row(name="twin: 20 calls of the second process, since the first woke", target=10.0)
    async with opened(trial, workers=2, coordinators=0) as site:
        calls = _Calls(site)
        async with calling(calls.once, CALLERS):
            for number in range(trial.repetitions):
                used.samples.append(await _once(site, calls, number))
                trial.report(f"{used.name} {number + 1}: {used.samples[-1]:.3f} s")
        ran = Counter(run.id for run in site.runs())
    used.broken += [f"call {name} ran {times} times" for name, times in ran.items() if times > 1]
    used.broken += [f"call {name} ran, and its caller was told that nothing started" for name in calls.none & {*ran}]
    used.note = f"{len(ran)} calls; errors: {dict(calls.errors)}"
    return [used]


class _Calls:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.numbers = itertools.count(1)
        self.answered: Counter[int] = Counter()
        """By process."""
        self.errors: Counter[str] = Counter()
        self.none: set[str] = set()
        """Calls whose callers were told that nothing started."""

    async def once(self) -> None:
        name = str(next(self.numbers))
        try:
            self.answered[await self.site.client.call(f"{SERVED}.once", name, 0.1)] += 1
        except GanglineError as error:
            self.errors[error.code] += 1
            if not error.may_have_started:
                self.none.add(name)
            await asyncio.sleep(0.05)


async def _once(site: Site, calls: _Calls, number: int) -> float:
    name, first = next(iter(site.workers.items()))
    await site.until(lambda: calls.answered[first.pid], "the first is called")
    first.signal(signal.SIGSTOP)
    second = site.start(f"{name}-{number}", "gangline.cli", "worker", site.target, "--id", name, "--node", name)
    await site.until(lambda: calls.answered[second.pid], "the second is called")
    first.signal(signal.SIGCONT)
    woke = time.monotonic()
    assert await first.ended() is not None, "the first one leaves"
    before = calls.answered[second.pid]
    await site.until(lambda: calls.answered[second.pid] >= before + CALLS, "the second is called as before")
    site.workers[name] = second
    return time.monotonic() - woke
