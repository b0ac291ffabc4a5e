"""Explains to people why a gang cannot be placed. May look at every worker of the pools in question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangSpec, Strategy
from ...schemas.text import count_of
from .inventory import SlotIndex
from .placement import PlacementRequest, Shape, wanted_of

_NO_CHANGES: Mapping[WorkerId, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A requirement of a gang that cannot be met."""

    pool: str
    labels: Mapping[str, str]
    wanted: int
    """Slots, or nodes for the strict strategies."""
    there: int
    text: str
    """One sentence for people."""


def lacks(
    spec: GangSpec,
    slots: SlotIndex,
    *,
    changes: Mapping[WorkerId, int] = _NO_CHANGES,
) -> tuple[Shortage, ...]:
    """What is missing if `place` found nothing. Looks at every worker of the pools in question: for people."""
    with slots.trial(changes):
        return tuple(_lacks(spec, slots, wanted_of(spec)))


def _lacks(spec: GangSpec, slots: SlotIndex, wanted: list[PlacementRequest]) -> Iterator[Shortage]:
    """What is missing: one item for each shape that does not fit on its own; if each would, one for the whole gang."""
    shapes: dict[Shape, list[PlacementRequest]] = {}
    for item in wanted:
        shapes.setdefault(item.shape, []).append(item)
    found = False
    pools: dict[str, int] = {}
    for items in shapes.values():
        want = items[0].want
        pools[want.pool] = pools.get(want.pool, 0) + want.slots * len(items)
        lack = _lack_of_shape(spec, slots, items)
        if lack is not None:
            found = True
            yield lack
    if found:
        return
    for pool, need in pools.items():
        there = slots.filtered(pool, {}).sum
        if there < need:
            found = True
            text = f"pool {pool!r} has {count_of(there, 'slot')} for the {need} that all members together need"
            yield Shortage(pool=pool, labels={}, wanted=need, there=there, text=text)
    if not found:
        first = wanted[0].want
        text = f"each member alone would fit, but not all {spec.size} together as {spec.strategy.value} asks"
        yield Shortage(pool=first.pool, labels=first.labels, wanted=spec.size, there=0, text=text)


def _lack_of_shape(spec: GangSpec, slots: SlotIndex, items: list[PlacementRequest]) -> Shortage | None:
    want, count = items[0].want, len(items)
    room = slots.filtered(want.pool, want.labels)
    which = f"pool {want.pool!r}" + (f" with {_said(want.labels)}" if want.labels else "")

    def lack(wanted: int, there: int, text: str) -> Shortage:
        return Shortage(pool=want.pool, labels=want.labels, wanted=wanted, there=there, text=text)

    if not slots.filtered(want.pool, {}).workers:
        return lack(count * want.slots, 0, f"pool {want.pool!r} has no worker")
    fitting = [entry.place.worker for entry in room.workers.descending(1) if entry.place.has(want.labels)]
    if not fitting and not any(entry.place.has(want.labels) for entry in room.workers.descending(0)):
        return lack(count * want.slots, 0, f"no worker of {which}")
    members = max(slots.get(worker) // want.slots for worker in fitting) if fitting else 0
    if members == 0 and fitting:
        best = max(slots.get(worker) for worker in fitting)
        text = f"no worker of {which} has {count_of(want.slots, 'slot')} at once: the most is {best}"
        return lack(want.slots, best, text)
    units = sum(slots.get(worker) // want.slots for worker in fitting)
    if units < count:
        text = f"{which} has room for {units} of {count} members of {count_of(want.slots, 'slot')}"
        return lack(count * want.slots, units * want.slots, text)
    if items[0].part:
        return None
    if spec.strategy is Strategy.STRICT_SPREAD:
        nodes = len({slots.place_of(worker).node for worker in fitting if slots.get(worker) >= want.slots})
        if nodes < count:
            return lack(count, nodes, f"{which} has room on {count_of(nodes, 'node')}, strict_spread needs {count}")
    if spec.strategy is Strategy.STRICT_PACK:
        by_node: dict[str, int] = {}
        for worker in fitting:
            node = slots.place_of(worker).node
            by_node[node] = by_node.get(node, 0) + slots.get(worker) // want.slots
        best = max(by_node.values())
        if best < count:
            text = (
                f"no node of {which} has room for {count} members of {count_of(want.slots, 'slot')}: the most is {best}"
            )
            return lack(count * want.slots, best * want.slots, text)
    return None


def _said(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
