"""Run seeds: one with `run`, many on all processors with `run_many`."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..loop import Deadlock, VirtualLoop, VirtualTimeout
from .history.checker import Violation
from .plan.aims import with_aims
from .plan.clocks import with_clocks
from .plan.durable_draw import draw_durable_plan
from .plan.gang_draw import draw_gang_plan
from .plan.plan import Plan, draw_plan
from .play.story import Story

LIMIT_S = 300.0
"""No run lasts longer on its own clock; one that would hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How one run ended."""

    seed: int
    violations: tuple[Violation, ...]
    digest: str
    """Of everything that happened; the same seed gives the same digest."""
    virtual_s: float
    callbacks: int
    events: int
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    """How many requests had each outcome."""
    gangs: dict[str, int] = field(default_factory=dict[str, int])
    """How often each thing happened to gangs."""
    durable: dict[str, int] = field(default_factory=dict[str, int])
    """How many durable tasks ended in each way, and what went wrong with them."""
    plan: str = ""

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        if self.ok:
            return f"seed {self.seed}: ok, {self.digest}, {self.virtual_s:.1f} s, {self.events} events"
        lines = [f"seed {self.seed}: {self.plan}"]
        for violation in self.violations[:1]:
            lines += list(violation.tail)
        lines += [f"  {violation}" for violation in self.violations]
        return "\n".join(lines)


def run(
    seed: int,
    *,
    gangs: bool = False,
    durable: bool = False,
    clocks: bool = False,
    aims: bool = False,
    plan: Plan | None = None,
    echo: Callable[[str], None] | None = None,
) -> Report:
    """Play the plan of a seed (or another one) and say how it went.

    Args:
        seed: any whole number.
        gangs: with gang traffic beside the plain.
        durable: with durable tasks beside the plain traffic; not with gangs.
        clocks: in processes whose clocks differ.
        aims: with accidents aimed at steps of gangs, sets and streams.
        plan: instead of the seed's own.
        echo: called with each line of the trace as it happens.
    """
    loop = VirtualLoop(limit_s=LIMIT_S)
    plan = plan or drawing(gangs=gangs, durable=durable, clocks=clocks, aims=aims)(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(loop.close)
        stack.enter_context(_collecting_at_the_end())
        story = Story(plan, loop, echo)
        world = story.world
        try:
            loop.run_until_complete(story.play())
        except (Deadlock, VirtualTimeout) as error:
            world.checker.fail("hang", str(error))
        return Report(
            seed=seed,
            violations=tuple(world.checker.violations),
            digest=world.trace.digest(),
            virtual_s=world.now(),
            callbacks=loop.ran,
            events=world.trace.events,
            outcomes=world.outcomes.counts(),
            gangs=dict(sorted(world.gangs.counts.items())),
            durable=world.jobs.counts(),
            plan=plan.summary(),
        )


@contextlib.contextmanager
def _collecting_at_the_end() -> Iterator[None]:
    """Collect cyclic garbage once, when the run is over, and only that of the run.

    An unhandled exception is told of when its task is collected: else that would depend on what this process did
    before.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def drawing(*, gangs: bool, durable: bool, clocks: bool = False, aims: bool = False) -> Callable[[int], Plan]:
    """What draws such plans."""
    draw = draw_gang_plan if gangs else draw_durable_plan if durable else draw_plan

    def drawn(seed: int) -> Plan:
        plan = draw(seed)
        plan = with_clocks(plan) if clocks else plan
        return with_aims(plan) if aims else plan

    return drawn


def run_many(
    seeds: Iterable[int],
    *,
    gangs: bool = False,
    durable: bool = False,
    clocks: bool = False,
    aims: bool = False,
    processes: int | None = None,
) -> Iterator[Report]:
    """Reports of many seeds, as they come in. One process: in this one, in order."""
    play = functools.partial(run, gangs=gangs, durable=durable, clocks=clocks, aims=aims)
    if processes == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(play, seeds, chunksize=8)


def total_outcomes(reports: Iterable[Report]) -> Counter[str]:
    """Outcomes over many runs."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.outcomes)
    return total
