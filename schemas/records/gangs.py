"""The spec of a gang, and its records in the ledger. Messages are in schemas.messages.gangs.

A gang has *ranks*. Each rank has *parts*, each with slots of one worker. Part 0 is the member itself: its tasks run
there, and placement strategies apply only to it. Further parts (licences, for example) are held with it on any worker.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain, repeat
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors.base import InvalidName
from ..limits import (
    MAX_NAME_CHARS,
    MAX_SLOTS,
    MAX_TOKEN_CHARS,
    MAX_TRACEPARENT_CHARS,
    MAX_TTL_S,
    MIN_TTL_S,
)
from ..names import check_name
from .workers import Record

MAX_SEATS: Final = 900
"""Maximum number of parts of one gang, over all ranks: its records must fit into one atomic batch (1000 messages)."""

ENDED_TTL_S: Final = 60.0
"""How long the record of an ended gang remains readable."""


def _name(kind: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            return check_name(value, kind)
        except InvalidName as error:  # a record may be written by hand; pydantic collects only ValueErrors
            raise ValueError(error.message) from error

    return AfterValidator(check)


PoolName = Annotated[str, Field(max_length=MAX_NAME_CHARS), _name("pool")]
_SeatName = Annotated[str, Field(max_length=MAX_NAME_CHARS, pattern=r"^[A-Za-z0-9_-]+$")]
"""As `check_name`, by pydantic itself: each worker of a gang reads all seats."""


class Strategy(StrEnum):
    """Placement of a gang's members. A worker without a node name counts as a node of its own."""

    PACK = "pack"
    """As few nodes as possible."""
    SPREAD = "spread"
    """Over as many nodes as possible, evenly."""
    STRICT_PACK = "strict_pack"
    """All on one node, or none."""
    STRICT_SPREAD = "strict_spread"
    """Each on a node of its own, or none."""


class RestartPolicy(StrEnum):
    """What happens to a gang when a member fails."""

    RESTART_GANG = "restart_gang"
    """All members stop, and the gang forms again as the next generation."""
    RESTART_MEMBER = "restart_member"
    """The others continue; only lost members are placed again. If that takes too long: as `restart_gang`."""
    FAIL = "fail"
    """All members stop, and the gang ends."""


class GangState(StrEnum):
    """As stored in the ledger; a gang that is being formed is still `queued`."""

    QUEUED = "queued"
    FORMED = "formed"
    RETIRING = "retiring"
    """Continues what it runs, gets nothing new, and is torn down soon (a standing gang that is being replaced)."""
    TEARING_DOWN = "tearing_down"
    ENDED = "ended"


class Part(BaseModel):
    """Slots of one worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pool: PoolName
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    labels: dict[str, str] = Field(default_factory=dict)
    """The worker must have all of these labels. `zone` matches the worker's zone if it has no label of that name."""


class Bundle(Part):
    """`count` members of one kind. The other fields of the object, except `extras` and the counts, describe part 0.

    Raises:
        ValueError: one of `min_count` and `max_count` without the other, or not `min_count <= count <= max_count`.
    """

    count: int = Field(default=1, ge=1, le=MAX_SEATS)
    """With a range: of the current generation, or of the last; `min_count` before the first."""
    min_count: int | None = Field(default=None, ge=1, le=MAX_SEATS)
    """With `max_count`: each generation has as many members as there is room for, within this range."""
    max_count: int | None = Field(default=None, ge=1, le=MAX_SEATS)
    extras: tuple[Part, ...] = ()
    """Further parts of each of these members."""

    @model_validator(mode="before")
    @classmethod
    def _begins_small(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("min_count") is not None and "count" not in value:
            return {**value, "count": value["min_count"]}
        return value

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if (self.min_count is None) != (self.max_count is None):
            raise ValueError("give both min_count and max_count, or neither")
        if self.min_count is not None and self.max_count is not None:
            if self.min_count > self.max_count:
                raise ValueError(f"the smallest size is {self.min_count}, the largest {self.max_count}")
            if not self.min_count <= self.count <= self.max_count:
                raise ValueError(f"count is {self.count}, not between {self.min_count} and {self.max_count}")
        return self

    @property
    def most(self) -> int:
        """`count`, or the range of it."""
        return self.count if self.max_count is None else self.max_count

    @property
    def slots_each(self) -> int:
        """Slots of one of these members."""
        return self.slots + sum(part.slots for part in self.extras)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part(pool=self.pool, slots=self.slots, labels=self.labels), *self.extras)


