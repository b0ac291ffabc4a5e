"""What a tenant's gangs use of its quota, and what that allows.

Laws:

1. Use is counted from the gangs themselves, never kept separately: it is zero when they have ended, whatever crashed
   meanwhile, and a new leader counts the same from the ledger.
2. A quota delays a gang or refuses a request; it ends no gang. One that was formed under a larger quota continues.
3. A gang that waits for its tenant's other gangs is never the head of the queue: it delays no other tenant. The
   tenant's later gangs wait behind it, so that small ones cannot starve a large one.
4. Among gangs of one priority tenants take turns: first those that have less than they are guaranteed, then the one
   with the fewest slots for its weight. One tenant's gangs keep their order. Our own account is one of the tenants.
5. What a tenant has beyond what it is guaranteed is borrowed. For a gang within the guarantee of another tenant that
   has waited at the head, borrowed gangs are torn down, the lowest and youngest first; they restart when there is
   room. No gang of a tenant that has no more than it is guaranteed, and none of our own account, is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ...schemas.errors.base import NotEntitled
from ...schemas.permissions.quotas import Quota
from ...schemas.records.gangs import GangSpec
from ...schemas.text import count_of
from ..model.gang import WAITING, GangStep, ManagedGang

_IDLE = frozenset({GangStep.QUEUED, GangStep.BACKOFF, GangStep.ENDED})
"""Has no slots, and asks no worker for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What the gangs of one tenant use."""

    gangs: int = 0
    slots: int = 0
    waiting: int = 0

    @classmethod
    def of(cls, gangs: Iterable[ManagedGang]) -> TenantUse:
        found = list(gangs)
        active = [gang for gang in found if gang.step not in _IDLE]
        return cls(
            gangs=len(active),
            slots=sum(gang.slots for gang in active),
            waiting=sum(gang.step in WAITING for gang in found),
        )

    def plus(self, spec: GangSpec) -> TenantUse:
        """With one more gang."""
        return replace(self, gangs=self.gangs + 1, slots=self.slots + spec.smallest.slots)


def in_turn(
    queued: Iterable[ManagedGang], used: Callable[[str], int], quota_of: Callable[[str], Quota | None]
) -> Iterator[ManagedGang]:
    """The gangs of a queue in the order in which they are tried, as if each were started then.

    Args:
        used: slots in gangs that a tenant has.
    """
    for _, of_priority in groupby(queued, key=lambda gang: gang.spec.priority):
        lines: dict[str, deque[ManagedGang]] = {}
        for gang in of_priority:
            lines.setdefault(gang.tenant, deque()).append(gang)
        slots = {tenant: used(tenant) for tenant in lines} if len(lines) > 1 else {}

        def turn(tenant: str, slots: dict[str, int] = slots, lines: dict[str, deque[ManagedGang]] = lines) -> Any:
            quota = quota_of(tenant) or Quota()
            first = lines[tenant][0]
            return slots[tenant] >= quota.guaranteed, slots[tenant] / quota.weight, first.created_at, first.id

        while len(lines) > 1:
            tenant = min(lines, key=turn)
            gang = lines[tenant].popleft()
            slots[tenant] += gang.spec.smallest.slots
            if not lines[tenant]:
                del lines[tenant]
            yield gang
        for line in lines.values():
            yield from line


def borrowed(
    gang: ManagedGang,
    formed: Iterable[ManagedGang],
    used: Callable[[str], int],
    quota_of: Callable[[str], Quota | None],
) -> list[ManagedGang]:
    """The gangs that may be torn down for one that waits, since its tenant is guaranteed the slots; the first ones
    first."""
    quota = quota_of(gang.tenant)
    if quota is None or used(gang.tenant) + gang.spec.smallest.slots > quota.guaranteed:
        return []
    found = []
    left: dict[str, int] = {}
    for other in sorted(formed, key=lambda other: (other.spec.priority, -other.created_at, other.id)):
        lender = quota_of(other.tenant)
        if lender is None or other.tenant == gang.tenant:
            continue
        slots = left.setdefault(other.tenant, used(other.tenant))
        if slots > lender.guaranteed:
            left[other.tenant] = slots - other.slots
            found.append(other)
    return found


def not_entitled(spec: GangSpec, tenant: str, quota: Quota) -> NotEntitled | None:
    """Why the tenant may not have this gang, however little else it uses."""
    slots = spec.smallest.slots

    def refused(name: str, limit: object, wants: str, instead: str) -> NotEntitled:
        return NotEntitled(
            f"tenant {tenant!r} asks for {wants}, and its quota {name} is {limit}: {instead}, or have an operator "
            "raise the quota",
            details={"tenant": tenant, "quota": name, "limit": limit},
        )

    if quota.pools is not None and not spec.pools <= quota.pools:
        others, allowed = ", ".join(sorted(spec.pools - quota.pools)), ",".join(sorted(quota.pools))
        return refused("pools", allowed, f"slots of {others}", "choose other pools")
    if spec.priority > quota.priority:
        return refused("priority", quota.priority, f"priority {spec.priority}", "ask for less")
    if spec.preempt and not quota.preempt:
        return refused("preempt", "no", "a gang that preempts others", "ask without preempt")
    if quota.gangs == 0:
        return refused("gangs", 0, "a gang", "ask for none")
    if quota.gang_slots is not None and slots > quota.gang_slots:
        return refused("gang_slots", quota.gang_slots, f"a gang of {count_of(slots, 'slot')}", "ask for a smaller one")
    return None


def held_back(spec: GangSpec, tenant: str, quota: Quota, use: TenantUse) -> str:
    """Why a gang waits for others of its tenant; empty: it need not."""
    if quota.gangs is not None and use.gangs >= quota.gangs:
        return f"tenant {tenant} has {count_of(use.gangs, 'gang')}, and its quota gangs is {quota.gangs}"
    slots = spec.smallest.slots
    if quota.gang_slots is not None and use.slots + slots > quota.gang_slots:
        return (
            f"tenant {tenant} has {count_of(use.slots, 'slot')} in gangs, this one needs {slots}, and its quota "
            f"gang_slots is {quota.gang_slots}"
        )
    return ""


def within(spec: GangSpec, quota: Quota, use: TenantUse) -> GangSpec:
    """An elastic spec without the sizes that are above the quota; it is not held back."""
    if quota.gang_slots is None:
        return spec
    bundle = spec.bundles[0]
    most = min(spec.sizes[1], (quota.gang_slots - use.slots) // bundle.slots_each)
    return spec.model_copy(update={"bundles": (bundle.model_copy(update={"max_count": most, "count": spec.sizes[0]}),)})
