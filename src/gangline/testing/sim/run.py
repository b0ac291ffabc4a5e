"""Run seeds: one with `run`, many on all processors with `run_many`."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from ..loop import Deadlock, VirtualLoop, VirtualTimeout
from .history.checker import Violation
from .plan.durable_draw import draw_durable_plan
from .plan.gang_draw import draw_gang_plan
from .plan.plan import Plan, draw_plan
from .plan.variants import with_aims, with_clocks, with_limits
from .play.story import Story

LIMIT_S = 300.0
"""Limit in virtual seconds; a run that takes longer hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run."""

    seed: int
    violations: tuple[Violation, ...]
    digest: str
    """Hash of the trace; the same for each run of a seed."""
    virtual_s: float
    callbacks: int
    events: int
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    """Number of requests by outcome."""
    gangs: dict[str, int] = field(default_factory=dict[str, int])
    """Number of events of gangs by kind."""
    durable: dict[str, int] = field(default_factory=dict[str, int])
    """Number of durable tasks by outcome, and of their faults."""
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


class PlanKind(TypedDict, total=False):
    """What to draw for a seed."""

    gangs: bool
    """Add gangs to the plain traffic."""
    durable: bool
    """Add durable tasks to the plain traffic; not with gangs."""
    clocks: bool
    """Give the processes clocks that differ."""
    aims: bool
    """Add faults aimed at steps of gangs, sets and streams."""
    limits: bool
    """Let called tasks declare how many of them may run at once."""


def run(
    seed: int, *, plan: Plan | None = None, echo: Callable[[str], None] | None = None, **kind: Unpack[PlanKind]
) -> Report:
    """Play the plan of a seed (or another one) and report the result.

    Args:
        seed: any whole number.
        plan: play this plan instead of the seed's own.
        echo: called with each line of the trace as it happens.
    """
    loop = VirtualLoop(limit_s=LIMIT_S)
    plan = plan or drawing(**kind)(seed)
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
    """Collect cyclic garbage once, at the end, and only that of the run. An unhandled exception is reported when its
    task is collected; otherwise that moment would depend on what this process did before."""
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


def drawing(**kind: Unpack[PlanKind]) -> Callable[[int], Plan]:
    """The function that draws such plans."""
    draw = draw_gang_plan if kind.get("gangs") else draw_durable_plan if kind.get("durable") else draw_plan

    def drawn(seed: int) -> Plan:
        plan = draw(seed)
        plan = with_clocks(plan) if kind.get("clocks") else plan
        plan = with_limits(plan) if kind.get("limits") else plan
        return with_aims(plan) if kind.get("aims") else plan

    return drawn


def run_many(seeds: Iterable[int], *, processes: int | None = None, **kind: Unpack[PlanKind]) -> Iterator[Report]:
    """Yield the reports of many seeds as they finish. With one process, run them here, in order."""
    play = functools.partial(run, **kind)
    if processes == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(play, seeds, chunksize=8)


def total_outcomes(reports: Iterable[Report]) -> Counter[str]:
    """Sum of outcomes over many runs."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.outcomes)
    return total
