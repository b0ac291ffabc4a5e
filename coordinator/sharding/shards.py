"""The pools of one coordinator and its standbys.

A namespace has either coordinators of all pools, or shards with a set of pools each. Every shard has its own leader.
All pools of a gang belong to one shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...schemas.errors.base import InvalidSettings
from ...schemas.names import Names, check_name
from ...schemas.records.gangs import GangSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A name and its pools."""

    name: str = ""
    """Empty: all pools."""
    pools: frozenset[str] | None = None
    """None: all."""

    @classmethod
    def of(cls, name: str | None, pools: Iterable[str] | None) -> Shard:
        """
        Raises:
            InvalidSettings: one without the other, or a name that cannot be one.
        """
        names = frozenset(pools or ())
        if bool(name) != bool(names):
            raise InvalidSettings("a shard has a name and at least one pool: give both, or neither to keep all pools")
        if not name:
            return WHOLE
        return cls(name=check_name(name, "shard"), pools=frozenset(check_name(pool, "pool") for pool in names))

    def __str__(self) -> str:
        return f"shard {self.name} ({', '.join(sorted(self.pools))})" if self.pools is not None else "all pools"

    @property
    def leader_key(self) -> str:
        return Names.leader_key_of(self.name)

    @property
    def leader_alive_key(self) -> str:
        return Names.leader_alive_key_of(self.name)

    @property
    def complete_key(self) -> str:
        return Names.complete_key_of(self.name)

    def keeps(self, pool: str) -> bool:
        return self.pools is None or pool in self.pools

    def keeps_all(self, spec: GangSpec) -> bool:
        """Whether it can place the gang."""
        return self.pools is None or all(pool in self.pools for pool in pools_of(spec))

    def owns(self, spec: GangSpec) -> bool:
        """Whether this shard manages the gang. If its pools are in two shards, because the shards were different when
        it began, the shard with its first pool does."""
        return self.keeps(pools_of(spec)[0])


WHOLE = Shard()


def pools_of(spec: GangSpec) -> tuple[str, ...]:
    """Each pool once, rank 0's first."""
    return tuple(dict.fromkeys(part.pool for bundle in spec.bundles for part in bundle.parts))


def shard_of(pool: str, shards: Mapping[str, tuple[str, ...]]) -> str | None:
    """The shard that keeps a pool, if any does."""
    return next((name for name, pools in shards.items() if pool in pools), None)
