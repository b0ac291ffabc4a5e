"""Quotas: what each tenant may use. A tenant is an account whose users Gangline's account lets in; the server says from
which account a request comes. Gangline's own account has no quotas. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from ..errors.base import InvalidSettings, QuotaExceeded
from ..names import check_name
from ..text import parse_yes_no

ACCOUNT_KEY: Final = "account"
"""Given like a quota: the public key of a tenant's account."""
_BOUNDS: Final = {
    "gangs_waiting": (1, 1_000_000),
    "priority": (-1_000_000, 1_000_000),
    "schedule_every_s": (1.0, 31_536_000.0),
    "weight": (0.001, 1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may use. None: no limit.

    Raises:
        InvalidSettings: a value is out of bounds.
    """

    gangs: int | None = None
    """Gangs that hold slots, or are asking workers for them; more wait. At least 0."""
    gang_slots: int | None = None
    """Slots of these gangs, all parts together; more wait. At least 0."""
    gangs_waiting: int | None = 100
    """Gangs that are not formed, or not formed again; one more is refused. At least 1."""
    slots: int | None = None
    """Slots of one pool that calls through one gateway use; more calls wait. At least 0."""
    pools: frozenset[str] | None = None
    """Pools in which its gangs may have slots."""
    queued_tasks: int | None = None
    """Submitted tasks of one endpoint that have not ended, delayed ones apart; more are refused. At least 0."""
    queued_bytes: int | None = None
    """Bytes that dispatchers keep for these tasks; more are refused. At least 0."""
    schedules: int | None = 100
    """Recurring schedules of one endpoint; more are refused. At least 0."""
    schedule_every_s: float = 1.0
    """Shortest time between two runs of a schedule; one that runs more often is refused. 1 to a year."""
    delayed_tasks: int | None = 10_000
    """Submitted tasks of one endpoint that wait for their time; more are refused. At least 0."""
    delayed_bytes: int | None = 64 * 1024 * 1024
    """Bytes of these tasks and of its schedules there; more are refused. At least 0."""
    endpoints: int | None = 100
    """Endpoints to which it submits that have neither a pool nor a standing set nor a route. At least 0."""
    priority: int = 0
    """Highest priority of its gangs and submitted tasks."""
    preempt: bool = False
    """Whether its gangs may tear down others of lower priority."""
    weight: float = 1.0
    """Slots for tenants that wait for the same ones, relative to others. 0.001 to 1000."""
    guaranteed: int = 0
    """Slots in gangs that it can always get back. Others may use them until it asks for them. At least 0."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            low, high = _BOUNDS.get(each.name, (0, 1_000_000_000))
            if isinstance(value, (int, float)) and not low <= value <= high:
                raise InvalidSettings(f"quota {each.name} is {value}: give a number from {low} to {high}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of all tenants."""

    others: Quota = Quota()
    """Of tenants that are not named."""
    named: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    tenants: Mapping[str, str] = field(default_factory=dict[str, str])
    """Account -> its tenant, where the server knows accounts by their public keys."""

    def of(self, tenant: str) -> Quota | None:
        """None: Gangline's own account, which has none."""
        return self.named.get(tenant, self.others) if tenant else None

    def weight_of(self, tenant: str) -> float:
        """What the tenant gets relative to others; 1 for Gangline's own account."""
        quota = self.of(tenant)
        return 1.0 if quota is None else quota.weight

    def tenant_of(self, account: str) -> str:
        """The tenant whose requests come from that account."""
        return self.tenants.get(account, account)

    @property
    def limits_slots(self) -> bool:
        """Whether there is a quota `slots`."""
        return any(quota.slots is not None for quota in (self.others, *self.named.values()))


def parse_quotas(texts: Iterable[str]) -> Quotas:
    """Each text is `[TENANT:]QUOTA=VALUE`. Without a tenant it is for all; one that names a tenant goes before these.
    `TENANT:account=KEY` says by which public key the server knows the tenant's account.

    Raises:
        InvalidSettings, InvalidName: it cannot be understood.
    """
    everybodys: dict[str, Any] = {}
    named: dict[str, dict[str, Any]] = {}
    tenants: dict[str, str] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        tenant, _, name = left.rpartition(":")
        if not equals or name not in _PARSERS:
            raise InvalidSettings(f"{text!r} is not [TENANT:]QUOTA=VALUE: quotas are {', '.join(_PARSERS)}")
        parser, example = _PARSERS[name]
        try:
            found = parser(value)
        except ValueError:
            raise InvalidSettings(f"{text!r}: {value!r} is no {name}; write, for example, {name}={example}") from None
        if tenant:
            check_name(tenant, "tenant")
        if name != ACCOUNT_KEY:
            (named.setdefault(tenant, {}) if tenant else everybodys)[name] = found
        elif not tenant:
            raise InvalidSettings(f"{text!r} names no tenant: write TENANT:{text}")
        elif tenants.setdefault(found, tenant) != tenant:
            raise InvalidSettings(f"{text!r}: this is the account of {tenants[found]!r}, too")
    others = Quota(**everybodys)
    return Quotas(others, {tenant: replace(others, **own) for tenant, own in named.items()}, tenants)


def is_account_key(account: str) -> bool:
    """Whether it is a public key, with which a server that has JWTs names an account."""
    return re.fullmatch("A[A-Z2-7]{55}", account) is not None


def _account(text: str) -> str:
    if not is_account_key(text):
        raise ValueError
    return text


def _pools(text: str) -> frozenset[str]:
    return frozenset(check_name(pool, "pool") for pool in text.split(","))


_PARSERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "gangs": (int, "4"),
    "gang_slots": (int, "64"),
    "gangs_waiting": (int, "20"),
    "slots": (int, "8"),
    "queued_tasks": (int, "1000"),
    "queued_bytes": (int, "10000000"),
    "schedules": (int, "20"),
    "schedule_every_s": (float, "60"),
    "delayed_tasks": (int, "1000"),
    "delayed_bytes": (int, "10000000"),
    "endpoints": (int, "20"),
    "pools": (_pools, "train,eval"),
    "priority": (int, "10"),
    "preempt": (parse_yes_no, "yes"),
    "weight": (float, "3"),
    "guaranteed": (int, "16"),
    ACCOUNT_KEY: (_account, "ABC..., the 56 characters in the file `tenants` that `gangline roles --jwt` wrote"),
}
"""How to read the value of each quota, and an example."""


def exceeded(tenant: str, quota: str, limit: int, used: int, what: str, advice: str) -> QuotaExceeded:
    """The error for a request above a quota.

    Args:
        what: what is used, for people.
        advice: what to do next.
    """
    return QuotaExceeded(
        f"tenant {tenant!r} has {used} {what}, and its quota {quota} is {limit}: {advice}",
        details={"tenant": tenant, "quota": quota, "limit": limit, "used": used},
    )