class GangSpec(BaseModel):
    """The requested gang. Either `bundles`, or `pool`, `size`, `slots` and `labels` for one bundle. `size` is a
    number, or `[smallest, largest]` for a gang whose generations have as many members as there is room for.

    Raises:
        ValueError: neither or both forms were used, more than MAX_SEATS parts, or a range with several bundles.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    bundles: tuple[Bundle, ...] = ()
    """Ranks are numbered across the bundles in this order."""
    strategy: Strategy = Strategy.PACK
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    """Higher goes first."""
    preempt: bool = False
    """Gangs of lower priority may be torn down (and queued again) to make room."""
    restart: RestartPolicy = RestartPolicy.RESTART_GANG
    max_restarts: int | None = Field(default=3, ge=0)
    """Number of failures of the gang (not of its members) before it ends. None: no limit. Drains and preemptions do
    not count."""
    backoff_s: float = Field(default=0.5, ge=0.0, le=3600.0)
    """Delay before the first restart; doubles with each further one, up to 30 s, with jitter."""
    grace_s: float = Field(default=5.0, ge=0.0, le=3600.0)
    """How long a member may take to stop at a teardown before it is killed."""
    start_timeout_s: float = Field(default=600.0, ge=0.1, le=MAX_TTL_S)
    """Time limit for all `gang_start` functions of a member together. After it they are cancelled, and the member
    has failed to start. Set it longer than your slowest model takes to load."""
    ttl_s: float = Field(default=15.0, ge=MIN_TTL_S, le=MAX_TTL_S)
    """The gang ends if its owner does not renew it for this time. Standing gangs ignore it."""
    owner: str = Field(default="", max_length=256)
    """Who requested it and why; shown to people."""
    traceparent: str | None = Field(default=None, max_length=MAX_TRACEPARENT_CHARS)

    @model_validator(mode="before")
    @classmethod
    def _one_bundle(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        short = {"pool": "pool", "size": "count", "slots": "slots", "labels": "labels", "extras": "extras"}
        given = {short[key]: value[key] for key in short if key in value}
        if not given:
            return value
        if value.get("bundles"):
            raise ValueError(f"give either bundles or {', '.join(key for key in short if key in value)}, not both")
        count = given.get("count", 1)
        if isinstance(count, (list, tuple)):
            if len(count) != 2:
                raise ValueError("size is a number, or [smallest, largest]")
            del given["count"]
            given |= {"count": count[0]} if count[0] == count[1] else {"min_count": count[0], "max_count": count[1]}
        else:
            given = {"count": 1, **given}
        rest = {key: item for key, item in value.items() if key not in short}
        return {**rest, "bundles": [given]}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.bundles:
            raise ValueError("give a pool and a size, or bundles")
        if self.elastic and len(self.bundles) > 1:
            raise ValueError("only a gang of one bundle can have a range of sizes")
        seats = sum(bundle.most * (1 + len(bundle.extras)) for bundle in self.bundles)
        if seats > MAX_SEATS:
            raise ValueError(f"{seats} parts; one gang has at most {MAX_SEATS}")
        return self

    @property
    def size(self) -> int:
        """The number of members: the world size. With a range: of the current generation, else of the last; the
        smallest before the first."""
        return sum(bundle.count for bundle in self.bundles)

    @property
    def slots(self) -> int:
        """Slots of all members at this size."""
        return sum(bundle.count * bundle.slots_each for bundle in self.bundles)

    @property
    def pools(self) -> frozenset[str]:
        """The pools of all parts."""
        return frozenset(part.pool for bundle in self.bundles for part in bundle.parts)

    @property
    def elastic(self) -> bool:
        """Whether its generations may have different sizes."""
        return any(bundle.min_count is not None for bundle in self.bundles)

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest size."""
        first = self.bundles[0]
        if first.min_count is None or first.max_count is None:
            return self.size, self.size
        return first.min_count, first.max_count

    def sized(self, size: int) -> Self:
        """A copy with that size; itself if it has only one size."""
        if not self.elastic or self.size == size:
            return self
        return self.model_copy(update={"bundles": (self.bundles[0].model_copy(update={"count": size}),)})

    @property
    def smallest(self) -> Self:
        return self.sized(self.sizes[0])

    @property
    def ranks(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each rank."""
        return tuple(chain.from_iterable(repeat(bundle.parts, bundle.count) for bundle in self.bundles))


class StrictPart(Part):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StrictBundle(Bundle):
    model_config = ConfigDict(frozen=True, extra="forbid")

    extras: tuple[StrictPart, ...] = ()


class StrictGangSpec(GangSpec):
    """A GangSpec as typed by people: a misspelt field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: tuple[StrictBundle, ...] = ()

    def relaxed(self) -> GangSpec:
        """The plain GangSpec, which records hold and equality compares."""
        return GangSpec.model_validate({name: getattr(self, name) for name in GangSpec.model_fields} | self._plain())

    def _plain(self) -> dict[str, Any]:
        return {"bundles": [bundle.model_dump() for bundle in self.bundles]}


class Seat(BaseModel):
    """One part of one rank, on its worker, with its token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    part: int = 0
    pool: _SeatName
    worker: _SeatName
    slots: int = 1
    token: str
    """Use it to dispatch to the member: a multi-use lease of the worker, for `slots` slots. Only the owner gets it; in
    the ledger and for others it is its public id, which admits nothing. The seats of a standing gang, which has no
    owner, are used by the public id. Of a worker of an earlier version it is the token everywhere."""
    epoch: int
    node: str = ""
    zone: str = ""
    address: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class HostPort(NamedTuple):
    """An address: `host, port = ...`, or `.host` and `.port`."""

    host: str
    port: int


class Rendezvous(BaseModel):
    """Address of rank 0: its worker's host, and a port that was free there when the gang was held."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    port: int

    @property
    def plain(self) -> HostPort:
        """The form that tasks and owners get."""
        return HostPort(self.host, self.port)


class GangRecord(Record):
    """`gang.<id>`. Within its batch it is the last write when members are granted and the first when they are ended.
    So a reader in the order of revisions that finds a record with `formed` has just read all of its members, and one
    with `tearing_down` is followed by their deletion."""

    id: str
    state: GangState
    spec: GangSpec
    generation: int = Field(default=1, ge=1)
    """Grows with each change of the membership; messages with an older one are void."""
    seats: tuple[Seat, ...] = ()
    """Seats of this generation; kept during the teardown, so that a new leader knows which members to stop."""
    rendezvous: Rendezvous | None = None
    fence: int = 0
    """Grows over the whole system. 0: the revision of this record; see `fence_at`."""
    owner_token: str = Field(default="", max_length=MAX_TOKEN_CHARS)
    """Its public id: whoever shows the token may renew and release the gang. Empty: a standing gang. Coordinators of
    earlier versions write the token itself."""
    tenant: str = ""
    """The account of its owner, for quotas; empty: the coordinator's own."""
    restarts: int = 0
    """How often it was formed again or repaired, for whatever reason: the number of earlier generations."""
    failures: int | None = None
    """Number of failures that count against `max_restarts`; drains and preemptions do not count. None: written by an
    older coordinator, whose `restarts` have that meaning."""
    reason: str = ""
    """Reason of the last teardown."""
    rank: int | None = None
    """Rank that failed."""
    ends: bool = False
    """It is being torn down for good; otherwise the next generation follows."""
    gangset: str | None = None
    """The standing set that it belongs to."""
    created_at: float = 0.0
    """Unix time of the request; with `spec.priority`, it determines the position in the queue."""
    formed_at: float = 0.0
    """Unix time."""
    ready: bool | None = None
    """Of a formed gang of a standing set: whether the `gang_start` functions of all its members have succeeded, so that
    callers may use it. None: not a standing gang, or written by an older coordinator, for which formed meant ready."""
    deadline_at: float | None = None
    """Unix time until which it stays queued if it has never formed."""

    @property
    def counted(self) -> int:
        """Failures that count against `max_restarts`."""
        return self.restarts if self.failures is None else self.failures

    def fence_at(self, revision: int) -> int:
        """The fence, given the revision at which this record was read."""
        return self.fence or revision


class HeldSeat(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    part: int = 0
    slots: int = 1
    token: str


class MemberRecord(Record):
    """`member.<pool>.<worker>.<gang>`: the slots that a gang holds on one worker. This record is the grant: if it is
    absent, nothing is granted."""

    gang: str
    generation: int = Field(ge=1)
    epoch: int
    seats: tuple[HeldSeat, ...]


class LedgerComplete(Record):
    """`complete`: the ledger has all that coordinators knew when it was created. It is lost with everything else, so a
    ledger without it has to be written back first, and proves nothing by what it lacks."""

    since: float = 0.0
    """Unix time."""


class LeaderRecord(Record):
    """`leader`: changed only by compare-and-set. Its revision fences everything that a coordinator writes."""

    term: int
    instance: str
    since: float = 0.0
    """Unix time of the election."""


class LeaderAlive(Record):
    """`leader_alive`: renewed every half second, expires after two seconds."""

    term: int
    instance: str


class ShardMap(Record):
    """`shards`: which coordinator shard owns which pools. Changed only by compare-and-set."""

    shards: dict[str, tuple[PoolName, ...]] = Field(default_factory=dict)
    """Pools by shard; each pool is in one shard."""


class Route(StrEnum):
    """The members of a standing gang that run a call."""

    RANK0 = "rank0"
    ALL = "all"
    """All ranks; the answer is the list of results by rank."""


class GangSetRecord(Record):
    """`gangset.<name>`: the declaration of a standing set. Operators may write it by hand; a misspelt field is
    refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gangs: int = Field(ge=0, le=10_000)
    gang: StrictGangSpec
    surge: int = Field(default=1, ge=0, le=1)
    """1: a replacement forms before the old gang is stopped, if there is room for both. 0: the old gang is stopped
    first."""
    surge_wait_s: float = Field(default=3.0, ge=0.0, le=3600.0)
    """With surge 1: how long a replacement waits for room beside the old gang before the old gang is stopped after
    all. On a draining worker: at most a fifth of its grace time."""
    route: Route = Route.RANK0
    retire_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """How long a replaced gang continues to serve after callers were sent elsewhere."""
    min_ready_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """How long a replacement must have been ready before the old gang is stopped. Set it longer than it takes until
    a member that starts well and then breaks has failed. A new leading coordinator begins to count again: a roll then
    takes longer."""
    roll_failures: int = Field(default=3, ge=1, le=1000)
    """After this many failures of gangs with a new spec, none of which was ready for `min_ready_s`, the roll stops
    and the previous spec is used again. To try again, declare the set again."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.gang.elastic:
            raise ValueError("gang: the gangs of a set have one size, not a range")
        return self

    @property
    def template(self) -> GangSpec:
        """The spec of each gang. Restarts are unlimited unless a limit is given."""
        return template_of(self.gang)


def template_of(gang: StrictGangSpec) -> GangSpec:
    """The spec of each gang of a set, from its declaration."""
    spec = gang.relaxed()
    unbounded = "max_restarts" not in gang.model_fields_set
    return spec.model_copy(update={"max_restarts": None}) if unbounded else spec


def write_gang(gang: StrictGangSpec) -> dict[str, Any]:
    """The gang as declared: only the fields that were set."""
    return gang.model_dump(mode="json", exclude_unset=True)


def read_gang(written: dict[str, Any] | None) -> StrictGangSpec | None:
    """The inverse; None also for an unreadable value."""
    try:
        return None if written is None else StrictGangSpec.model_validate(written)
    except ValidationError:
        return None


class SetState(StrEnum):
    """State of a standing set."""

    STEADY = "steady"
    """As many gangs as declared are ready, all of them have the declared spec, and one of them has been ready for
    `min_ready_s`."""
    ROLLING = "rolling"
    """Changing towards the declaration."""
    FAILING = "failing"
    """Gangs with the declared spec failed too often, and none has been ready for `min_ready_s`."""


class GangSetStatus(Record):
    """`gangset_status.<name>`: the status of a standing set. Written only by the leading coordinator."""

    state: SetState
    reason: str = ""
    """What it waits for, or why it fails. Empty if steady."""
    gangs: int
    """Number of declared gangs."""
    formed: int = 0
    """Number of formed gangs with the declared spec."""
    ready: int = 0
    """Number of these that callers may be sent to."""
    old: int = 0
    """Number of gangs that callers may be sent to and that have another spec or are on draining workers."""
    failures: int = 0
    """Failures of gangs with the declared spec since it was declared, or since one was ready for `min_ready_s`."""
    repairing: int = 0
    """How many of these failures are being repaired: a new leader finds them and counts them again."""
    last_failure: str = ""
    """Reason of the last failure."""
    stopped: bool = False
    """The roll was stopped, and the previous spec is used."""
    served: bool = False
    """A gang with the declared spec has been ready for `min_ready_s`."""
    current: dict[str, Any] = Field(default_factory=dict)
    """The `gang` of the declaration that this status is about."""
    previous: dict[str, Any] | None = None
    """The previously declared `gang` that has served: a rollback declares it again."""
    at: float = 0.0
    """Unix time."""
